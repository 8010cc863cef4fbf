"""Distances between distributions that stay finite where weights are zero."""

from __future__ import annotations

import torch
from torch import Tensor


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    """½ Σ |p − q| along the last dimension; for two classes that is |Δŷ|.

    >>> total_variation(torch.tensor([0.9, 0.1]), torch.tensor([0.7, 0.3]))
    tensor(0.2000)
    """
    return (p - q).abs().sum(-1) / 2


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """Jensen–Shannon divergence in nats along the last dimension, from 0 to log 2 = 0.693.

    It is finite whatever is zero, unlike KL.

    >>> jensen_shannon(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    tensor(0.6931)
    """
    m = (p + q) / 2
    # max: rounding may leave a difference of equal distributions a little below zero
    return (entropy(m) - (entropy(p) + entropy(q)) / 2).clamp(min=0.0)


def smoothed_kl(
    p: Tensor, q: Tensor, mask: Tensor | None = None, smoothing: float = 1e-6
) -> Tensor:
    """KL(p ‖ q) after both are mixed with ``smoothing`` of the uniform distribution.

    Wiegreffe & Pinter's KL has no value where q is zero and p is not; this one has, but the value
    there is about −log(smoothing) and so says as much about the smoothing as about the weights.

    >>> smoothed_kl(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0]), smoothing=0.0)
    tensor(inf)
    >>> smoothed_kl(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0])).isfinite()
    tensor(True)
    """
    if mask is None:
        uniform = torch.full_like(p, 1.0 / p.shape[-1])
    else:
        uniform = mask.to(p.dtype) / mask.sum(-1, keepdim=True).clamp(min=1)
    p = (1 - smoothing) * p + smoothing * uniform
    q = (1 - smoothing) * q + smoothing * uniform
    # masked entries are zero in both; neither log nor its gradient must be asked for there
    log_p = torch.where(p > 0, p, 1.0).log()
    log_q = torch.where((q > 0) | (p > 0), q, 1.0).log()
    return (p * (log_p - log_q)).sum(-1)


def entropy(p: Tensor) -> Tensor:
    """−Σ p log p in nats along the last dimension, with 0 log 0 = 0."""
    return -torch.xlogy(p, p).sum(-1)


def normalised_entropy(p: Tensor) -> Tensor:
    """Entropy over its largest value, log n: 1 for the uniform distribution, 0 for one-hot.

    A scalar for one distribution (n,); NaN if it has one entry or nothing to normalise.

    >>> normalised_entropy(torch.tensor([0.5, 0.5, 0.0, 0.0]))
    tensor(0.5000)
    """
    n = p.shape[-1]
    total = p.sum(-1, keepdim=True)
    share = p / total  # NaN if all is zero, which is right: there is no distribution
    value = entropy(share) / torch.log(torch.tensor(float(n), dtype=p.dtype, device=p.device))
    return value if n > 1 else torch.full_like(value, float("nan"))
