"""Predictions and attention of all texts, and which texts an audit cannot use."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .auditable import Text
from .checked import HALF, Checked
from .rows import Progress, Reporter, Tokens, batches, tokens_of

_SUM = 1e-3  # within which weights and probabilities sum to one, unless their dtype is coarser


@dataclass(frozen=True)
class Exclusion:
    """A text that takes no part, and why; ``index`` counts the texts as they were given."""

    index: int
    reason: str


@dataclass(frozen=True)
class Observed:
    """What a model says about the texts that can be audited.

    Args:
        kept: Where each of them stands among the texts as given.
        rows: Their tokens.
        predictions: (N, C), float64.
        attention: For each (n,), float64.
        excluded: The other texts.
    """

    kept: tuple[int, ...]
    rows: tuple[Tokens, ...]
    predictions: Tensor
    attention: tuple[Tensor, ...]
    excluded: tuple[Exclusion, ...]


def observe(model: Checked, texts: Sequence[Text], progress: Progress | None = None) -> Observed:
    """Run the model once over all texts; texts of fewer than two tokens have nothing to rank."""
    rows = tokens_of(texts)
    reasons = {i: _too_short(row) for i, row in enumerate(rows)}
    usable = [i for i, reason in reasons.items() if not reason]
    _require(usable, reasons, len(rows))
    _check_independence(model, [rows[i] for i in usable])
    attention: dict[int, Tensor] = {}
    predictions: dict[int, Tensor] = {}
    lengths = [len(rows[i]) for i in usable]
    report = Reporter(progress, "predictions and attention", len(usable))
    footprint = model.footprint([rows[i] for i in usable])
    for index in batches(lengths, footprint, model.memory, most=model.most):
        chosen = [usable[j] for j in index]
        y, a, mask = model.predict([rows[i] for i in chosen])
        _check_padding(a, mask)
        dtypes = a.dtype, y.dtype
        y, a = y.double().cpu(), a.double().cpu()
        for i, prediction, weights in zip(chosen, y, a, strict=True):
            predictions[i] = prediction
            attention[i] = weights[: len(rows[i])].clone()
            reasons[i] = _unusable(attention[i], prediction, *dtypes)
            if not reasons[i] and dtypes[0] in HALF:  # whose sums are off by more than others'
                attention[i] /= attention[i].sum()
        report.add(len(chosen))
    kept = [i for i in usable if not reasons[i]]
    _require(kept, reasons, len(rows))
    return Observed(
        tuple(kept),
        tuple(rows[i] for i in kept),
        torch.stack([predictions[i] for i in kept]),
        tuple(attention[i] for i in kept),
        tuple(Exclusion(i, reason) for i, reason in reasons.items() if reason),
    )


@dataclass(frozen=True)
class Encoded:
    """Hidden states of one batch, computed once: indices, h, weights, predictions and mask."""

    index: list[int]
    h: Tensor
    a: Tensor
    y: Tensor
    mask: Tensor


def encoded(model: Checked, rows: Sequence[Tokens], copies: int, most: int) -> Iterator[Encoded]:
    """All texts, in batches whose hidden states fit ``copies`` times into the budget."""
    lengths = [len(row) for row in rows]
    footprint = model.footprint(rows)
    for index in batches(lengths, footprint, model.memory, copies=lambda length: copies, most=most):
        with torch.no_grad():
            tokens, mask = model.batch([rows[i] for i in index])
            h = model.encode(model.embed(tokens), mask)
            a = model.attend(h, mask)
            y = model.decode(h, a, mask)
        yield Encoded(index, h.detach(), a.detach(), y.detach(), mask)


def _too_short(row: Tokens) -> str:
    return {0: "no tokens", 1: "one token"}.get(len(row), "")


def _tolerance(dtype: torch.dtype) -> float:
    """Each of the numbers is off by half a unit, and so is what they were normalised by."""
    return max(_SUM, 2 * torch.finfo(dtype).eps)


def _unusable(
    weights: Tensor, prediction: Tensor, weights_dtype: torch.dtype, dtype: torch.dtype
) -> str:
    if not bool(weights.isfinite().all()):
        return "attention weights are not finite"
    if not bool(prediction.isfinite().all()):
        return "prediction is not finite"
    if bool((weights < 0).any()):
        return "attention weights are negative"
    if abs(float(weights.sum()) - 1) > _tolerance(weights_dtype):
        named = f" (in {weights_dtype})" if weights_dtype in HALF else ""
        return f"attention weights do not sum to one{named}"
    allowed = _tolerance(dtype)
    if bool((prediction < -allowed).any()) or abs(float(prediction.sum()) - 1) > allowed:
        what = f"{[round(value, 4) for value in prediction.tolist()]} in {dtype}"
        if bool((prediction >= 0).all()) and abs(float(prediction.sum()) - 1) < 0.1:
            advice = f"their sum is off by more than {allowed:.2g}; compute softmax in float32"
        else:
            advice = "apply softmax to logits"
        raise ValueError(
            "auditable.decode must return probabilities that sum to one over classes, got "
            f"{what}; {advice}"
        )
    return ""


def _require(kept: Sequence[int], reasons: dict[int, str], total: int) -> None:
    if not kept:
        counts = Counter(reason for reason in reasons.values() if reason)
        why = ", ".join(f"{count} with {reason!r}" for reason, count in counts.items())
        raise ValueError(
            f"texts must have at least one that can be audited; of {total} none is left"
            + (f": {why}" if why else "")
        )


def _check_padding(a: Tensor, mask: Tensor) -> None:
    outside = a.detach().masked_fill(mask, 0.0)
    if bool((outside.abs() > 0).any()):
        raise ValueError(
            "auditable.attend must give weight zero where mask is False, got "
            f"{float(outside.abs().max()):.3g} at padding"
        )


def _check_independence(model: Checked, rows: Sequence[Tokens]) -> None:
    """A text must come out the same alone, twice, and beside a longer, different one."""
    short, long = min(rows, key=len), max(rows, key=len)
    if len(short) == len(long):
        # cut, so that there is padding; longer than all texts may be more than a model can read
        short = short[:-1]
        long = max(rows, key=lambda row: int((row[: len(short)] != short).sum()))
    alone = model.predict([short])
    again = model.predict([short])
    beside = model.predict([short, long])
    _check_padding(beside[1], beside[2])
    n = len(short)
    for name, part in (("prediction", 0), ("attention", 1)):
        first = alone[part][0, : n if part else None]
        for other, cause in (
            (again, "differs between two calls; is dropout on? Call model.eval() first"),
            (beside, "depends on the other texts of its batch; check what is done with mask"),
        ):
            second = other[part][0, : n if part else None]
            # batches of other sizes are rounded differently, in half precision coarsely
            tolerance = max(3e-4, math.sqrt(torch.finfo(first.dtype).eps))
            if bool(((first - second).abs() > tolerance).any()):
                raise ValueError(
                    f"the {name} of a text {cause} (text of {n} tokens: "
                    f"{float((first - second).abs().max()):.3g} apart)"
                )
