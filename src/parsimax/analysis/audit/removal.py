"""What changes when tokens or hidden states are taken away, in flat batches of similar length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .checked import Checked, rounding
from .divergence import total_variation
from .methods import LeaveOneOut
from .rows import Progress, Reporter, Tokens, batches, pad_values


def predict_rows(
    model: Checked,
    rows: Sequence[Tokens],
    weights: Sequence[Tensor] | None = None,
    *,
    progress: Progress | None = None,
    stage: str = "predictions",
) -> Tensor:
    """Probabilities (N, C) of many token rows, in float64; ``weights`` replace attention's own."""
    footprint = model.footprint(rows)
    report = Reporter(progress, stage, len(rows))
    found: Tensor | None = None
    for index in batches([len(r) for r in rows], footprint, model.memory, most=model.most):
        with torch.no_grad():
            tokens, mask = model.batch([rows[i] for i in index])
            h = model.encode(model.embed(tokens), mask)
            if weights is None:
                a = model.attend(h, mask)
            else:
                a = pad_values([weights[i] for i in index]).to(h)
            y = model.decode(h, a, mask).double().cpu()
        if found is None:
            found = torch.empty(len(rows), y.shape[1], dtype=torch.float64, device="cpu")
        found[index] = y
        report.add(len(index))
    assert found is not None
    return found


def leave_out_inputs(
    model: Checked,
    rows: Sequence[Tokens],
    method: LeaveOneOut,
    *,
    progress: Progress | None = None,
    stage: str = "leave-one-out",
) -> list[Tensor]:
    """For each text the distance between its prediction and that without token i, for each i."""
    whole = predict_rows(model, rows)
    base: Sequence[Tensor] | None = None
    if method.attention != "recomputed":
        base = _weights(model, rows)
    if method.removal == "zero":
        without = _predict_zeroed(model, rows, method, base, progress, stage)
    else:
        texts, shorter, weights = [], [], []
        for t, row in enumerate(rows):
            for i in range(len(row)):
                if method.removal == "replace":
                    assert method.replacement is not None
                    left = row.copy()
                    left[i] = method.replacement
                else:
                    left = np.delete(row, i)
                if len(left) == 0:
                    continue
                texts.append(t)
                shorter.append(left)
                if base is not None:
                    weights.append(_without(base[t], i, method))
        if not shorter:
            return [
                torch.full((len(row),), float("nan"), dtype=torch.float64, device="cpu")
                for row in rows
            ]
        without = predict_rows(
            model,
            shorter,
            weights if base is not None else None,
            progress=progress,
            stage=stage,
        )
        moved = _rounded(total_variation(without, whole[texts]), model.dtype)
        return _split(moved, rows, defined=method.removal == "replace")
    lengths = torch.tensor([len(row) for row in rows], device="cpu")
    index = torch.repeat_interleave(torch.arange(len(rows), device="cpu"), lengths)
    moved = _rounded(total_variation(without, whole[index]), model.dtype)
    return _split(moved, rows, defined=True)


def leave_out_hidden(
    model: Checked,
    rows: Sequence[Tokens],
    method: LeaveOneOut,
    *,
    progress: Progress | None = None,
    stage: str = "leave-one-out",
) -> list[Tensor]:
    """The same for hidden states, which are computed once from the whole text."""
    if method.removal == "replace":
        raise ValueError("removal='replace' puts a token in place and is for inputs only")
    lengths = [len(row) for row in rows]
    footprint = model.footprint(rows)
    report = Reporter(progress, stage, len(rows))
    found = [torch.full((n,), float("nan"), dtype=torch.float64, device="cpu") for n in lengths]
    for index in batches(lengths, footprint, model.memory, most=model.most):
        with torch.no_grad():
            tokens, mask = model.batch([rows[i] for i in index])
            h = model.encode(model.embed(tokens), mask)
            a = model.attend(h, mask)
            y = model.decode(h, a, mask).double()
            defined = mask if method.removal == "zero" else mask & (mask.sum(1) > 1)[:, None]
            text, gone = defined.nonzero(as_tuple=True)
            size = footprint.rows(mask.shape[1], model.memory)
            left = [
                total_variation(_predict_without(model, h, a, mask, method, t, g), y[t]).cpu()
                for t, g in zip(torch.split(text, size), torch.split(gone, size), strict=True)
            ]
        moved = torch.cat(left) if left else torch.empty(0, dtype=torch.float64, device="cpu")
        moved = _rounded(moved, model.dtype)
        start = 0
        for row, i in enumerate(index):
            if bool(defined[row].any()):
                found[i] = moved[start : start + lengths[i]].clone()
                start += lengths[i]
        report.add(len(index))
    return found


def _predict_without(
    model: Checked,
    h: Tensor,
    a: Tensor,
    mask: Tensor,
    method: LeaveOneOut,
    text: Tensor,
    gone: Tensor,
) -> Tensor:
    """Predictions of the given texts without the given hidden states, in float64."""
    rows = torch.arange(len(text), device=h.device)
    if method.removal == "zero":
        part, part_mask, weights = h[text], mask[text], a[text]
        part[rows, gone] = 0.0
        weights[rows, gone] = 0.0
    else:
        # what stands behind the gap moves up by one
        position = torch.arange(h.shape[1] - 1, device=h.device)
        source = position + (position >= gone[:, None]).long()
        part, part_mask, weights = (t[text[:, None], source] for t in (h, mask, a))
    if method.attention == "recomputed":
        weights = model.attend(part, part_mask)
    elif method.attention == "renormalised":
        weights = _normalised(weights)
    return model.decode(part, weights, part_mask).double()


