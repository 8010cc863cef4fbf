"""AdaptiveAlpha: alpha = 1 + sigmoid(a), one a head."""

from __future__ import annotations

import math

import pytest
import torch

import parsimax as px


def test_is_one_plus_the_sigmoid() -> None:
    alpha = px.nn.AdaptiveAlpha(3, dtype=torch.float64)
    with torch.no_grad():
        alpha.a.copy_(torch.tensor([-2.0, 0.0, 3.0]))
    expected = [1 + 1 / (1 + math.exp(-a)) for a in (-2.0, 0.0, 3.0)]
    torch.testing.assert_close(alpha(), torch.tensor(expected, dtype=torch.float64))
    assert alpha.state_dict().keys() == {"a"}


def test_starts_from_a_normal_distribution() -> None:
    torch.manual_seed(0)
    a = px.nn.AdaptiveAlpha(20_000).a.detach()
    # five standard errors of a mean and of a standard deviation
    assert abs(a.mean()) < 5 / 20_000**0.5
    assert abs(a.std() - 1) < 5 / 40_000**0.5
    assert abs((a**4).mean() - 3) < 5 * (96 / 20_000) ** 0.5  # the kurtosis of a normal


@pytest.mark.parametrize("init", [1.05, 1.5, 1.9])
def test_starts_where_it_is_told(init: float) -> None:
    alpha = px.nn.AdaptiveAlpha(4, init=init)
    torch.testing.assert_close(alpha(), torch.full((4,), init))
    with torch.no_grad():
        alpha.a.zero_()
    alpha.reset_parameters()
    torch.testing.assert_close(alpha(), torch.full((4,), init))
    assert repr(alpha) == f"AdaptiveAlpha(4, init={init})"


def test_cannot_leave_the_range_of_entmax() -> None:
    alpha = px.nn.AdaptiveAlpha(2)
    with torch.no_grad():
        alpha.a.copy_(torch.tensor([-1e4, 1e4]))
    assert alpha().tolist() == [1.0, 2.0]
    q = torch.randn(1, 2, 3, 4)
    assert px.attention(q, q, q, alpha=alpha()).isfinite().all()


def test_half_precision_keeps_small_steps() -> None:
    """In bfloat16 alpha itself would move in steps of 1/128."""
    alpha = px.nn.AdaptiveAlpha(2, init=1.5, dtype=torch.bfloat16)
    with torch.no_grad():
        alpha.a[0] = 2**-10
    assert alpha().dtype == torch.float32
    moved, still = alpha().tolist()
    assert 0 < moved - still < 2**-10
    q = torch.randn(1, 2, 3, 4, dtype=torch.bfloat16)
    assert px.attention(q, q, q, alpha=alpha()).dtype == torch.bfloat16


@pytest.mark.parametrize("init", [1.0, 2.0, 0.5, float("nan")])
def test_bad_init(init: float) -> None:
    with pytest.raises(ValueError, match=f"init must be strictly between 1 and 2, got {init}"):
        px.nn.AdaptiveAlpha(4, init=init)


def test_bad_number_of_heads() -> None:
    with pytest.raises(ValueError, match="num_heads must be at least 1, got 0"):
        px.nn.AdaptiveAlpha(0)
