"""Optimisers, and what happens to gradients between backward and step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from parsimax.seq2seq.config import OptimizerSettings

_DECAYS = "decays"  # of a group of parameters: whether weight decay is for it


def make_optimizer(
    parameters: Iterable[nn.Parameter], settings: OptimizerSettings
) -> torch.optim.Optimizer:
    """The optimiser of the settings, fused into one kernel where there is one.

    Weights decay in matrices alone. Biases, the factors of norms and what learned alphas are made
    of are vectors, and there is no reason to draw them to zero.
    """
    trained = [p for p in parameters if p.requires_grad]
    how: dict[str, object] = {"lr": settings.lr}
    if _can_fuse(trained):
        how["fused"] = True
    groups: list[dict[str, Any]] = []
    for decays in (True, False):
        members = [p for p in trained if (p.ndim >= 2) == decays]
        if members:
            weight_decay = settings.weight_decay if decays else 0.0
            groups.append({"params": members, _DECAYS: decays, "weight_decay": weight_decay})
    if settings.kind == "sgd":
        return torch.optim.SGD(groups, momentum=settings.momentum, **how)  # type: ignore[arg-type]
    how |= {"betas": settings.betas, "eps": settings.eps}
    if settings.kind == "adam":
        return torch.optim.Adam(groups, **how)  # type: ignore[arg-type]
    return torch.optim.AdamW(groups, **how)  # type: ignore[arg-type]


def apply_settings(optimizer: torch.optim.Optimizer, settings: OptimizerSettings) -> None:
    """Put the settings in place of those that came with an older state."""
    values: dict[str, object] = {"momentum": settings.momentum, "betas": settings.betas}
    values["eps"] = settings.eps
    for group in optimizer.param_groups:
        group["weight_decay"] = settings.weight_decay if group[_DECAYS] else 0.0
        group.update({name: value for name, value in values.items() if name in group})


def _can_fuse(parameters: Sequence[nn.Parameter]) -> bool:
    return all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters)


@torch.no_grad()
def rescale(
    parameters: Iterable[nn.Parameter], scale: float | Tensor, clip: float | None
) -> Tensor:
    """Multiply gradients by ``scale`` and then clip them by their norm, which is returned.

    Nothing waits for the device. Sharded gradients are scaled where they are; their norm is that
    of all shards together.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    sharded = any(isinstance(g, DTensor) for g in gradients)
    local = [g.to_local() if isinstance(g, DTensor) else g for g in gradients]
    norm = nn.utils.get_total_norm(local)
    if sharded:
        square = norm.square()
        dist.all_reduce(square)
        norm = square.sqrt()
    norm = norm * scale
    factor = scale if clip is None else scale * (clip / (norm + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(local, factor)
    return norm
