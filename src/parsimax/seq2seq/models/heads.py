"""Multi-head attention as the Transformer needs it: keys apart from queries, weights on request."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from parsimax.attention import attention
from parsimax.attention.functional import attend

from .settings import TransformerSettings
from .weighing import Weighing


class Heads(nn.Module):
    """Projections around :func:`parsimax.attention`."""

    def __init__(self, settings: TransformerSettings, mapping: str) -> None:
        super().__init__()
        if settings.dim % settings.heads:
            raise ValueError(
                f"dim must be a multiple of heads, got dim={settings.dim} and "
                f"heads={settings.heads}"
            )
        self.heads, self.dropout = settings.heads, settings.attention_dropout
        self.query = nn.Linear(settings.dim, settings.dim)
        # No biases here: one of the keys shifts all scores of a query alike, and one of the values
        # is that of the output, since weights sum to one. Left in, they would move by noise alone.
        self.key_value = nn.Linear(settings.dim, 2 * settings.dim, bias=False)
        self.out = nn.Linear(settings.dim, settings.dim)
        self.weighing = Weighing(mapping, settings.heads)

    def _split(self, x: Tensor) -> Tensor:
        """(N, L, dim) -> (N, heads, L, dim / heads)."""
        return x.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def keys(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a memory (N, L, dim)."""
        k, v = self.key_value(memory).chunk(2, -1)
        return self._split(k), self._split(v)

    def forward(
        self,
        x: Tensor,
        keys: tuple[Tensor, Tensor],
        *,
        seen: Tensor | None = None,
        causal: bool = False,
        looked: list[Tensor] | None = None,
    ) -> Tensor:
        """Attend from ``x`` (N, L, dim).

        Args:
            keys: What :meth:`keys` gave.
            seen: Bool, broadcasts to (N, heads, Lq, Lk); True where a key may be seen.
            causal: Query i sees the keys up to its own position.
            looked: Receives the weights (N, heads, Lq, Lk).
        """
        q, (k, v) = self._split(self.query(x)), keys
        dropout = self.dropout if self.training else 0.0
        if looked is None:
            learned = self.weighing.learned
            choice = {"mapping": self.weighing.mapping} if learned is None else {"alpha": learned()}
            context = attention(q, k, v, seen, dropout, causal, **choice)
        else:
            if causal:
                seen = q.new_ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
            context, weights = attend(
                q, k, v, self._weigh, seen, None, dropout, q.shape[-1] ** -0.5
            )
            assert weights is not None
            looked.append(weights)
        out: Tensor = self.out(context.transpose(1, 2).flatten(2))
        return out

    def _weigh(self, scores: Tensor, seen: Tensor | None) -> Tensor:
        hidden = scores if seen is None else scores.masked_fill(~seen, -torch.inf)
        weights: Tensor = self.weighing(hidden)
        return weights
