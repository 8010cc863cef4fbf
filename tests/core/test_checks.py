"""The small things every layer shares: validation, masks, dtypes and records."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from parsimax._core import dtypes, masks, records, validation


def test_dims_are_made_non_negative():
    assert [validation.check_dim(dim, 3) for dim in (0, 2, -1, -3)] == [0, 2, 2, 0]
    for dim in (3, -4):
        with pytest.raises(ValueError, match=rf"^dim must lie in \[-3, 2\].*got {dim}$"):
            validation.check_dim(dim, 3)


def test_numbers():
    def positive(value):
        return validation.check_number(value, "x", lambda x: x > 0, "positive")

    assert positive(2) == 2.0
    assert isinstance(positive(2), float)
    for value in (0, -1.5, float("nan")):
        with pytest.raises(ValueError, match=rf"^x must be positive, got {value}$"):
            positive(value)
    for value in (True, "2", None, [2], 2j):
        with pytest.raises(TypeError, match=r"^x must be a number or a tensor, got "):
            positive(value)


def test_values_in_tensors_are_read_in_eager_mode_only():
    def check(value):
        validation.check_values(value, "x", lambda x: x > 0, "positive")
        return value

    check(torch.tensor([1.0, 2.0]))
    with pytest.raises(ValueError, match=r"^every value of x must be positive, got -2\.0$"):
        check(torch.tensor([[1.0], [-2.0]]))
    with pytest.raises(ValueError, match=r"got nan$"):
        check(torch.tensor(torch.nan))
    bad = torch.tensor([1.0, -2.0])
    torch.func.vmap(check)(bad)
    torch.func.jacrev(check)(bad)
    torch.compile(check, backend="eager", fullgraph=True)(bad)
    check(torch.empty(2, device="meta"))


def test_choices_offer_the_nearest():
    assert validation.check_choice("sum", "reduction", ["mean", "sum"]) == "sum"
    with pytest.raises(
        ValueError, match=r"^reduction must be one of mean, sum, got 'men'; .*'mean'\?$"
    ):
        validation.check_choice("men", "reduction", ["mean", "sum"])
    with pytest.raises(ValueError, match=r"got 'xyzzy'$"):
        validation.check_choice("xyzzy", "reduction", ["mean", "sum"])


def test_forward_levels_counts_nested_forward_mode_only():
    seen = []

    def f(x):
        seen.append(validation.forward_levels())
        return x.sum()

    x = torch.ones(2)
    f(x)
    torch.func.jvp(f, (x,), (x,))
    torch.func.grad(f)(x)
    torch.func.jvp(lambda y: torch.func.jvp(f, (y,), (x,))[1], (x,), (x,))
    assert seen == [0, 1, 0, 2]


def test_masks():
    z = torch.arange(6.0).reshape(2, 3)
    assert masks.apply_mask(z, None) is z
    masked = masks.apply_mask(z, torch.tensor([True, False, True]))
    assert torch.equal(masked.isneginf(), torch.tensor([[False, True, False]] * 2))
    assert torch.equal(z, torch.arange(6.0).reshape(2, 3)), "the scores themselves stay"
    column = masks.apply_mask(z, torch.tensor([[True], [False]]))
    assert column[1].isneginf().all()
    assert torch.equal(column[0], z[0])


def test_precisions():
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        z = torch.zeros(2, dtype=dtype)
        assert dtypes.working(z).dtype == torch.float32
        assert dtypes.exact(z).dtype == torch.float64
    assert dtypes.working(torch.zeros(2, dtype=torch.float64)).dtype == torch.float64
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = torch.zeros(2, dtype=torch.bfloat16)
        assert dtypes.autocast_scores(half) is half


def test_records_are_immutable():
    record = records.AttentionRecord(("a", "b"), torch.zeros(1, 1, 2, 2), "encoder")
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.module = "decoder"
    context, weights = records.AttentionOutput(torch.zeros(1), None)
    assert context.shape == (1,)
    assert weights is None
