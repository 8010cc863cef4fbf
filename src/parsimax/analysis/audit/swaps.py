"""Other weights on the same hidden states: permutations and the uniform distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .checked import Checked
from .divergence import total_variation
from .observe import encoded
from .rows import Progress, Reporter, Tokens, generator_of


@dataclass(frozen=True)
class Swaps:
    """What a prediction does when attention's weights are exchanged; each (N,), float64.

    Args:
        permuted: Median over permutations of the total variation distance of predictions.
        permuted_flips: Share of permutations that change the predicted class.
        uniform: Distance of the prediction under uniform weights.
        uniform_flips: 1 where uniform weights change the predicted class, else 0.
        uniform_predictions: (N, C) under uniform weights.
    """

    permuted: Tensor
    permuted_flips: Tensor
    uniform: Tensor
    uniform_flips: Tensor
    uniform_predictions: Tensor


def swaps(
    model: Checked,
    rows: Sequence[Tokens],
    *,
    permutations: int = 100,
    seed: int = 0,
    progress: Progress | None = None,
) -> Swaps:
    """Jain & Wallace's permutations, and uniform weights without training again."""
    if permutations < 1:
        raise ValueError(f"permutations must be positive, got {permutations!r}")
    found = torch.empty(4, len(rows), dtype=torch.float64, device="cpu")
    uniform_predictions: Tensor | None = None
    report = Reporter(progress, "permutations", len(rows))
    for part in encoded(model, rows, permutations, model.most):
        texts, length = part.mask.shape
        keys = torch.full((texts, permutations, length), 2.0, device="cpu")  # padding stays last
        for row, i in enumerate(part.index):
            n = len(rows[i])
            keys[row, :, :n] = torch.rand(
                permutations, n, generator=generator_of(seed, i), device="cpu"
            )
        order = keys.argsort(-1).to(model.device)
        shuffled = part.a[:, None].expand(-1, permutations, -1).gather(-1, order)
        y = part.y.double()
        moved = decode_many(model, part.h, shuffled, part.mask).double()
        even = part.mask.to(part.a) / part.mask.sum(1, keepdim=True)
        with torch.no_grad():
            flat = model.decode(part.h, even, part.mask).double()
        winner = y.argmax(-1)
        values = [
            total_variation(moved, y[:, None]).quantile(0.5, dim=1),
            (moved.argmax(-1) != winner[:, None]).double().mean(1),
            total_variation(flat, y),
            (flat.argmax(-1) != winner).double(),
        ]
        found[:, part.index] = torch.stack(values).cpu()
        if uniform_predictions is None:
            uniform_predictions = torch.empty(
                len(rows), y.shape[1], dtype=torch.float64, device="cpu"
            )
        uniform_predictions[part.index] = flat.cpu()
        report.add(len(part.index))
    assert uniform_predictions is not None
    return Swaps(found[0], found[1], found[2], found[3], uniform_predictions)


def decode_many(model: Checked, h: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    """Predictions (B, K, C) of K distributions (B, K, L) on the same hidden states."""
    texts, count, length = weights.shape
    with torch.no_grad():
        y = model.decode(
            h.repeat_interleave(count, 0),
            weights.reshape(texts * count, length),
            mask.repeat_interleave(count, 0),
        )
    return y.reshape(texts, count, -1)
