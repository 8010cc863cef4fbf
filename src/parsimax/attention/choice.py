"""Alpha or a mapping, never both: how scores become attention weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from parsimax.mappings import Mapping, entmax, parse
from parsimax.mappings.entmax import check_alpha

from .visibility import fits


class _Default(float):
    """A number that can be told apart from the same number written by the caller."""


_NUMBER = 1.5
DEFAULT_ALPHA = _Default(_NUMBER)


def plain(alpha: float) -> float:
    """A number that may be alpha; torch.compile cannot compare a number of another class."""
    if isinstance(alpha, _Default):
        return _NUMBER
    checked = check_alpha(alpha)
    assert not isinstance(checked, Tensor)
    return checked


def check_one_choice(alpha: object, mapping: object) -> None:
    """Refuse alpha and mapping together."""
    if mapping is not None and not isinstance(alpha, _Default):
        raise ValueError(
            f"give alpha or mapping, not both: got alpha={alpha!r} and mapping={mapping!r}"
        )


def entmax_of_heads(scores: Tensor, alpha: float | Tensor, visible: Tensor | None) -> Tensor:
    """Entmax where a 1-D alpha has one value for each head, dimension -3 of the scores."""
    return entmax(scores, align_alpha(alpha, scores.shape), mask=visible)


def align_alpha(alpha: float | Tensor, shape: torch.Size) -> float | Tensor:
    """A number, or a tensor that broadcasts to the scores with size 1 along the keys."""
    if not isinstance(alpha, Tensor):
        return plain(alpha)
    wanted = torch.Size((*shape[:-1], 1))
    heads = shape[-3] if len(shape) > 2 else 1
    one_a_head = alpha.ndim == 1 and (alpha.shape[0] == 1 or alpha.shape[0] == heads)
    if not one_a_head and (alpha.ndim == 1 or not fits(alpha.shape, wanted)):
        raise ValueError(
            f"a tensor alpha must have shape ({heads},), one value for each head, or broadcast to "
            f"(..., Lq, 1) = {tuple(wanted)}, got shape {tuple(alpha.shape)}"
        )
    return alpha.reshape(-1, 1, 1) if one_a_head and len(shape) > 2 else alpha


# --- what modules hold ---------------------------------------------------------------------------


def hold(module: nn.Module, name: str, value: object) -> None:
    """Keep a constructor's argument: Parameters and Modules are registered, so they are learned.

    A plain tensor moves along with the module, but is not part of its state, as a number is not.
    """
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        module.register_buffer(name, value, persistent=False)
    else:
        setattr(module, name, plain(value) if isinstance(value, _Default) else value)


def shown(value: object) -> object:
    """An argument as ``print(module)`` shows it."""
    return value.tolist() if isinstance(value, Tensor) else value


def check_module_alpha(alpha: Any, num_heads: int) -> None:
    """A number, a tensor of one value or one a head, or a Module that gives such a tensor."""
    if isinstance(alpha, nn.Module):
        heads = getattr(alpha, "num_heads", num_heads)
        if heads != num_heads:
            raise ValueError(f"alpha must have num_heads={num_heads}, as this module, got {heads}")
        return
    check_alpha(alpha)
    if isinstance(alpha, Tensor) and alpha.ndim == 1 and alpha.shape[0] not in (1, num_heads):
        raise ValueError(
            f"alpha must have one value for each of the {num_heads} heads, got {alpha.shape[0]}"
        )


def read_mapping(mapping: object) -> Mapping | nn.Module:
    """A mapping for a module to keep: a mapping, its text, or a Module ``(z, mask=...)``."""
    if isinstance(mapping, nn.Module):
        return mapping
    if not isinstance(mapping, str | Mapping):
        raise TypeError(
            "mapping must be text such as 'entmax(alpha=1.5)', a mapping or a Module, got "
            f"{type(mapping).__name__}"
        )
    value = parse(mapping)
    if isinstance(value.parameter, nn.Parameter):
        name = type(value).__name__
        raise ValueError(
            f"mapping {name} holds a Parameter, which a module could not register; give "
            f"parsimax.nn.{name}, which registers it"
        )
    return value
