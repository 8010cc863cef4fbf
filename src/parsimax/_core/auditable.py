"""The four functions that an audit needs of a model, and the texts it reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Pull(Protocol):
    """The way of B texts of one length n through ``encode``, and back from single states."""

    @property
    def states(self) -> Tensor:
        """What ``encode`` returns for these texts, (B, n, H)."""

    def __call__(self, at: Tensor, vectors: Tensor) -> Tensor:
        """Gradients (B, P, n, E) in x of ⟨v, h_p⟩ for p in ``at`` (P,), v in (B, P, H)."""


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
        pull: For speed alone, and on a CPU: vectors x (B, n, E) of texts without padding to a
            :class:`Pull`. Without it gradients of hidden states are autograd's, through ``encode``.
    """

    embed: Callable[[Tensor], Tensor]
    encode: Callable[[Tensor, Tensor], Tensor]
    attend: Callable[[Tensor, Tensor], Tensor]
    decode: Callable[[Tensor, Tensor, Tensor], Tensor]
    pad: int = 0
    pull: Callable[[Tensor], Pull] | None = None


@dataclass(frozen=True)
class Text:
    """One text: its tokens as numbers and as a reader sees them, and its label if it is known."""

    tokens: Sequence[int]
    words: Sequence[str]
    label: int | None = None
