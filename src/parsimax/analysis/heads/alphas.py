"""Learned alphas: which values heads chose, and how they came there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Trajectory:
    """The alphas of one module during training.

    Args:
        module: which kind of attention.
        steps: (times,), ascending.
        alphas: (times, layer, head).
    """

    module: str
    steps: Tensor
    alphas: Tensor

    @property
    def final(self) -> Tensor:
        """(layer, head) at the last step."""
        return self.alphas[-1]


def histogram(alphas: Tensor, bins: int = 20) -> tuple[Tensor, Tensor]:
    """How many heads have which alpha, and the edges of the bins.

    The bins divide the values from 1 to 2, where learned alphas are; alphas of 2 are in the last.
    If there are larger ones the bins go up to the largest.
    """
    values = alphas.flatten().double()
    if not values.isfinite().all() or (values < 1).any():
        raise ValueError(
            f"alphas: expected numbers of at least 1, got {values.min().item():g} as the smallest"
        )
    top = max(2.0, float(values.max()))
    edges = torch.linspace(1.0, top, bins + 1, dtype=torch.float64, device=values.device)
    places = torch.bucketize(values, edges, right=True).clamp(1, bins) - 1
    return torch.bincount(places, minlength=bins), edges


def trajectories(lines: Iterable[Mapping[str, Any]]) -> dict[str, Trajectory]:
    """Trajectories from the lines of a run's metrics, those with ``step`` and ``alphas``.

    Of a step that occurs twice, as when a run was resumed from before it, the later line counts.
    """
    found: dict[str, dict[int, Tensor]] = {}
    for line in lines:
        if "alphas" not in line:
            continue
        for module, values in line["alphas"].items():
            alphas = torch.as_tensor(values, dtype=torch.float64, device="cpu")
            earlier = found.setdefault(module, {})
            shape = next(iter(earlier.values())).shape if earlier else alphas.shape
            if alphas.dim() != 2 or alphas.shape != shape:
                raise ValueError(
                    f"alphas of {module} at step {line['step']}: expected (layer, head) of one "
                    f"size throughout, got {tuple(alphas.shape)} after {tuple(shape)}"
                )
            earlier[int(line["step"])] = alphas
    return {
        module: Trajectory(
            module=module,
            steps=torch.tensor(sorted(by_step), device="cpu"),
            alphas=torch.stack([by_step[step] for step in sorted(by_step)]),
        )
        for module, by_step in found.items()
    }


def read_trajectories(metrics: str | Path) -> dict[str, Trajectory]:
    """Trajectories from a file of JSON lines; empty if there is no such file or no alphas in it."""
    path = Path(metrics)
    if not path.exists():
        return {}
    lines = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{number}: expected a line of JSON: {error}") from error
    return trajectories(lines)