def leave_out_states(
    model: Checked, tokens: Tensor, mask: Tensor, method: LeaveOneOut, size: int
) -> Tensor:
    """How far ‖h_p‖₂ moves, (B, P, L), when input i becomes a zero vector or is deleted.

    With "delete" the state of a deleted token is gone, and its norm counts as fallen to zero.
    ``size`` rows are encoded at once.
    """
    if method.removal == "replace":
        raise ValueError("removal='replace' is not defined from inputs to hidden states")
    texts, length = mask.shape
    with torch.no_grad():
        x = model.embed(tokens)
        norms = torch.linalg.vector_norm(model.encode(x, mask), dim=-1)  # (B, L)
        found = torch.zeros(texts, length, length, dtype=norms.dtype, device=norms.device)
        every_text, every_gone = mask.nonzero(as_tuple=True)
        for text, gone in zip(
            torch.split(every_text, size), torch.split(every_gone, size), strict=True
        ):
            if method.removal == "zero":
                part = x[text]
                part[torch.arange(len(text), device=x.device), gone] = 0.0
                left = torch.linalg.vector_norm(model.encode(part, mask[text]), dim=-1)
            else:
                left = _norms_without(model, tokens, mask, norms, text, gone)
            found[text, :, gone] = (norms[text] - left).abs().masked_fill(~mask[text], 0.0)
    return found


def _norms_without(
    model: Checked, tokens: Tensor, mask: Tensor, norms: Tensor, text: Tensor, gone: Tensor
) -> Tensor:
    """‖h_p‖ (rows, P) after a token is deleted, at the old positions; zero for the one deleted."""
    left = torch.zeros(len(text), mask.shape[1], dtype=norms.dtype, device=norms.device)
    some = mask.sum(1)[text] > 1
    text, gone = text[some], gone[some]
    if len(text):
        position = torch.arange(mask.shape[1] - 1, device=norms.device)
        source = position + (position >= gone[:, None]).long()
        part_mask = mask[text[:, None], source]
        h = model.encode(model.embed(tokens[text[:, None], source]), part_mask)
        left[some] = left[some].scatter(1, source, torch.linalg.vector_norm(h, dim=-1))
    return left


def _rounded(moved: Tensor, dtype: torch.dtype) -> Tensor:
    """Distances in steps of the rounding of the model's dtype.

    A state without weight can be removed and nothing changes, but another batch is rounded
    otherwise. What is only rounding must not decide an order of tokens: those are ties.
    """
    step = rounding(dtype)
    return (moved / step).round() * step


def _weights(model: Checked, rows: Sequence[Tokens]) -> list[Tensor]:
    found: list[Tensor] = [torch.empty(0, device="cpu")] * len(rows)
    lengths = [len(row) for row in rows]
    for index in batches(lengths, model.footprint(rows), model.memory, most=model.most):
        _, a, _ = model.predict([rows[i] for i in index])
        for i, weights in zip(index, a, strict=True):
            found[i] = weights[: lengths[i]]
    return found


def _without(weights: Tensor, i: int, method: LeaveOneOut) -> Tensor:
    if method.removal == "delete":
        left = torch.cat([weights[:i], weights[i + 1 :]])
    else:
        left = weights.clone()
        left[i] = 0.0
    return _normalised(left) if method.attention == "renormalised" else left


def _normalised(weights: Tensor) -> Tensor:
    """Rows that sum to one; a row without weight stays without."""
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total > 0, total, 1.0)


def _predict_zeroed(
    model: Checked,
    rows: Sequence[Tokens],
    method: LeaveOneOut,
    base: Sequence[Tensor] | None,
    progress: Progress | None,
    stage: str,
) -> Tensor:
    """Predictions with a zero vector for token i, all texts and tokens after one another."""
    flat = [(t, i) for t, row in enumerate(rows) for i in range(len(row))]
    lengths = [len(rows[t]) for t, _ in flat]
    report = Reporter(progress, stage, len(flat))
    found: Tensor | None = None
    for index in batches(lengths, model.footprint(rows), model.memory, most=model.most):
        chosen = [flat[j] for j in index]
        with torch.no_grad():
            tokens, mask = model.batch([rows[t] for t, _ in chosen])
            x = model.embed(tokens).clone()
            gone = torch.tensor([i for _, i in chosen], device="cpu")
            x[torch.arange(len(chosen), device="cpu"), gone] = 0.0
            h = model.encode(x, mask)
            if base is None:
                a = model.attend(h, mask)
            else:
                a = pad_values([_without(base[t], i, method) for t, i in chosen]).to(h)
            y = model.decode(h, a, mask).double().cpu()
        if found is None:
            found = torch.empty(len(flat), y.shape[1], dtype=torch.float64, device="cpu")
        found[index] = y
        report.add(len(index))
    assert found is not None
    return found


def _split(flat: Tensor, rows: Sequence[Tokens], *, defined: bool) -> list[Tensor]:
    """One tensor a text; a single token has nothing left without it, and its value is NaN."""
    found, start = [], 0
    for row in rows:
        if len(row) == 1 and not defined:
            found.append(torch.full((1,), float("nan"), dtype=torch.float64, device="cpu"))
            continue
        found.append(flat[start : start + len(row)].clone())
        start += len(row)
    return found
