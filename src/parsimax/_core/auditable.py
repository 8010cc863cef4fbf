"""The four functions that an audit needs of a model, and the texts it reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Auditable:
    """A text classifier, taken apart where attention sits.

    ``mask`` is bool, True where there is a token. Nothing here may depend on other texts of the
    batch, and all four must be differentiable in their floating-point arguments.

    Args:
        embed: Tokens (B, L) to vectors x (B, L, E).
        encode: (x, mask) to hidden states h (B, L, H).
        attend: (h, mask) to weights a (B, L), zero where there is no token.
        decode: (h, a, mask) to probabilities of the classes (B, C), with C >= 2.
        pad: The token that fills up short texts.
    """

    embed: Callable[[Tensor], Tensor]
    encode: Callable[[Tensor, Tensor], Tensor]
    attend: Callable[[Tensor, Tensor], Tensor]
    decode: Callable[[Tensor, Tensor, Tensor], Tensor]
    pad: int = 0


@dataclass(frozen=True)
class Text:
    """One text: its tokens as numbers and as a reader sees them, and its label if it is known."""

    tokens: Sequence[int]
    words: Sequence[str]
    label: int | None = None
