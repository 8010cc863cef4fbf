"""What a record must be before anything is measured on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from parsimax._core.records import AttentionRecord

# Half precision moves the sum of a row by less than this; dropout, which is what is looked for,
# moves it by ten times as much.
_SUM_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Sentence:
    """A record that was checked, with what every measure needs of it.

    Args:
        record: on the CPU.
        weights: (layer, head, Lq, Lk) in float64, each row with a sum of 1 or of 0; with a budget
            of k they are divided by k.
        nonzero: the same shape, from the weights as they were given, in their own precision.
        allowed: (Lq, Lk).
        live: (layer, head, Lq), rows that have any weight.
    """

    record: AttentionRecord
    weights: Tensor
    nonzero: Tensor
    allowed: Tensor
    live: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Layers and heads."""
        return self.weights.shape[0], self.weights.shape[1]


def sentences(records: Iterable[AttentionRecord]) -> Iterator[Sentence]:
    """Check each record; all of one module must have as many layers and heads.

    Raises:
        ValueError: a record that cannot be measured, by its number from 1 and what is wrong.
    """
    shapes: dict[str, tuple[int, int]] = {}
    number = 0
    for number, record in enumerate(records, start=1):
        checked = check(record, f"record {number}")
        before = shapes.setdefault(record.module, checked.shape)
        if checked.shape != before:
            raise ValueError(
                f"record {number}: expected {before[0]} layers of {before[1]} heads, as in the "
                f"records of module {record.module!r} before it, got {checked.shape[0]} of "
                f"{checked.shape[1]}; give the records of different models to different calls"
            )
        yield checked
    if not number:
        raise ValueError("records: expected at least one record, got none")


def check(record: AttentionRecord, where: str = "record") -> Sentence:
    """Check one record.

    Args:
        record: from a model, or made by hand.
        where: what messages call it.
    """
    given = record.weights
    where = f"{where} (module {record.module!r})"
    if not isinstance(given, Tensor) or not given.is_floating_point():
        what = f"a tensor of {given.dtype}" if isinstance(given, Tensor) else type(given).__name__
        raise ValueError(
            f"{where}: weights must be a floating-point tensor (layer, head, queries, keys), got "
            f"{what}; a model that returns no attention weights cannot be analysed"
        )
    expected = (len(record.query_tokens), len(record.tokens))
    if given.dim() != 4 or given.shape[-2:] != expected or 0 in given.shape:
        raise ValueError(
            f"{where}: weights must be (layer, head, {expected[0]} queries, {expected[1]} keys), "
            f"as many as there are tokens and at least one of each, got {tuple(given.shape)}"
        )
    given = given.detach().cpu()
    if not given.isfinite().all():
        layer, head = _first(~given.isfinite())
        raise ValueError(
            f"{where}: weights must be finite, got NaN or infinity in layer {layer}, head {head}"
        )
    if (given < 0).any():
        layer, head = _first(given < 0)
        raise ValueError(
            f"{where}: weights must not be negative, got {given.min().item():.3g} in layer "
            f"{layer}, head {head}; these look like scores, before any softmax"
        )
    allowed = _allowed(record, where)
    forbidden = (given > 0) & ~allowed
    if forbidden.any():
        layer, head = _first(forbidden)
        raise ValueError(
            f"{where}: layer {layer}, head {head} gives weight to a key that `allowed` rules out"
        )
    weights = given.double()
    sums = weights.sum(-1, keepdim=True)
    live = sums > 0
    _check_sums(sums[live], where)
    if (given > 1 + _SUM_TOLERANCE).any():  # a budget of k has sums of k, of weights up to 1
        layer, head = _first(given > 1 + _SUM_TOLERANCE)
        raise ValueError(
            f"{where}: weights must be at most 1, got {given.max().item():.4g} in layer {layer}, "
            f"head {head}; these look like scores, or weights that were multiplied"
        )
    return Sentence(
        record=replace(record, weights=given, allowed=allowed),
        weights=weights / torch.where(live, sums, 1.0),
        nonzero=given > 0,
        allowed=allowed,
        live=live.squeeze(-1),
    )


def _allowed(record: AttentionRecord, where: str) -> Tensor:
    shape = record.weights.shape[-2:]
    if record.allowed is None:
        return torch.ones(shape, dtype=torch.bool, device="cpu")
    if record.allowed.dtype != torch.bool or record.allowed.shape != shape:
        raise ValueError(
            f"{where}: allowed must be bool {tuple(shape)}, got {record.allowed.dtype} "
            f"{tuple(record.allowed.shape)}"
        )
    return record.allowed.detach().cpu()


def _check_sums(sums: Tensor, where: str) -> None:
    """All rows have the same sum: 1, or where attention has a budget of k, a real number, k."""
    if not sums.numel():
        return
    low, high = sums.min().item(), sums.max().item()
    if high - low > _SUM_TOLERANCE * high or high < 1 - _SUM_TOLERANCE:
        raise ValueError(
            f"{where}: the weights of a query must sum to 1 (or all to k, with a budget of k), got "
            f"sums from {low:.4g} to {high:.4g}; was the model in training mode, with dropout? "
            "call model.eval() first"
        )


def _first(wrong: Tensor) -> tuple[int, int]:
    """Layer and head of the first that is wrong, counted from 1."""
    place = wrong.nonzero()[0].tolist()
    return place[0] + 1, place[1] + 1
