"""What operators have in common that go tile by tile: fakes of gradients, and who calls which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# (gradient from above, arguments of the operator, which of its first tensors want gradients)
Gradients = Callable[[Tensor, tuple[Any, ...], Sequence[bool]], Sequence[Tensor | None]]


def gradients_of(g: Tensor, found: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """As an operator returns them: nothing that is None, and none that shares memory."""
    return tuple(g.new_empty(0) if x is None else x.contiguous() for x in found)


def fake_gradients(g: Tensor, inputs: Sequence[Any], wanted: Sequence[bool]) -> tuple[Tensor, ...]:
    """Of the shapes of these."""
    return tuple(
        torch.empty_like(x, memory_format=torch.contiguous_format) if want else g.new_empty(0)
        for x, want in zip(inputs, wanted, strict=False)
    )


def register_gradients(
    operator: Any, backward_operator: Any, plainly: Gradients, tensors: int, gradients: int
) -> None:
    """``backward_operator(g, *arguments, wanted)``, or ``plainly`` what is differentiated twice.

    The first ``tensors`` arguments are tensors, and the first ``gradients`` of them may have one.
    """

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

    operator.register_autograd(backward, setup_context=setup)
