r"""A learned alpha for each head (Correia, Niculae & Martins 2019, Section 3.2).

.. math:: \alpha_h = 1 + \mathrm{sigmoid}(a_h) \in (1, 2)

Each head finds its own place between softmax and sparsemax, and none can fall below 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from parsimax._core.dtypes import working
from parsimax._core.validation import check_number

from .inputs import check_size


class AdaptiveAlpha(nn.Module):
    """One learned alpha between 1 and 2 for each head.

    Call it to get the (num_heads,) tensor that ``px.attention`` takes as ``alpha``, or give the
    module itself to ``MultiheadAttention``.

    Args:
        num_heads: How many.
        init: Where all alphas start, strictly between 1 and 2; ``None`` draws each ``a`` from a
            normal distribution, as in the paper: heads that start apart specialise sooner.

    >>> import torch, parsimax as px
    >>> alpha = px.nn.AdaptiveAlpha(4, init=1.5)
    >>> alpha()
    tensor([1.5000, 1.5000, 1.5000, 1.5000], grad_fn=<AddBackward0>)
    >>> q = k = v = torch.randn(2, 4, 6, 8)
    >>> px.attention(q, k, v, alpha=alpha()).shape
    torch.Size([2, 4, 6, 8])
    """

    def __init__(
        self,
        num_heads: int,
        init: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = check_size(num_heads, "num_heads")
        if init is not None:
            init = check_number(init, "init", lambda x: 1 < x < 2, "strictly between 1 and 2")
        self.init = init
        self.a = nn.Parameter(torch.empty(num_heads, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start again: at ``init``, or at random."""
        if self.init is None:
            nn.init.normal_(self.a)
        else:  # the inverse of 1 + sigmoid
            nn.init.constant_(self.a, math.log((self.init - 1) / (2 - self.init)))

    def forward(self) -> Tensor:
        """The alphas, (num_heads,); in float32 if ``a`` has half precision, for small steps."""
        return 1 + torch.sigmoid(working(self.a))

    def extra_repr(self) -> str:
        """Shown in ``print(module)``."""
        return str(self.num_heads) if self.init is None else f"{self.num_heads}, init={self.init}"
