r"""Bilinear attention, the "general" score of Luong, Pham & Manning (2015).

.. math:: s_{ij} = q_i^\top W m_j
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from parsimax._core.records import AttentionOutput
from parsimax.mappings import Mapping

from .choice import read_mapping
from .inputs import check_size
from .memory import check_memory, check_query, read_memory


class BilinearAttention(nn.Module):
    """Scores that are products of a query and an entry of the memory.

    Args:
        query_dim: Size of a query.
        memory_dim: Size of an entry of the memory.
        mapping: Any mapping, its text, or a Module ``(z, mask=...)`` such as ``px.nn.Entmax``.

    >>> import torch, parsimax as px
    >>> attention = px.nn.BilinearAttention(4, 6, mapping="sparsemax")
    >>> mask = torch.tensor([[True, True, False], [False, False, False]])
    >>> context, weights = attention(torch.randn(2, 4), torch.randn(2, 3, 6), mask)
    >>> weights.sum(-1)
    tensor([1., 0.], grad_fn=<SumBackward1>)
    """

    mapping: Any

    def __init__(
        self,
        query_dim: int,
        memory_dim: int,
        mapping: Mapping | str | nn.Module = "entmax(alpha=1.5)",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.query_dim = check_size(query_dim, "query_dim")
        self.memory_dim = check_size(memory_dim, "memory_dim")
        self.mapping = read_mapping(mapping)
        self.weight = nn.Parameter(torch.empty(query_dim, memory_dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start again at random, so that scores keep the variance of their inputs (Glorot)."""
        nn.init.xavier_uniform_(self.weight)

    def forward(self, query: Tensor, memory: Tensor, mask: Tensor | None = None) -> AttentionOutput:
        """Attend.

        Args:
            query: (B, Lq, query_dim), or (B, query_dim) for one query.
            memory: (B, Lk, memory_dim).
            mask: (B, Lk) or (B, Lq, Lk), bool, True where an entry of the memory may be seen.

        Returns:
            Context (B, Lq, memory_dim) and weights (B, Lq, Lk), without Lq for one query.
        """
        check_memory(memory, self.memory_dim)
        check_query(query, memory, self.query_dim)
        one = query.ndim == 2
        asked = (query.unsqueeze(1) if one else query) @ self.weight  # (B, Lq, memory_dim)
        scores = asked @ memory.mT
        return read_memory(scores.squeeze(1) if one else scores, memory, mask, self.mapping)

    def extra_repr(self) -> str:
        """Shown in ``print(module)``."""
        sizes = f"query_dim={self.query_dim}, memory_dim={self.memory_dim}"
        return f"{sizes}, mapping={self.mapping}" if isinstance(self.mapping, Mapping) else sizes
