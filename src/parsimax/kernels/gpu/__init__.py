"""Triton kernels for the GPU: rows of every simplex mapping, forward, backward and conjugate.

The functions here are those of :mod:`parsimax.kernels.cpu`. They take tensors of any shape whose
last dimension is the row, in float32, bfloat16 or float16; results are contiguous. Nothing waits
for the GPU, so everything may be captured in a CUDA graph.

What they launch sees matrices (rows, d) without gaps, and a parameter that is a Python float or a
vector of one float32 or float64 value a row. alpha - 1 and 1 - lam have digits in float64 that
float32 would lose: a kernel takes the difference first, and rounds then.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from . import budget, conjugate, entmax, entmax_backward, normmax, steep
from .quick import current_device


def _flat(alpha: float | Tensor) -> bool:
    """Whether some row may have an alpha between 1 and 2; the values of a tensor are not read."""
    return isinstance(alpha, Tensor) or 1.0 <= alpha <= 2.0


def _steep(alpha: float | Tensor) -> bool:
    """Whether some row may have another alpha."""
    return isinstance(alpha, Tensor) or not 1.0 <= alpha <= 2.0


# A tensor of alpha goes to the kernels for 1 <= alpha <= 2, which find the other rows themselves.


def _entmax_forward(z: Tensor, alpha: float | Tensor, p: Tensor) -> None:
    solve = entmax.forward if _flat(alpha) else steep.forward
    solve(z, alpha, p)


def _entmax_backward(
    p: Tensor, g: Tensor, alpha: float | Tensor, gz: Tensor, change: Tensor | None
) -> None:
    multiply = entmax_backward.backward if _flat(alpha) else steep.backward
    multiply(p, g, alpha, gz, change)


def entmax_loss(
    z: Tensor,
    alpha: float | Tensor,
    index: Tensor | None,
    p: Tensor,
    gap: Tensor,
    lag: Tensor,
    top: Tensor,
) -> None:
    """Rows (n, d) solved into ``p``, ``gap``, ``lag`` and ``top``; see :func:`solve_loss`.

    The lag of an index that is no column means nothing.
    """
    if _flat(alpha):
        entmax.loss(z, alpha, index, p, gap, lag, top)
    if _steep(alpha):
        # the loss must not see p rounded to half precision
        exact = p if p.dtype == torch.float32 else torch.empty_like(p, dtype=torch.float32)
        steep.forward(z, alpha, exact)
        conjugate.steep_loss(z, alpha, index, exact, p, gap, lag, top)


_FORWARD: dict[str, Callable[..., Any]] = {
    "entmax": _entmax_forward,
    "sparsegen": entmax.sparsegen_forward,
    "normmax": normmax.forward,
    "budget": budget.forward,
}
_BACKWARD: dict[str, Callable[..., Any]] = {
    "entmax": _entmax_backward,
    "sparsegen": entmax_backward.sparsegen_backward,
    "normmax": normmax.backward,
    "budget": budget.backward,
}
_LOSS: dict[str, Callable[..., Any]] = {"entmax": entmax_loss}
MAPPINGS = frozenset(_FORWARD)  # all that have kernels here
LOSSES = frozenset(_LOSS)  # the mappings that ``solve_loss`` knows


_HERE = nullcontext()


def on_device_of(x: Tensor) -> AbstractContextManager[Any]:
    """Kernels are launched on the current GPU, which need not be the one that holds ``x``."""
    device = x.get_device()
    return _HERE if device < 0 or device == current_device() else torch.cuda.device(device)


def row_matrix(x: Tensor) -> Tensor:
    """``x`` as a matrix (rows, d) without gaps."""
    if x.ndim == 2 and x.is_contiguous():
        return x
    x = x.detach()
    if x.is_neg():
        x = x.resolve_neg()
    return x.reshape(-1, x.shape[-1]).contiguous()


def result_like(rows: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Room for what has the shape of ``x``, and the same as rows, which those of ``x`` are."""
    if rows is x and type(x) is Tensor:
        out = torch.empty_like(x)
        return out, out
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return out, out.view(rows.shape)


