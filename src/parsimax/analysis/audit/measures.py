"""From weights and importances to columns: one number a text for every measure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .adversarial import Adversarial
from .bootstrap import Column, difference
from .checked import DEFAULT_MEMORY
from .divergence import normalised_entropy
from .erasure import Erasure
from .rank import RankCorrelation, kendall_tau, top_k_overlap
from .swaps import Swaps

SIGNIFICANT = 0.05
FAR = math.log(2) / 2  # half of the largest Jensen–Shannon divergence


class Measure(NamedTuple):
    """What a number is: a measure of a subject, perhaps beside a reference.

    ``Measure("tau_b", "attention", "gradient_norm:inputs")``, for instance.
    """

    name: str
    subject: str
    reference: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in self if part)


Columns = dict[Measure, Column]


def agreement(
    attention: Sequence[Tensor],
    importances: Mapping[str, Sequence[Tensor]],
    *,
    top: Sequence[int] = (1, 3, 5),
    memory: int = DEFAULT_MEMORY,
) -> Columns:
    """τ-b with its ceiling, τ on the support and top-k overlap, of attention and each importance.

    Also τ-b between importances of the same things: where two of them disagree, attention cannot
    agree with both.
    """
    columns: Columns = {}
    support = [weights > 0 for weights in attention]
    for name, values in importances.items():
        names = ("attention", "the importance")
        tau = kendall_tau(attention, values, names=names, memory=memory)
        columns |= _tau_columns(tau, "attention", name)
        inside = kendall_tau(
            [a[s] for a, s in zip(attention, support, strict=True)],
            [v[s] for v, s in zip(values, support, strict=True)],
            names=("attention on the support", "the importance on the support"),
            memory=memory,
        )
        columns[Measure("tau_b_support", "attention", name)] = Column(
            inside.tau,
            tuple(reason.replace("tokens", "attended tokens") for reason in inside.reason),
        )
        for k in top:
            columns[Measure(f"top_{k}_overlap", "attention", name)] = _overlap(attention, values, k)
    for first, second in itertools.combinations(importances, 2):
        if first.partition(":")[2] == second.partition(":")[2]:
            tau = kendall_tau(
                importances[first],
                importances[second],
                names=("the first importance", "the second importance"),
                memory=memory,
            )
            columns[Measure("tau_b", first, second)] = Column(tau.tau, tau.reason)
    return columns


def _tau_columns(tau: RankCorrelation, subject: str, name: str) -> Columns:
    significant = (tau.p_value < SIGNIFICANT).double().masked_fill(tau.tau.isnan(), math.nan)
    reachable = Column(
        torch.where(tau.ceiling > 0, tau.tau / tau.ceiling, math.nan),
        tuple(
            reason or ("" if ceiling > 0 else "ties leave no pair to agree on")
            for reason, ceiling in zip(tau.reason, tau.ceiling.tolist(), strict=True)
        ),
    )
    return {
        Measure("tau_b", subject, name): Column(tau.tau, tau.reason),
        Measure("tau_b_ceiling", subject, name): Column(tau.ceiling, tau.reason),
        Measure("tau_b_of_ceiling", subject, name): reachable,
        Measure("tau_b_significant", subject, name): Column(significant, tau.reason),
    }


def _overlap(attention: Sequence[Tensor], values: Sequence[Tensor], k: int) -> Column:
    numbers, reasons = [], []
    for a, v in zip(attention, values, strict=True):
        if len(a) <= k:
            reason = f"no more than {k} tokens, all of which are among the first {k}"
        elif not bool(v.isfinite().all()):
            reason = "the importance is not finite"
        else:
            reason = ""
        reasons.append(reason)
        numbers.append(math.nan if reason else top_k_overlap(a, v, k))
    return Column(torch.tensor(numbers, dtype=torch.float64, device="cpu"), tuple(reasons))


def chance_of_overlap(attention: Sequence[Tensor], k: int) -> float:
    """Mean top-k overlap of rankings that know nothing of each other: k/n."""
    known = [k / len(a) for a in attention if len(a) > k]
    return sum(known) / len(known) if known else math.nan


def dispersion(attention: Sequence[Tensor], importances: Mapping[str, Sequence[Tensor]]) -> Columns:
    """Normalised entropies, and how much of a text attention covers."""
    columns = {Measure("entropy", "attention"): _entropies(attention)}
    for name, values in importances.items():
        columns[Measure("entropy", name)] = _entropies(values)
    density = torch.tensor([float((a > 0).double().mean()) for a in attention], device="cpu")
    columns[Measure("density", "attention")] = Column.of(density)
    return columns


def _entropies(values: Sequence[Tensor]) -> Column:
    numbers = [float(normalised_entropy(v.double())) for v in values]
    reasons = [_no_entropy(v, h) for v, h in zip(values, numbers, strict=True)]
    return Column(torch.tensor(numbers, dtype=torch.float64, device="cpu"), tuple(reasons))


def _no_entropy(values: Tensor, found: float) -> str:
    if not math.isnan(found):
        return ""
    if len(values) < 2:
        return "one token"
    return "the importance is zero everywhere" if not bool(values.any()) else "not finite"


def contextualisation(influence: Sequence[Tensor], states: Sequence[Tensor], name: str) -> Columns:
    """How far a hidden state is about its own token; means over the states of each text.

    Args:
        influence: For each text (P, n): of input i on state p.
        states: For each text (P,): which states these are.
        name: Of the importance.
    """
    subject = f"{name}:inputs-to-hidden"
    entropies, shares, firsts, reasons = [], [], [], []
    for values, which in zip(influence, states, strict=True):
        total = values.sum(-1)
        moved = total > 0  # a state that no input moves has no distribution
        part = values[moved] / total[moved, None]
        own = part[torch.arange(len(part), device="cpu"), which[moved]]
        reasons.append("" if len(part) else "no input moves any hidden state")
        if not bool(part.isfinite().all()):
            reasons[-1] = "not finite"
        good = not reasons[-1]
        entropies.append(float(normalised_entropy(part).mean()) if good else math.nan)
        shares.append(float(own.mean()) if good else math.nan)
        first = part.max(-1).values == own if good else own
        firsts.append(float(first.double().mean()) if good else math.nan)
    return {
        Measure(measure, subject): Column(
            torch.tensor(v, dtype=torch.float64, device="cpu"), tuple(reasons)
        )
        for measure, v in (("entropy", entropies), ("own_share", shares), ("own_first", firsts))
    }


def erasures(found: Mapping[str, Erasure]) -> Columns:
    """Comprehensiveness and sufficiency of every ranking, and beside a random one."""
    columns: Columns = {}
    reason = "the ranking is not finite"
    for measure in ("comprehensiveness", "sufficiency"):
        for name, values in found.items():
            columns[Measure(measure, name)] = Column.of(getattr(values, measure), reason)
        for name in found:
            if name != "random":
                columns[Measure(f"{measure}_difference", name, "random")] = difference(
                    columns[Measure(measure, name)], columns[Measure(measure, "random")]
                )
    return columns


def exchanges(found: Swaps) -> Columns:
    """Permuted and uniform weights."""
    return {
        Measure("prediction_moved", "permuted attention"): Column.of(found.permuted),
        Measure("decision_changed", "permuted attention"): Column.of(found.permuted_flips),
        Measure("prediction_moved", "uniform attention"): Column.of(found.uniform),
        Measure("decision_changed", "uniform attention"): Column.of(found.uniform_flips),
    }


def adversaries(found: Adversarial, subject: str, attention: Sequence[Tensor]) -> Columns:
    """How far adversarial attention is from attention itself, and from its prediction.

    Restricted to a support of one token there is nothing but attention itself.
    """
    narrow = tuple(
        "support of one token" if found.search.on_support and int((a > 0).sum()) < 2 else ""
        for a in attention
    )
    # that none was found is a result: it counts as not far, but has no distance
    none = tuple(
        reason or ("" if there else f"no such weights within {found.search.epsilon:g} were found")
        for reason, there in zip(narrow, found.found.tolist(), strict=True)
    )
    numbers = {
        "jsd": found.jsd,
        "prediction_moved": found.tvd,
        "far": (found.jsd > FAR).double(),
        "mixed": found.mixed.double(),
    }
    columns: Columns = {}
    for name, values in numbers.items():
        reasons = none if name in ("jsd", "prediction_moved") else narrow
        left_out = torch.tensor([bool(reason) for reason in reasons], device="cpu")
        columns[Measure(name, subject)] = Column(values.masked_fill(left_out, math.nan), reasons)
    return columns
