r"""The attention that pools a text's hidden states: a query, scores, and a mapping.

Additive scores are :math:`v^\top \tanh(W_h h_i + W_q q + b)`, dot scores
:math:`h_i^\top q / \sqrt{H}`. With a learned query the latter are those of Jain & Wallace (2019).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from parsimax.attention.additive import AdditiveAttention
from parsimax.mappings import parse

from .config import AttentionSettings


class Pooling(nn.Module):
    """Hidden states (B, L, H) to weights (B, L), which are zero where there is no token."""

    def __init__(self, settings: AttentionSettings, size: int) -> None:
        super().__init__()
        self.kind, self.query = settings.kind, settings.chosen_query
        self.mapping = parse(settings.mapping)
        self.vector = nn.Parameter(torch.empty(size)) if self.query == "learned" else None
        if self.vector is not None:
            nn.init.uniform_(self.vector, -(size**-0.5), size**-0.5)  # as a linear layer's weights
        self.additive: AdditiveAttention | None = None
        if self.kind == "additive":
            asked = None if self.query == "none" else size
            self.additive = AdditiveAttention(asked, size, settings.hidden, self.mapping)

    def forward(self, h: Tensor, mask: Tensor) -> Tensor:
        """Weights of the states."""
        if self.kind == "uniform":
            return mask.to(h.dtype) / mask.sum(1, keepdim=True).clamp(min=1)
        query = self._query(h, mask)
        if self.additive is not None:
            weights: Tensor = self.additive(query, h, mask).weights
            return weights
        assert query is not None
        scores = (h @ query.unsqueeze(-1)).squeeze(-1) * h.shape[-1] ** -0.5
        return self.mapping(scores, mask=mask)

    def _query(self, h: Tensor, mask: Tensor) -> Tensor | None:
        """(B, H), or None."""
        if self.query == "none":
            return None
        if self.vector is not None:
            return self.vector.to(h.dtype).expand(h.shape[0], -1)
        if self.query == "mean":
            return (h * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        # The forward direction ends at the last word, the backward one at the first.
        half, steps = h.shape[-1] // 2, torch.arange(h.shape[1], device=h.device)
        last = torch.where(mask, steps, -1).amax(1, keepdim=True).clamp(min=0)
        first = torch.where(mask, steps, h.shape[1]).amin(1, keepdim=True).clamp(max=h.shape[1] - 1)
        ahead = h[..., :half].gather(1, last.unsqueeze(-1).expand(-1, 1, half))
        back = h[..., half:].gather(1, first.unsqueeze(-1).expand(-1, 1, half))
        return torch.cat([ahead, back], -1).squeeze(1)

    def extra_repr(self) -> str:
        """Shown in ``print(module)``."""
        return f"{self.kind}, query={self.query}, mapping={self.mapping}"
