r"""Additive attention (Bahdanau, Cho & Bengio 2015).

.. math:: s_{ij} = v^\top \tanh(W_q q_i + W_m m_j + b)

Without a query it is the attention of text classifiers (Yang et al. 2016; Jain & Wallace 2019).
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


class AdditiveAttention(nn.Module):
    """Scores from a small network that sees a query and an entry of the memory.

    Args:
        query_dim: Size of a query, or None for attention without a query.
        memory_dim: Size of an entry of the memory.
        hidden_dim: Size of the hidden layer.
        mapping: Any mapping, its text, or a Module ``(z, mask=...)`` such as ``px.nn.Entmax``.
        bias: Whether the hidden layer has a bias.

    >>> import torch, parsimax as px
    >>> attention = px.nn.AdditiveAttention(4, 6, 8, mapping="sparsemax")
    >>> memory = torch.randn(2, 5, 6)
    >>> context, weights = attention(torch.randn(2, 3, 4), memory)
    >>> context.shape, weights.shape
    (torch.Size([2, 3, 6]), torch.Size([2, 3, 5]))
    >>> pooling = px.nn.AdditiveAttention(None, 6, 8)
    >>> pooling(None, memory).context.shape
    torch.Size([2, 6])
    """

    mapping: Any

    def __init__(
        self,
        query_dim: int | None,
        memory_dim: int,
        hidden_dim: int,
        mapping: Mapping | str | nn.Module = "entmax(alpha=1.5)",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.query_dim = None if query_dim is None else check_size(query_dim, "query_dim")
        self.memory_dim = check_size(memory_dim, "memory_dim")
        self.hidden_dim = check_size(hidden_dim, "hidden_dim")
        self.mapping = read_mapping(mapping)
        self.query_proj = (
            None
            if query_dim is None
            else nn.Linear(query_dim, hidden_dim, bias=False, device=device, dtype=dtype)
        )
        self.memory_proj = nn.Linear(memory_dim, hidden_dim, bias=bias, device=device, dtype=dtype)
        self.score = nn.Linear(hidden_dim, 1, bias=False, device=device, dtype=dtype)

    def forward(
        self, query: Tensor | None, memory: Tensor, mask: Tensor | None = None
    ) -> AttentionOutput:
        """Attend.

        Args:
            query: (B, Lq, query_dim), or (B, query_dim) for one query, or None if ``query_dim`` is.
            memory: (B, Lk, memory_dim).
            mask: (B, Lk) or (B, Lq, Lk), bool, True where an entry of the memory may be seen.

        Returns:
            Context (B, Lq, memory_dim) and weights (B, Lq, Lk), without Lq for one query or none.
        """
        check_memory(memory, self.memory_dim)
        hidden = self.memory_proj(memory)  # (B, Lk, hidden)
        if self.query_proj is None or self.query_dim is None:
            if query is not None:
                raise ValueError("query must be None, because query_dim is None")
        elif query is None:
            raise ValueError("query must be a tensor; attention without one has query_dim=None")
        else:
            check_query(query, memory, self.query_dim)
            asked = self.query_proj(query).unsqueeze(-2)  # (B, [Lq,] 1, hidden)
            hidden = asked + (hidden if query.ndim == 2 else hidden.unsqueeze(1))
        return read_memory(self.score(hidden.tanh()).squeeze(-1), memory, mask, self.mapping)

    def extra_repr(self) -> str:
        """Shown in ``print(module)``."""
        return f"mapping={self.mapping}" if isinstance(self.mapping, Mapping) else ""
