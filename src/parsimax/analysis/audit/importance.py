"""How much each token matters to a prediction or to a hidden state, batched over texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from parsimax._core.validation import check_choice

from .auditable import Auditable, Text
from .checked import DEFAULT_MEMORY, Checked
from .gradients import prediction_gradients
from .methods import LeaveOneOut, Method, method_of
from .removal import leave_out_hidden, leave_out_inputs, leave_out_states
from .rows import Footprint, Progress, Reporter, Tokens, batches, tokens_of
from .state_gradients import copies_for, pulled_gradients, state_gradients, texts_together


def importance(
    auditable: Auditable,
    texts: Sequence[Text],
    method: str | Method = "gradient_norm",
    *,
    source: str = "inputs",
    target: str = "prediction",
    normalise: bool = True,
    device: torch.device | str = "cpu",
    memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
) -> list[Tensor]:
    """Importance of every token of every text.

    Args:
        auditable: The model's four functions.
        texts: Texts of at least one token each.
        method: A name ("gradient_norm", "gradient_x_input", "integrated_gradients",
            "leave_one_out") or an object of such a class, which spells out its choices.
        source: "inputs" (what ``embed`` returns) or "hidden" (what ``encode`` returns).
        target: "prediction": the probability of the class that the model predicts, for removals
            the total variation distance of all classes; or "hidden": the norm of each state.
        normalise: Divide by the sum over tokens, so that values are shares. All zeros stay zeros.
        device: Where the model is.
        memory: Bytes that a batch may take.
        progress: Called with stage, done, total.

    Returns:
        For each text a float64 tensor (n,), or for ``target="hidden"`` (n, n), whose entry
        [p, i] is the influence of input i on hidden state p. Without the only token of a text
        there is no text: that importance is NaN.
    """
    check_choice(source, "source", ("inputs", "hidden"))
    check_choice(target, "target", ("prediction", "hidden"))
    if (source, target) == ("hidden", "hidden"):
        raise ValueError("target='hidden' is defined for source='inputs' only")
    rows = tokens_of(texts)
    if any(len(row) == 0 for row in rows):
        empty = next(i for i, row in enumerate(rows) if len(row) == 0)
        raise ValueError(f"texts must have at least one token each, text {empty} has none")
    if not rows:
        return []
    model = Checked(auditable, device, memory)
    chosen = method_of(method)
    if target == "hidden":
        found = to_states(model, rows, chosen, progress=progress)
    else:
        found = to_prediction(model, rows, chosen, source, progress=progress)
    return [shares(value) for value in found] if normalise else found


def shares(values: Tensor) -> Tensor:
    """Divided by the sum along the last dimension; zeros stay zeros."""
    total = values.sum(-1, keepdim=True)
    return values / torch.where(total == 0, 1.0, total)


def to_prediction(
    model: Checked,
    rows: Sequence[Tokens],
    method: Method,
    source: str,
    *,
    progress: Progress | None = None,
    stage: str = "importance",
) -> list[Tensor]:
    """Importance (n,) of each text's inputs or hidden states for its prediction."""
    if isinstance(method, LeaveOneOut):
        leave = leave_out_inputs if source == "inputs" else leave_out_hidden
        return leave(model, rows, method, progress=progress, stage=stage)
    lengths = [len(row) for row in rows]
    found: list[Tensor] = [torch.empty(0, device="cpu")] * len(rows)
    report = Reporter(progress, stage, len(rows))
    for index in batches(lengths, model.footprint(rows), model.memory, most=model.most):
        tokens, mask = model.batch([rows[i] for i in index])
        values = prediction_gradients(model, tokens, mask, method, source).double().cpu()
        for i, value in zip(index, values, strict=True):
            found[i] = value[: lengths[i]].clone()
        report.add(len(index))
    return found


def to_states(
    model: Checked,
    rows: Sequence[Tokens],
    method: Method,
    *,
    states: Sequence[Tensor] | None = None,
    progress: Progress | None = None,
    stage: str = "inputs to hidden states",
) -> list[Tensor]:
    """Influence (P, n) of each text's inputs on its hidden states, all or those asked for."""
    if states is not None and isinstance(method, LeaveOneOut):
        raise ValueError("a choice of states is not supported by leave-one-out")
    lengths = [len(row) for row in rows]
    wanted = lengths if states is None else [len(s) for s in states]
    found: list[Tensor] = [torch.empty(0, device="cpu")] * len(rows)
    footprint = model.footprint(rows)
    report = Reporter(progress, stage, len(rows))
    if model.pulls and not isinstance(method, LeaveOneOut):
        for index in _alike(lengths, states, footprint, model.memory):
            tokens, _ = model.batch([rows[i] for i in index])
            every = torch.arange(lengths[index[0]], device="cpu")
            at = every if states is None else states[index[0]]
            most = footprint.rows(tokens.shape[1], model.memory)
            values = pulled_gradients(model, tokens, at, method, most).double()
            for i, value in zip(index, values, strict=True):
                found[i] = value
            report.add(len(index))
        return found
    size = copies_for(1, 2**30, model.device)
    for index in batches(lengths, footprint, model.memory, most=size):
        tokens, mask = model.batch([rows[i] for i in index])
        if isinstance(method, LeaveOneOut):
            values = leave_out_states(
                model, tokens, mask, method, footprint.rows(mask.shape[1], model.memory)
            )
        else:
            fit = footprint.rows(mask.shape[1], model.memory) // len(index)
            count = copies_for(len(index), max(wanted[i] for i in index), model.device)
            values = state_gradients(
                model,
                tokens,
                mask,
                method,
                None if states is None else [states[i] for i in index],
                copies=max(1, min(count, fit)),
            )
        values = values.double().cpu()
        for i, value in zip(index, values, strict=True):
            found[i] = value[: wanted[i], : lengths[i]].clone()
        report.add(len(index))
    return found


def _alike(
    lengths: Sequence[int],
    states: Sequence[Tensor] | None,
    footprint: Footprint,
    memory: int,
) -> Iterator[list[int]]:
    """Texts of one length that are asked for the same states, some at a time, longest first."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, length in enumerate(lengths):
        key = (length,) if states is None else (length, *states[i].tolist())
        groups.setdefault(key, []).append(i)
    for key, group in sorted(groups.items(), key=lambda item: -item[0][0]):
        size = min(footprint.rows(key[0], memory), texts_together(key[0]))
        for start in range(0, len(group), size):
            yield group[start : start + size]
