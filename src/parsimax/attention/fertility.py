r"""Attention with fertility (Malaviya, Ferreira & Martins 2018): a word is used up by being read.

Every entry of the memory may receive only so much attention in all, its fertility f. Step t has the
upper bounds that earlier steps left, and a bonus for what is not exhausted,

.. math:: u_t = f - \sum_{s<t} p_s, \qquad p_t = \Pi(z_t + c\, u_t;\ u_t)

with constrained softmax or sparsemax for :math:`\Pi`. A sink, one more entry with bound 1, takes
what nothing else may have, so that there always is a solution.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from parsimax._core.dtypes import autocast_scores, working
from parsimax._core.records import AttentionOutput
from parsimax._core.validation import check_number, check_values
from parsimax.mappings import (
    ConstrainedSoftmax,
    ConstrainedSparsemax,
    Mapping,
    constrained_softmax,
    constrained_sparsemax,
    parse,
)
from parsimax.mappings.box import slack

from .inputs import check_size
from .memory import check_mask, check_memory, check_query

Bounded = Callable[[Tensor, Tensor], Tensor]


class FertilityState(NamedTuple):
    """A memory that is being read: what the next step may see, and what is left of it.

    Args:
        memory: (B, Lk, memory_dim), with the sink as its last entry if there is one.
        blocked: (B, Lk), 0 where an entry may be seen and -inf elsewhere.
        left: (B, Lk), what each entry may still receive; without the sink. In float32 for a memory
            in half precision.
    """

    memory: Tensor
    blocked: Tensor
    left: Tensor

    def select(self, rows: Tensor) -> FertilityState:
        """The state of these rows, in this order; for a search that keeps some hypotheses."""
        return FertilityState(*(x.index_select(0, rows) for x in self))


class FertilityAttention(nn.Module):
    """Bilinear attention whose entries are used up; whole sequences at once, or step by step.

    Args:
        query_dim: Size of a query.
        memory_dim: Size of an entry of the memory.
        fertility: How much attention an entry may receive in all: a number, or a Module that
            predicts it, from the memory (B, Lk, memory_dim) to (B, Lk). Every call may give
            its own, one for each entry.
        mapping: ``constrained_softmax`` or ``constrained_sparsemax``.
        exhaustion: c, what a unit of fertility that is left adds to a score.
        sink: Whether there is one more entry, learned, that any step may give everything. Without
            it a step that finds less than 1 left is an error.

    >>> import torch, parsimax as px
    >>> attention = px.nn.FertilityAttention(4, 6, fertility=1.0)
    >>> memory = torch.randn(2, 5, 6)
    >>> context, weights = attention(torch.randn(2, 3, 4), memory)
    >>> context.shape, weights.shape  # the last weight is the sink's
    (torch.Size([2, 3, 6]), torch.Size([2, 3, 6]))
    >>> bool((weights.sum(1)[:, :5] <= 1 + 1e-6).all())
    True
    >>> state = attention.start(memory)  # the same in a decoder, one query at a time
    >>> (context, weights), state = attention.step(torch.randn(2, 4), state)
    """

    def __init__(
        self,
        query_dim: int,
        memory_dim: int,
        fertility: float | nn.Module = 2.0,
        mapping: Mapping | str = "constrained_sparsemax",
        exhaustion: float = 0.2,
        sink: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.query_dim = check_size(query_dim, "query_dim")
        self.memory_dim = check_size(memory_dim, "memory_dim")
        self.fertility = fertility if isinstance(fertility, nn.Module) else _number(fertility)
        self.exhaustion = check_number(
            exhaustion, "exhaustion", lambda x: 0 <= x < float("inf"), "at least 0 and finite"
        )
        self._mapping, self._bounded = read_bounded(mapping)
        self.weight = nn.Parameter(torch.empty(query_dim, memory_dim, device=device, dtype=dtype))
        self.sink = (
            nn.Parameter(torch.empty(memory_dim, device=device, dtype=dtype)) if sink else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start again at random, so that scores keep the variance of their inputs (Glorot)."""
        nn.init.xavier_uniform_(self.weight)
        if self.sink is not None:
            nn.init.normal_(self.sink, std=self.memory_dim**-0.5)

    def start(
        self, memory: Tensor, mask: Tensor | None = None, fertility: Tensor | None = None
    ) -> FertilityState:
        """The state before the first query.

        Args:
            memory: (B, Lk, memory_dim).
            mask: (B, Lk), bool, True where an entry of the memory may be seen.
            fertility: (B, Lk), for each entry, instead of the module's own.
        """
        check_memory(memory, self.memory_dim)
        shape = memory.shape[:2]
        blocked = memory.new_zeros(shape)
        mask = check_mask(mask, blocked)
        if mask is not None:
            blocked = blocked.masked_fill(~mask, -torch.inf)
        left = self._fertility(memory, fertility)
        if self.sink is not None:
            memory = torch.cat([memory, self.sink.expand(shape[0], 1, -1)], 1)
            blocked = nn.functional.pad(blocked, (0, 1))
        return FertilityState(memory, blocked, left)

    def step(self, query: Tensor, state: FertilityState) -> tuple[AttentionOutput, FertilityState]:
        """One query (B, query_dim): context (B, memory_dim), weights (B, Lk), and what is left."""
        if not isinstance(query, Tensor) or query.ndim != 2:
            got = tuple(query.shape) if isinstance(query, Tensor) else type(query).__name__
            raise ValueError(f"query must have shape (B, {self.query_dim}) for one step, got {got}")
        check_query(query, state.memory, self.query_dim)
        scores = ((query @ self.weight).unsqueeze(1) @ state.memory.mT).squeeze(1) + state.blocked
        weights, left = fertility_weights(
            scores, state.left, self._bounded, self.exhaustion, self.sink is not None
        )
        context = (weights.unsqueeze(1) @ state.memory).squeeze(1)
        return AttentionOutput(context, weights), state._replace(left=left)

    def forward(
        self,
        query: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        fertility: Tensor | None = None,
    ) -> AttentionOutput:
        """Attend, one query after the other.

        Args:
            query: (B, Lq, query_dim), or (B, query_dim) for one query.
            memory: (B, Lk, memory_dim).
            mask: (B, Lk), bool, True where an entry of the memory may be seen.
            fertility: (B, Lk), for each entry, instead of the module's own.

        Returns:
            Context (B, Lq, memory_dim) and weights (B, Lq, Lk + 1), the last one the sink's,
            without Lq for one query; without a sink (B, Lq, Lk).
        """
        state = self.start(memory, mask, fertility)
        check_query(query, memory, self.query_dim)
        if query.ndim == 2:
            return self.step(query, state)[0]
        steps: list[AttentionOutput] = []
        for one in query.unbind(1):
            output, state = self.step(one, state)
            steps.append(output)
        if not steps:
            keys = state.memory.shape[1]
            return AttentionOutput(
                memory.new_zeros(memory.shape[0], 0, self.memory_dim),
                memory.new_zeros(memory.shape[0], 0, keys),
            )
        contexts, weights = zip(*steps, strict=True)
        return AttentionOutput(torch.stack(contexts, 1), torch.stack(weights, 1))

    def _fertility(self, memory: Tensor, given: Tensor | None) -> Tensor:
        shape = memory.shape[:2]
        if given is None and not isinstance(self.fertility, nn.Module):
            return working(memory.new_empty(0)).new_full(shape, self.fertility)
        found = self.fertility(memory) if given is None else given  # type: ignore[operator]
        if not isinstance(found, Tensor) or not found.is_floating_point():
            got = found.dtype if isinstance(found, Tensor) else type(found).__name__
            raise TypeError(f"fertility must be a tensor of a floating-point dtype, got {got}")
        if found.shape != shape:
            raise ValueError(
                f"fertility must have one value for each entry of the memory, shape "
                f"{tuple(shape)}, got {tuple(found.shape)}"
            )
        check_values(found, "fertility", lambda x: x >= 0, "at least 0")
        return found.to(working(memory.new_empty(0)).dtype)

    def extra_repr(self) -> str:
        """Shown in ``print(module)``."""
        own = "" if isinstance(self.fertility, nn.Module) else f", fertility={self.fertility:g}"
        return (
            f"query_dim={self.query_dim}, memory_dim={self.memory_dim}{own}, "
            f"mapping={self._mapping}, exhaustion={self.exhaustion:g}, sink={self.sink is not None}"
        )


