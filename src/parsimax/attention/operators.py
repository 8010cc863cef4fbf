"""What operators have in common that go tile by tile: arguments, dropout, and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .visibility import Band

# (gradient from above, arguments of the operator, which of its first tensors want gradients)
Gradients = Callable[[Tensor, tuple[Any, ...], Sequence[bool]], Sequence[Tensor | None]]


def written_sides(band: Band) -> tuple[int, int]:
    """Left and right as numbers, of which -1 is without end."""
    return -1 if band.left is None else band.left, -1 if band.right is None else band.right


def band_again(left: int, right: int, offset: int) -> Band:
    """What was written so."""
    return Band(None if left < 0 else left, None if right < 0 else right, offset)


def drawn_seed(dropout_p: float) -> Tensor | None:
    """Of dropout, if there is any: another one whenever what is recorded runs."""
    return torch.randint(1 << 62, (), device="cpu") if dropout_p > 0 else None


def threads_for(dropout_p: float) -> int:
    """The backward, in a thread of its own, must cut the tiles whose seeds those of dropout are."""
    return 1 if dropout_p > 0 else torch.get_num_threads()


def gradients_of(g: Tensor, found: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """As an operator returns them: nothing that is None, and none that shares memory."""
    return tuple(g.new_empty(0) if x is None else x.contiguous() for x in found)


def register_gradients(
    operator: Any, backward_operator: Any, plainly: Gradients, tensors: int, gradients: int
) -> None:
    """``backward_operator(g, *arguments, wanted)``, or ``plainly`` what is differentiated twice.

    The first ``tensors`` arguments are tensors, and the first ``gradients`` of them may have one.
    """

    def fake(g: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        *arguments, wanted = rest
        return tuple(
            torch.empty_like(x, memory_format=torch.contiguous_format) if want else g.new_empty(0)
            for x, want in zip(arguments, wanted, strict=False)
        )

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:tensors])
        ctx.rest = inputs[tensors:]

    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        arguments = (*ctx.saved_tensors, *ctx.rest)
        wanted = ctx.needs_input_grad[:gradients]
        if torch.is_grad_enabled():
            found = plainly(g, arguments, wanted)
        else:
            found = backward_operator(g, *arguments, list(wanted))
        made = [x if want else None for x, want in zip(found, wanted, strict=True)]
        return *made, *(None,) * (len(arguments) - gradients)

    backward_operator.register_fake(fake)
    operator.register_autograd(backward, setup_context=setup)
