"""What a user may hand in by mistake, or change between calls, at any front door."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode

import parsimax as px

X = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: px.entmax(torch.eye(3).to_sparse()), TypeError, "z must be a dense tensor, got"),
        (lambda: px.entmax(X, True), TypeError, "alpha must be a number or a tensor, got True"),
        (
            lambda: px.entmax(X, torch.full((3, 1, 1), 1.5, device="meta")),
            ValueError,
            "alpha must be on the device of the scores, cpu, got meta",
        ),
        (
            lambda: px.budget(torch.tensor([1.0, 2.0]), 2.0000001),
            ValueError,
            "got k = 2.0000001 for a row with 2 allowed",
        ),
        (
            lambda: px.attention(X, X, X, mapping=px.nn.Entmax(1.5)),
            TypeError,
            "give its .mapping",
        ),
        (
            lambda: px.linear_entmax_loss(X, torch.randn(5, 8), torch.rand(3, 2, 5)),
            TypeError,
            r"class indices of dtype torch.int64 \(or torch.uint8\), got torch.float32",
        ),
        (
            lambda: px.nn.MultiheadAttention(8, 2)(X.int(), X, X),
            TypeError,
            "query must have a floating-point dtype, got torch.int32",
        ),
        (
            lambda: px.nn.MultiheadAttention(8, 2)(X, X.double(), X),
            TypeError,
            "key must have the dtype of the module's parameters, torch.float32, got torch.float64",
        ),
        (
            lambda: px.nn.MultiheadAttention(8, 2, alpha=px.nn.AdaptiveAlpha(3)),
            ValueError,
            "alpha must have num_heads=2, as this module, got 3",
        ),
        (lambda: px.nn.EntmaxLoss(reduction="men"), ValueError, "did you mean 'mean'"),
    ],
)
def test_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_numbers_of_numpy_are_numbers():
    assert torch.equal(px.entmax(X, np.float32(1.5)), px.entmax(X, 1.5))
    assert torch.equal(px.sparsegen(X, np.float64(0.5)), px.sparsegen(X, 0.5))


def test_tensors_without_values_have_shapes():
    assert px.entmax(torch.empty(3, 4, device="meta"), 1.3).shape == (3, 4)
    with FakeTensorMode():
        z = torch.randn(3, 4, requires_grad=True)
        px.entmax(z, 1.3).sum().backward()
        assert z.grad.shape == (3, 4)


def test_numbers_may_change_between_calls_of_one_compiled_function():
    """torch.compile makes a number symbolic the second time it sees another value."""
    target = torch.tensor([0, 1, 2])

    def everything(z, alpha, lam, k, smoothing):
        mapped = px.entmax(z, alpha) * px.sparsegen(z, lam) * px.budget(z, k)
        loss = px.entmax_loss(z, target, alpha, label_smoothing=smoothing)
        return (mapped * px.normmax(z, alpha + 0.1)).sum() + loss

    compiled = torch.compile(everything, fullgraph=True, backend="aot_eager")
    z = torch.randn(3, 6, generator=torch.Generator().manual_seed(1), requires_grad=True)
    for numbers in ((1.2, 0.1, 1.5, 0.1), (1.5, 0.2, 2.5, 0.2), (1.7, -0.3, 2.0, 0.3)):
        torch.testing.assert_close(compiled(z, *numbers), everything(z, *numbers))


def test_mappings_compare_by_number_or_by_the_very_tensor():
    tensor = torch.tensor([1.5, 2.0])
    assert px.mappings.Entmax(1.5) == px.mappings.Entmax(1.5)
    assert px.mappings.Entmax(1.5) != px.mappings.Entmax(1.6)
    assert px.mappings.Entmax(2.0) != px.mappings.Sparsemax()
    assert px.mappings.Entmax(tensor) == px.mappings.Entmax(tensor)
    assert px.mappings.Entmax(tensor) != px.mappings.Entmax(tensor.clone())
    assert len({px.mappings.Entmax(1.5), px.mappings.Entmax(1.5), px.mappings.Softmax()}) == 2


def test_weights_that_are_all_zero_have_no_mean_as_in_torch():
    z, target, weight = torch.zeros(1, 2), torch.tensor([0]), torch.tensor([0.0, 1.0])
    for smoothing in (0.0, 0.1):
        ours = px.entmax_loss(z, target, 1.0, weight=weight, label_smoothing=smoothing)
        theirs = F.cross_entropy(z, target, weight=weight, label_smoothing=smoothing)
        assert ours.isnan()
        assert theirs.isnan()