def fertility_weights(
    scores: Tensor, left: Tensor, bounded: Bounded, exhaustion: float, sink: bool
) -> tuple[Tensor, Tensor]:
    """Weights for scores (..., Lk), and what they leave.

    ``left`` has one entry less than the scores if the last of them is the ``sink``'s, and is in
    float32 where these are in half precision.
    """
    # in the precision of what is left: rounded to half, steps would not add up to the fertility
    narrow, wide = autocast_scores(scores).dtype, scores.to(left.dtype)
    if not sink:
        return _without_sink(wide, left, bounded, exhaustion, narrow)
    may = _representable(left, narrow)
    upper = nn.functional.pad(may, (0, 1), value=1.0)
    weights = bounded(wide + exhaustion * upper, upper).to(narrow)
    given = weights[..., :-1].to(left.dtype)
    after = (left - given).clamp(min=0)  # rounding alone takes an exhausted entry below 0
    if narrow != left.dtype:  # at a bound that was rounded it is exhausted, too
        after = after - torch.where(given >= may, after, 0.0).detach()
    return weights, after


def _without_sink(
    scores: Tensor, left: Tensor, bounded: Bounded, exhaustion: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """All of a step must find room: what is left is kept unrounded, and made up for rounding."""
    total = torch.where(scores > -torch.inf, left, 0.0).sum(-1, keepdim=True)
    # as many steps as there are entries may have been off by as much as a sum of weights may be
    missing, most = 1 - total.detach(), left.shape[-1] * slack(left.dtype)
    upper = left / torch.where((missing > 0) & (missing <= most), total, 1.0)
    try:
        weights = bounded(scores + exhaustion * left, upper)
    except ValueError as error:
        raise ValueError(
            f"too little fertility is left for this query: {error}; give more fertility or fewer "
            "queries, or use sink=True"
        ) from error
    return weights.to(dtype), (left - weights).clamp(min=0)


def _representable(left: Tensor, dtype: torch.dtype) -> Tensor:
    """The next number of the dtype that is not above: weights stay below it once rounded.

    More than 1 binds no weight, and may be too large for the dtype.
    """
    if dtype == left.dtype:
        return left
    fixed = left.detach()
    near = fixed.to(dtype).to(left.dtype)
    lower = (fixed * (1 - torch.finfo(dtype).eps)).to(dtype).to(left.dtype)
    down = torch.where(near > fixed, lower, near) - fixed
    return left + torch.where(fixed < 1, down, 0.0)


def read_bounded(mapping: object) -> tuple[str, Bounded]:
    """(name, function of scores and upper bounds) of a constrained mapping or its text."""
    value = parse(mapping) if isinstance(mapping, str | Mapping) else mapping
    for kind, name, function in (
        (ConstrainedSoftmax, "constrained_softmax", constrained_softmax),
        (ConstrainedSparsemax, "constrained_sparsemax", constrained_sparsemax),
    ):
        if isinstance(value, kind) and value == kind():
            return name, function
    raise ValueError(
        "mapping must be constrained_softmax or constrained_sparsemax, without bounds of its own: "
        f"fertility gives them; got {value!r}"
    )


def _number(fertility: object) -> float:
    if isinstance(fertility, bool) or not isinstance(fertility, numbers.Real):
        got = f"a tensor of shape {tuple(fertility.shape)}" if isinstance(fertility, Tensor) else ""
        raise TypeError(
            "fertility must be a number, or a Module that predicts it from the memory, got "
            f"{got or repr(fertility)}; give a tensor (B, Lk) to the call: "
            "attention(query, memory, fertility=...)"
        )
    return check_number(
        fertility, "fertility", lambda x: 0 < x < float("inf"), "greater than 0 and finite"
    )
