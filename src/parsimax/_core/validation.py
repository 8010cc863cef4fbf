"""Checks at the front door; every message names the argument, what was expected and what came."""

from __future__ import annotations

import contextlib
import difflib
import math
import numbers
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor


def check_scores(z: object, name: str = "z") -> Tensor:
    """A floating-point tensor of at least one dimension."""
    if not isinstance(z, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor of scores, got {type(z).__name__}")
    if not z.is_floating_point():
        raise TypeError(
            f"{name} must have a floating-point dtype, got {z.dtype}; use {name}.float()"
        )
    check_dense(z, name)
    if z.ndim == 0:
        raise ValueError(f"{name} must have at least one dimension, got a scalar tensor")
    return z


def check_dense(x: Tensor, name: str) -> None:
    """No sparse or nested tensor: those fail somewhere later, or have no shape to speak of."""
    if x.is_nested:
        raise TypeError(f"{name} must be a dense tensor, got a nested one; use to_padded_tensor()")
    if x.layout != torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got layout {x.layout}; use to_dense()")


def check_dim(dim: object, ndim: int) -> int:
    """``dim`` as a non-negative index."""
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"dim must be an int, got {type(dim).__name__} {dim!r}")
    if not -ndim <= dim < ndim:
        raise ValueError(
            f"dim must lie in [{-ndim}, {ndim - 1}] for a tensor of {ndim} dimensions, got {dim}"
        )
    return dim % ndim


def check_number(value: object, name: str, ok: Callable[[float], bool], expected: str) -> float:
    """A Python number for which ``ok`` holds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise TypeError(f"{name} must be a number or a tensor, got {value!r}")
        value = float(value)  # a number of numpy's
    number = float(value)
    # written with comparisons, which torch.compile can trace for a number that changes
    if number != number or not ok(number):
        raise ValueError(f"{name} must be {expected}, got {value!r}")
    return number


def check_values(value: Tensor, name: str, ok: Callable[[Tensor], Tensor], expected: str) -> None:
    """Every entry of a tensor; only in eager mode on the CPU, elsewhere a bad value gives NaN."""
    if value.device.type != "cpu" or not values_readable() or without_values(value):
        return
    detached = value.detach()
    good = ok(detached)
    if not bool(good.all()):
        worst = detached[~good].flatten()[0].item()
        raise ValueError(f"every value of {name} must be {expected}, got {worst!r}")


def check_parameter(
    value: float | Tensor, name: str, ok: Callable[[Any], Any], expected: str
) -> float | Tensor:
    """A finite number, or a tensor of them; ``ok`` compares either with the bounds."""
    if not isinstance(value, Tensor):
        if isinstance(value, float) and ok(value) and -math.inf < value < math.inf:
            return float(value)
        return check_number(value, name, lambda x: ok(x) and -math.inf < x < math.inf, expected)
    if not value.is_floating_point():
        raise TypeError(f"a tensor {name} must have a floating-point dtype, got {value.dtype}")
    check_values(value, name, lambda x: ok(x) & x.isfinite(), expected)
    return value


def check_choice(value: object, name: str, choices: Iterable[str]) -> str:
    """One of a few strings; the nearest valid one is offered."""
    options = list(choices)
    if isinstance(value, str) and value in options:
        return value
    raise ValueError(
        f"{name} must be one of {', '.join(options)}, got {value!r}{nearest(value, options)}"
    )


def nearest(value: object, options: Iterable[str]) -> str:
    """``; did you mean 'x'?`` where something is close, else nothing."""
    close = difflib.get_close_matches(str(value), list(options), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def recorded() -> bool:
    """Whether operations are written down: by torch.compile and torch.export, or by make_fx.

    Those see no kernels of ours but in operators, and tensors have no values to look at.
    """
    return torch.compiler.is_compiling() or traced()


def exporting() -> bool:
    """Whether it is torch.export that writes them down."""
    return torch.compiler.is_exporting()


# Dynamo of torch 2.11 takes that for true of all it traces; so it is to ask, and to take the answer
# for a constant: what torch.compiler.assume_constant_result does, but that imports Dynamo.
exporting._dynamo_marked_constant = True  # type: ignore[attr-defined]


_EARLY = torch._C.DispatchKey.PreDispatch  # what is recorded before autograd
_included = torch._C._dispatch_tls_is_dispatch_key_included
_modes = torch._C._len_torch_dispatch_stack
_TRACERS = torch._C._TorchDispatchModeKey.PROXY, torch._C._TorchDispatchModeKey.FUNCTIONAL


def traced() -> bool:
    """Whether make_fx, or what is built on it, writes operations down."""
    if _modes() and any(map(torch._C._get_dispatch_mode, _TRACERS)):
        return True
    if not _included(_EARLY):
        return False
    return any(map(torch._ops._get_dispatch_mode_pre_dispatch, _TRACERS))


def wraps_others(z: Tensor) -> bool:
    """Whether this is a tensor of a class with operations of its own, which has no memory itself.

    DTensor is one. Its address is 0, or that of something else.
    """
    if type(z) is Tensor or recorded() or without_values(z):
        return False
    own: object = type(z).__torch_dispatch__
    return own is not torch._C._disabled_torch_dispatch_impl


def under_transform(*tensors: Tensor | None) -> bool:
    """Whether a torch.func transform (vmap, grad, jvp, ...) is being traced right now.

    ``torch.autograd.grad(is_grads_batched=True)`` uses an older vmap, seen only in its tensors.
    """
    if torch._C._are_functorch_transforms_active():
        return True
    return any(t is not None and torch._C._functorch.is_legacy_batchedtensor(t) for t in tensors)


def forward_levels() -> int:
    """How many forward-mode transforms (jvp, jacfwd) of torch.func are inside one another here."""
    stack = torch._C._functorch.get_interpreter_stack() or []
    return sum(level.key() == torch._C._functorch.TransformType.Jvp for level in stack)


def transform_or_forward_mode() -> bool:
    """Whether a torch.func transform or forward-mode differentiation is under way."""
    return (
        torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0
    )


def without_values(z: Tensor) -> bool:
    """Whether this is a meta or a fake tensor, which has a shape and nothing else."""
    return z.is_meta or (type(z) is not Tensor and getattr(z, "fake_mode", None) is not None)


def values_readable() -> bool:
    """Whether tensor values may be looked at: not where they are recorded or transformed."""
    return not recorded() and not under_transform() and not getattr(_here, "unchecked", False)


_here = threading.local()


@contextlib.contextmanager
def as_recorded() -> Iterator[None]:
    """Values are not looked at: within an operator that stands in a graph for what was recorded.

    A bad one gives NaN there, as it does in all operators.
    """
    before = getattr(_here, "unchecked", False)
    _here.unchecked = True
    try:
        yield
    finally:
        _here.unchecked = before
