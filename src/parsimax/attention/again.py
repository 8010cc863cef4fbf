"""Whether attention will be differentiated, and gradients that can be differentiated once more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def gradients_wanted(*tensors: Tensor | None) -> bool:
    """Whether any gradient can be asked for.

    ``needs_input_grad`` of an autograd Function is no answer: leaves count there even under
    ``torch.no_grad``.
    """
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def gradients_again(
    context_of: Callable[..., Tensor], inputs: Sequence[Any], wanted: Sequence[bool], g: Tensor
) -> list[Tensor | None]:
    """Of ``context_of(*inputs)`` in the inputs that are wanted, in operations with derivatives.

    Each input becomes a tensor of its own first: queries, keys and values are often one tensor or
    made of each other, and the gradient of one must not hold what goes through the others.
    """
    with torch.enable_grad():
        apart: list[Any] = [None if x is None else x.view_as(x) for x in inputs]
        context = context_of(*apart)
        chosen = [x for x, want in zip(apart, wanted, strict=True) if want]
        found = iter(torch.autograd.grad(context, chosen, g, create_graph=True))
    return [next(found) if want else None for want in wanted]
