"""Do models that differ in their seed learn the same heads?

The numbering of heads is an accident of the seed, so heads are first matched one to one. They are
matched on every other sentence and compared on the rest: matching looks for likeness, and would
find some in noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from parsimax._core.records import AttentionRecord
from parsimax._core.validation import check_choice

from .assignment import assign
from .checking import Sentence, sentences
from .diversity import entropy
from .scores import Head


@dataclass(frozen=True)
class Agreement:
    """How alike two models' heads of one module are.

    The likeness of two heads is 1 − JS / log 2, the Jensen-Shannon divergence of their weights
    averaged over queries: 1 if they always look at the same, 0 if never at anything in common.

    Args:
        module: which kind of attention.
        first, second: numbers of the models, from 0.
        pairs: a head of the first model, the head of the second that it was matched with, and their
            likeness on the sentences that matching did not see.
        matched: mean likeness of matched heads.
        any_pair: mean likeness of all pairs that could have been matched: what chance gives.
        likeness: (heads of the first, heads of the second), layer by layer, of those sentences.
        sentences: how many those are.
        held_out: False if there was one sentence only, which then served for both.
    """

    module: str
    first: int
    second: int
    pairs: tuple[tuple[Head, Head, float], ...]
    matched: float
    any_pair: float
    likeness: Tensor = field(repr=False)
    sentences: int = 0
    held_out: bool = True


def agreement(
    models: Sequence[Iterable[AttentionRecord]], within: Literal["layer", "module"] = "layer"
) -> list[Agreement]:
    """Compare each model with each.

    Args:
        models: the records of each, of the same sentences in the same order.
        within: ``layer`` matches heads of the same layer, ``module`` heads of any layer.
    """
    check_choice(within, "within", ("layer", "module"))
    if len(models) < 2:
        raise ValueError(f"models: expected at least two, got {len(models)}")
    checked = [list(sentences(records)) for records in models]
    found = []
    for first in range(len(models)):
        for second in range(first + 1, len(models)):
            names = {sentence.record.module: None for sentence in checked[first]}
            for module in names:
                one = [s for s in checked[first] if s.record.module == module]
                two = [s for s in checked[second] if s.record.module == module]
                _check_same(one, two, module, first, second)
                found.append(_compare(one, two, module, first, second, within))
    return found


def _check_same(
    one: Sequence[Sentence], two: Sequence[Sentence], module: str, first: int, second: int
) -> None:
    where = f"models {first} and {second}, module {module!r}"
    if [s.record.tokens for s in one] != [s.record.tokens for s in two] or [
        s.record.queries for s in one
    ] != [s.record.queries for s in two]:
        raise ValueError(
            f"{where}: expected records of the same sentences, cut into the same tokens, in the "
            "same order; models with different vocabularies cannot be compared head by head"
        )
    if one[0].shape != two[0].shape:
        raise ValueError(
            f"{where}: expected as many layers and heads, got {one[0].shape} and {two[0].shape}"
        )


def _compare(
    one: Sequence[Sentence],
    two: Sequence[Sentence],
    module: str,
    first: int,
    second: int,
    within: str,
) -> Agreement:
    layers, heads = one[0].shape
    held_out = len(one) > 1
    seen, unseen = (slice(0, None, 2), slice(1, None, 2)) if held_out else (slice(None),) * 2
    for_matching = _likeness(one[seen], two[seen])
    likeness = _likeness(one[unseen], two[unseen])
    layer = torch.arange(layers * heads, device="cpu") // heads
    same_layer = layer[:, None] == layer
    may_match = same_layer if within == "layer" else torch.ones_like(same_layer)
    # What may not be matched costs more than all that may.
    cost = torch.where(may_match, 1 - for_matching.nan_to_num(0.0), 2.0 * layers * heads)
    partners = assign(cost.tolist())
    pairs = tuple(
        (
            Head(module, a // heads, a % heads),
            Head(module, b // heads, b % heads),
            likeness[a, b].item(),
        )
        for a, b in enumerate(partners)
    )
    alike = torch.tensor([value for _, _, value in pairs], dtype=torch.float64, device="cpu")
    return Agreement(
        module=module,
        first=first,
        second=second,
        pairs=pairs,
        matched=float(alike.nanmean()),
        any_pair=float(likeness[may_match].nanmean()),
        likeness=likeness,
        sentences=len(one[unseen]),
        held_out=held_out,
    )


def _likeness(one: Sequence[Sentence], two: Sequence[Sentence]) -> Tensor:
    """(heads, heads) of two models, averaged over the queries of all sentences."""
    total: Tensor | float = 0.0
    queries: Tensor | float = 0.0
    for a, b in zip(one, two, strict=True):
        p, q = a.weights.flatten(0, 1), b.weights.flatten(0, 1)
        live_p, live_q = a.live.flatten(0, 1), b.live.flatten(0, 1)
        entropies = entropy(p)[:, None] + entropy(q)[None]
        # One head of the first model at a time: all pairs at once need heads times the memory.
        middle = torch.stack([entropy((row + q) / 2) for row in p])
        alike = 1 - (middle - entropies / 2).clamp(0, math.log(2)) / math.log(2)
        both = (live_p[:, None] & live_q[None]).double()
        total = total + (alike * both).sum(-1)
        queries = queries + both.sum(-1)
    return torch.as_tensor(total, device="cpu") / torch.as_tensor(queries, device="cpu")