def row_parameters(parameter: float | Tensor, shape: torch.Size) -> float | Tensor:
    """A float, or a vector of one value a row; a tensor has size one in the last dimension."""
    if not isinstance(parameter, Tensor):
        return float(parameter)
    values = parameter.detach()
    if values.dtype not in (torch.float32, torch.float64):
        values = values.float()
    if values.ndim == 2 and len(shape) == 2 and values.shape[0] == shape[0]:
        return values.reshape(-1).contiguous()  # a view may have stride 0
    return values.expand(*shape[:-1], 1).reshape(-1).contiguous()


def forward(name: str, z: Tensor, parameter: float | Tensor) -> Tensor:
    """Probabilities along the last dimension, rounded once to the dtype of ``z``."""
    rows = row_matrix(z)
    p, out = result_like(rows, z)
    with on_device_of(z):
        _FORWARD[name](rows, row_parameters(parameter, z.shape), out)
    return p


def backward(
    name: str, p: Tensor, g: Tensor, parameter: float | Tensor, want_parameter: bool
) -> tuple[Tensor, Tensor]:
    """Gradient in the scores, and in the parameter (one value a row, or empty if not wanted)."""
    rows, grads = row_matrix(p), row_matrix(g)
    gz, out = result_like(rows, p)
    change = rows.new_empty(rows.shape[0], dtype=torch.float32) if want_parameter else None
    with on_device_of(p):
        _BACKWARD[name](rows, grads, row_parameters(parameter, p.shape), out, change)
    return gz, rows.new_empty(0, dtype=torch.float32) if change is None else change


def solve_loss(
    name: str, z: Tensor, parameter: float | Tensor, index: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(gap, lag of the target or 0, max(z), probabilities), as in :mod:`parsimax.kernels.cpu`.

    The first three have one value a row; they are computed in float32 and stored as float64.
    """
    rows = row_matrix(z)
    p, out = result_like(rows, z)
    gap, lag, top = (
        torch.empty(z.shape[:-1], dtype=torch.float64, device=z.device) for _ in range(3)
    )
    flat = None if index is None else index.reshape(-1).contiguous()
    with on_device_of(z):
        _LOSS[name](
            rows,
            row_parameters(parameter, z.shape),
            flat,
            out,
            gap.view(-1),
            lag.view(-1),
            top.view(-1),
        )
    return gap, lag, top, p


def loss_backward(p: Tensor, g: Tensor, index: Tensor | None, glag: Tensor) -> Tensor:
    """``g p - glag e_index`` for one ``g`` and ``glag`` a row, or one for all rows."""
    rows = row_matrix(p)
    gz, out = result_like(rows, p)
    flat = None if index is None else index.reshape(-1).contiguous()
    shape = p.shape[:-1]
    with on_device_of(p):
        conjugate.loss_backward(rows, _scale(g, shape), _scale(glag, shape), flat, out)
    return gz


def _scale(x: Tensor, shape: torch.Size) -> Tensor:
    """A vector of one value a row, or a single value."""
    x = x.detach()
    return x.reshape(1) if x.numel() == 1 else x.expand(shape).reshape(-1).contiguous()


def entmax_domega(p: Tensor, alpha: float | Tensor) -> Tensor:
    """dOmega/dalpha at fixed p, one float64 value a row."""
    out = torch.empty(p.shape[:-1], dtype=torch.float64, device=p.device)
    with on_device_of(p):
        conjugate.entmax_domega(row_matrix(p), row_parameters(alpha, p.shape), out.view(-1))
    return out


def dense_lag(z: Tensor, top: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """(sum_c a_c (top - z_c), sum_c a_c) of each row, in float64; 0 times infinity is 0.

    ``a`` has the shape of ``z``, or is one row for all, or one number.
    """
    a = a.detach()
    a = a.reshape(1, -1).expand(1, z.shape[-1]) if a.numel() <= z.shape[-1] else row_matrix(a)
    lag, total = (torch.empty(z.shape[:-1], dtype=torch.float64, device=z.device) for _ in range(2))
    with on_device_of(z):
        tops = top.detach().reshape(-1).contiguous()
        conjugate.dense_lag(row_matrix(z), tops, a, lag.view(-1), total.view(-1))
    return lag, total
