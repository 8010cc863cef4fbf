"""Comprehensiveness and sufficiency: the tokens ranked first are removed, or stay alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .checked import Checked
from .removal import predict_rows
from .rows import Progress, Tokens

FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.5)  # of ERASER (DeYoung et al. 2020)


@dataclass(frozen=True)
class Erasure:
    """Changes of the predicted class's probability, for one ranking of tokens.

    Args:
        comprehensiveness: (N,): p(x) − p(x without the first k), mean over fractions.
        sufficiency: (N,): p(x) − p(the first k alone), mean over fractions.
        comprehensiveness_at: (N, fractions).
        sufficiency_at: (N, fractions).
    """

    comprehensiveness: Tensor
    sufficiency: Tensor
    comprehensiveness_at: Tensor
    sufficiency_at: Tensor


def erasure(
    model: Checked,
    rows: Sequence[Tokens],
    predictions: Tensor,
    rankings: Mapping[str, Sequence[Tensor]],
    *,
    fractions: Sequence[float] = FRACTIONS,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Erasure]:
    """AOPC of every ranking, and of a random one, under the key "random".

    Tokens are deleted and the text is read again. A fraction q of n tokens is ⌈qn⌉, but never the
    whole text. Ties, such as the zeros of sparse attention, are broken at random: texts are read
    from left to right, and that order must not count. Rankings that are not finite give NaN.

    Args:
        model: What predicts.
        rows: Tokens of texts of at least two tokens.
        predictions: (N, C) of the whole texts.
        rankings: By name, for each text a score a token; high comes first.
        fractions: Of tokens that are removed or kept.
        seed: Of ties and of the random ranking.
    """
    if not fractions or any(not 0 < q <= 1 for q in fractions):
        raise ValueError(f"fractions must lie in (0, 1], got {list(fractions)!r}")
    generator = torch.Generator().manual_seed(seed)
    ties = [torch.randperm(len(row), generator=generator, device="cpu") for row in rows]
    named: dict[str, Sequence[Tensor]] = dict(rankings)
    named["random"] = [
        torch.rand(len(row), generator=generator, dtype=torch.float64, device="cpu") for row in rows
    ]
    # many of these subsets are the same, so each is predicted once
    where: dict[tuple[int, bytes], int] = {}
    subsets: list[Tokens] = []
    needed: dict[str, Tensor] = {}
    for name, scores in named.items():
        index = torch.full((len(rows), len(fractions), 2), -1, dtype=torch.long, device="cpu")
        for t, row in enumerate(rows):
            if not bool(scores[t].isfinite().all()):
                continue
            # a stable sort of a random order breaks ties as that order does
            order = ties[t][scores[t][ties[t]].argsort(descending=True, stable=True)]
            for f, q in enumerate(fractions):
                k = min(math.ceil(q * len(row) - 1e-9), len(row) - 1)
                for side, part in enumerate((order[k:], order[:k])):
                    left = part.sort().values.numpy()
                    key = (t, left.tobytes())
                    if key not in where:
                        where[key] = len(subsets)
                        subsets.append(row[left])
                    index[t, f, side] = where[key]
        needed[name] = index
    predicted = predictions.argmax(-1)
    base = predictions.gather(-1, predicted[:, None])  # (N, 1)
    y = predict_rows(model, subsets, progress=progress, stage="erasure")
    found = {}
    for name, index in needed.items():
        rest = y[index.clamp(min=0)]  # (N, F, 2, C)
        chosen = predicted[:, None, None, None].expand(*index.shape, 1)
        drop = base[:, :, None] - rest.gather(-1, chosen)[..., 0]
        drop = drop.masked_fill(index < 0, math.nan)
        removed, alone = drop[..., 0], drop[..., 1]
        found[name] = Erasure(removed.mean(1), alone.mean(1), removed, alone)
    return found
