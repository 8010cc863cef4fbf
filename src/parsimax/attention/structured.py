r"""Attention whose weights are a mixture of few whole structures (SparseMAP).

Two sentences are aligned jointly (Niculae, Martins, Blondel & Cardie 2018; Figure 2 of Peters,
Niculae & Martins 2018): scores are bilinear as in :mod:`.bilinear`,

.. math:: s_{ij} = q_i^\top W m_j,

but the weights of all queries are decided together. One alignment serves both directions: read by
rows, every query gets a context from the memory; by columns, every entry of the memory from the
queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from parsimax._core.records import AttentionOutput
from parsimax.structured import (
    Matching,
    MonotoneAlignment,
    Sequence,
    SparseMAPResult,
    Structure,
    sparsemap,
)
from parsimax.structured.solving import check_tol

from .inputs import check_size
from .memory import check_memory, check_query
from .packing import Packing, check_cells, check_positions

_SEQUENCE = "sequence"  # has parameters, which the module holds
_BY_NAME = {"matching": Matching, "monotone": MonotoneAlignment}


@dataclass(frozen=True)
class Alignment:
    """A joint alignment, and what each side gets from the other.

    ``structures`` (B, K, Lq, Lk) are the alignments that have probability, ``probabilities`` (B, K)
    how much; ``gap`` and ``converged`` (B,) say how exactly it was solved.
    """

    context: Tensor  # (B, Lq, memory_dim)
    memory_context: Tensor  # (B, Lk, query_dim)
    weights: Tensor  # (B, Lq, Lk)
    structures: Tensor
    probabilities: Tensor
    gap: Tensor
    converged: Tensor


class StructuredAttention(nn.Module):
    """Joint alignment of two sequences: a distribution over few whole alignments.

    Args:
        query_dim: Size of a query.
        memory_dim: Size of an entry of the memory.
        structure: What an alignment is.

            - ``"matching"``: the shorter side is fully matched, the longer at most once;
            - ``"monotone"``: every query picks one entry, never before that of the query before it;
            - ``"sequence"``: every query picks one entry, and what the jump from one pick to the
              next is worth is learned, up to ``reach`` in either direction;
            - any other structure over matrices, whose rows are the queries.
        reach: Longest jump that "sequence" tells from longer ones.
        tol: Tolerance of the solver.

    >>> import torch, parsimax as px
    >>> attention = px.nn.StructuredAttention(4, 6, structure="matching")
    >>> context, weights = attention(torch.randn(2, 3, 4), torch.randn(2, 5, 6))
    >>> context.shape, weights.sum(-1).round(decimals=4).tolist()
    (torch.Size([2, 3, 6]), [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    """

    def __init__(
        self,
        query_dim: int,
        memory_dim: int,
        structure: Structure | str = "matching",
        *,
        reach: int = 3,
        tol: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.query_dim = check_size(query_dim, "query_dim")
        self.memory_dim = check_size(memory_dim, "memory_dim")
        self.structure = _read_structure(structure)
        self.reach = check_size(reach, "reach")
        self.tol = check_tol(tol)
        self.weight = nn.Parameter(torch.empty(query_dim, memory_dim, device=device, dtype=dtype))
        self.jumps = (
            nn.Parameter(torch.empty(2 * reach + 1, device=device, dtype=dtype))
            if structure == _SEQUENCE
            else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start again: scores keep the variance of their inputs (Glorot); going back costs 1."""
        nn.init.xavier_uniform_(self.weight)
        if self.jumps is not None:
            with torch.no_grad():
                self.jumps.zero_()
                self.jumps[: self.reach] = -1.0

    def forward(
        self,
        query: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        query_mask: Tensor | None = None,
    ) -> AttentionOutput:
        """Attend.

        Args:
            query: (B, Lq, query_dim).
            memory: (B, Lk, memory_dim).
            mask: (B, Lk), bool, True where an entry of the memory may be seen; or (B, Lq, Lk),
                where a query may see it.
            query_mask: (B, Lq), bool, True for the queries that there are.

        Returns:
            Context (B, Lq, memory_dim) and weights (B, Lq, Lk). A query without a partner, or that
            is masked, has weights and a context of 0.
        """
        found = self.align(query, memory, mask, query_mask)
        return AttentionOutput(found.context, found.weights)

    def align(
        self,
        query: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        query_mask: Tensor | None = None,
    ) -> Alignment:
        """Attend in both directions, and show the structures; arguments as in ``forward``."""
        check_memory(memory, self.memory_dim)
        check_query(query, memory, self.query_dim)
        if query.ndim == 2:
            raise ValueError(
                "query must have shape (B, Lq, query_dim): a joint alignment needs all queries at "
                f"once, got shape {tuple(query.shape)}"
            )
        scores = (query @ self.weight) @ memory.mT  # (B, Lq, Lk)
        cells = None
        if isinstance(mask, Tensor) and mask.ndim == 3:
            cells, mask = check_cells(mask, "mask", scores), None
        across = Packing.of(check_positions(mask, "mask", memory))
        down = Packing.of(check_positions(query_mask, "query_mask", query))
        if cells is not None:
            scores = scores.masked_fill(~cells, -torch.inf)
        packed = across.pack(down.pack(scores, 1), 2)
        result, turned = self._solve(packed, down.lengths, across.lengths)
        weights, structures = (
            across.unpack(down.unpack(x.mT if turned else x, -2), -1)
            for x in (result.marginals, result.structures)
        )
        return Alignment(
            weights @ memory,
            weights.mT @ query,
            weights,
            structures,
            result.probabilities,
            result.gap,
            result.converged,
        )

    def _solve(self, scores: Tensor, n: Tensor, m: Tensor) -> tuple[SparseMAPResult, bool]:
        """The solution for n x m scores each, and whether its rows are the memory."""
        structure = self.structure
        if structure is None:
            structure = Sequence(self._transitions(scores.shape[2]))
        if isinstance(structure, Sequence):  # lengths cut its positions, not its labels
            places = torch.arange(scores.shape[2], device=m.device)
            mask = (places < m.unsqueeze(1)).unsqueeze(1).expand_as(scores)
            return sparsemap(scores, structure, lengths=n, mask=mask, tol=self.tol), False
        if isinstance(structure, MonotoneAlignment):  # its columns are what picks
            sides = torch.stack([m, n], -1)
            return sparsemap(scores.mT, structure, lengths=sides, tol=self.tol), True
        sides = torch.stack([n, m], -1)
        return sparsemap(scores, structure, lengths=sides, tol=self.tol), False

    def _transitions(self, entries: int) -> Tensor:
        """(entries, entries): what it is worth to go from one entry of the memory to another."""
        assert self.jumps is not None
        places = torch.arange(entries, device=self.jumps.device)
        jump = (places - places.unsqueeze(1)).clamp(-self.reach, self.reach)
        return self.jumps[jump + self.reach]

    def extra_repr(self) -> str:
        """Shown in ``print(module)``."""
        name = _SEQUENCE if self.jumps is not None else type(self.structure).__name__
        return f"query_dim={self.query_dim}, memory_dim={self.memory_dim}, structure={name}"


def _read_structure(structure: object) -> Structure | None:
    """None for a sequence, whose transitions depend on parameters and on the memory's length."""
    if isinstance(structure, Structure):
        if structure.square or structure.score_dims != 2:
            other = "; LatentTreeAttention attends by trees" if structure.square else ""
            raise ValueError(
                "structure must be one over matrices of queries and entries, such as Matching(), "
                f"got {structure}{other}"
            )
        return structure
    if isinstance(structure, str) and structure in _BY_NAME:
        return _BY_NAME[structure]()
    if structure == _SEQUENCE:
        return None
    hint = f"; use {structure.__name__}()" if isinstance(structure, type) else ""
    raise ValueError(
        f"structure must be {', '.join(map(repr, (*_BY_NAME, _SEQUENCE)))} or a structure such as "
        f"parsimax.structured.Matching(), got {structure!r}{hint}"
    )
