"""Numba kernels for the CPU: rows of every simplex mapping, forward, backward and conjugate.

Every kernel is a serial loop over a range of rows; :mod:`.pool` splits the rows over threads. The
functions here take tensors of any shape whose last dimension is the row, and any float dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import box, budget, conjugate, entmax, entmax_backward, fusedmax, normmax, oscarmax
from .pool import for_rows

_SLAB = 1 << 18  # scores that are copied at a time where rows do not lie together

_FORWARD: dict[str, Callable[..., Any]] = {
    "entmax": entmax.entmax_forward,
    "sparsegen": entmax.sparsegen_forward,
    "normmax": normmax.normmax_forward,
    "budget": budget.budget_forward,
    "fusedmax": fusedmax.fusedmax_forward,
    "oscarmax": oscarmax.oscarmax_forward,
}
_BACKWARD: dict[str, Callable[..., Any]] = {
    "entmax": entmax_backward.entmax_backward,
    "sparsegen": entmax_backward.sparsegen_backward,
    "normmax": normmax.normmax_backward,
    "budget": budget.budget_backward,
    "fusedmax": fusedmax.fusedmax_backward,
    "oscarmax": oscarmax.oscarmax_backward,
}
_CONJUGATE: dict[str, Callable[..., Any]] = {
    "entmax": conjugate.entmax_conjugate,
    "sparsegen": conjugate.sparsegen_conjugate,
    "normmax": conjugate.normmax_conjugate,
    "budget": conjugate.budget_conjugate,
}
_BOX: dict[str, Callable[..., Any]] = {
    "constrained_softmax": box.constrained_softmax_forward,
    "constrained_sparsemax": box.constrained_sparsemax_forward,
}
MAPPINGS = frozenset(_FORWARD) | frozenset(
    _BOX
)  # the mappings that ``forward`` and ``backward`` know
LOSSES = frozenset(_CONJUGATE)  # the mappings that ``solve_loss`` knows


def _rows(x: Tensor) -> Any:
    """``x`` as a C-contiguous (rows, d) array, in float32 where it was half precision."""
    x = x.detach()
    x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return x.reshape(-1, x.shape[-1]).contiguous().numpy()


def _parameters(parameter: float | Tensor, shape: torch.Size) -> Any:
    """One float64 value, or one a row; a tensor has size one in the last dimension."""
    if not isinstance(parameter, Tensor):
        return np.array([parameter])
    values = parameter.detach().double()
    if values.numel() == 1:
        return values.reshape(1).numpy()
    return values.expand(*shape[:-1], 1).reshape(-1).contiguous().numpy()


def _slabs(x: Tensor) -> Iterator[tuple[slice, ...]]:
    """Pieces of a tensor whose rows do not lie together, cut along its longest other dimension.

    A row is copied to be computed, and copying all of them at once would take a whole buffer.
    """
    sizes = x.shape[:-1]
    longest = max(range(len(sizes)), key=lambda i: sizes[i])
    step = max(1, _SLAB * sizes[longest] // x.numel())
    for start in range(0, sizes[longest], step):
        yield (*(slice(None),) * longest, slice(start, start + step))


def _part(parameter: float | Tensor, slab: tuple[slice, ...]) -> float | Tensor:
    """The parameters of a slab; a size of one belongs to all of them."""
    if not isinstance(parameter, Tensor) or parameter.shape[len(slab) - 1] == 1:
        return parameter
    return parameter[slab]


def _in_slabs(x: Tensor) -> bool:
    return x.ndim > 1 and x.numel() > _SLAB and not x.is_contiguous()


def forward(name: str, z: Tensor, parameter: float | Tensor) -> Tensor:
    """Probabilities along the last dimension, rounded once to the dtype of ``z``.

    The result lies in memory as the scores do.
    """
    if _in_slabs(z):
        p = torch.empty_like(z)
        for slab in _slabs(z):
            p[slab] = forward(name, z[slab].contiguous(), _part(parameter, slab))
        return p
    rows = _rows(z)
    # of the final shape: a view as the result could not be changed in place
    p = torch.empty(z.shape, dtype=torch.from_numpy(rows).dtype, device="cpu")
    out = p.view(rows.shape).numpy()
    for_rows(_FORWARD[name], *rows.shape, rows, _parameters(parameter, z.shape), out)
    return p.to(z.dtype)


def backward(
    name: str, p: Tensor, g: Tensor, parameter: float | Tensor, want_parameter: bool
) -> tuple[Tensor, Tensor]:
    """Gradient in the scores, and in the parameter (one value a row, or empty if not wanted)."""
    if _in_slabs(p):
        gz = torch.empty_like(p)
        shape = (*p.shape[:-1], 1) if want_parameter else (0,)
        change = torch.empty(shape, dtype=torch.float64, device="cpu")
        for slab in _slabs(p):
            part = _part(parameter, slab)
            gz[slab], rows_change = backward(
                name, p[slab].contiguous(), g[slab], part, want_parameter
            )
            if want_parameter:
                change[slab] = rows_change.reshape(change[slab].shape)
        return gz, change.reshape(-1)
    rows, grads = _rows(p), _rows(g)
    out = torch.empty(rows.shape, dtype=torch.from_numpy(rows).dtype, device="cpu")
    dparam = np.zeros(len(rows) if want_parameter else 0)
    for_rows(
        _BACKWARD[name],
        *rows.shape,
        rows,
        grads,
        _parameters(parameter, p.shape),
        out.numpy(),
        dparam,
    )
    return out.reshape(p.shape).to(p.dtype), torch.from_numpy(dparam)


def box_forward(name: str, z: Tensor, upper: Tensor, lower: Tensor | None, slack: float) -> Tensor:
    """Probabilities along the last dimension between bounds of the same shape and dtype.

    A sum of bounds may miss one by ``slack``.
    """
    rows, high, low = _rows(z), _rows(upper), _no_rows(z) if lower is None else _rows(lower)
    p = torch.empty(z.shape, dtype=z.dtype, device="cpu")
    for_rows(_BOX[name], *rows.shape, rows, high, low, slack, p.view(rows.shape).numpy())
    return p


def box_backward(
    name: str, p: Tensor, g: Tensor, upper: Tensor, lower: Tensor | None, want_upper: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients in the scores, in the upper bounds (empty if not wanted) and in the lower ones."""
    rows, grads, high = _rows(p), _rows(g), _rows(upper)
    low = _no_rows(p) if lower is None else _rows(lower)
    wanted = (True, want_upper, lower is not None)
    gz, gu, gl = (
        torch.empty(p.shape if want else (0, p.shape[-1]), dtype=p.dtype, device="cpu")
        for want in wanted
    )
    out = [x.view(-1, p.shape[-1]).numpy() for x in (gz, gu, gl)]
    dense = name == "constrained_softmax"
    for_rows(box.box_backward, *rows.shape, rows, grads, high, low, dense, *out)
    return gz, gu, None if lower is None else gl


def _no_rows(x: Tensor) -> Any:
    return torch.empty((0, 0), dtype=x.dtype, device="cpu").numpy()


def solve_loss(
    name: str, z: Tensor, parameter: float | Tensor, index: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(gap, lag of the target or 0, max(z), probabilities): see :mod:`.conjugate`.

    The first three are in float64 and have one value a row; the row maximum is 0 where it is not
    finite.
    """
    rows = _rows(z)
    p = torch.empty(rows.shape, dtype=torch.from_numpy(rows).dtype, device="cpu")
    gap, lag, top = (torch.empty(len(rows), dtype=torch.float64, device="cpu") for _ in range(3))
    for_rows(
        _CONJUGATE[name],
        *rows.shape,
        rows,
        _parameters(parameter, z.shape),
        _indices(index),
        p.numpy(),
        gap.numpy(),
        lag.numpy(),
        top.numpy(),
    )
    shape = z.shape[:-1]
    return (
        gap.reshape(shape),
        lag.reshape(shape),
        top.reshape(shape),
        p.reshape(z.shape).to(z.dtype),
    )


def _indices(index: Tensor | None) -> Any:
    return np.empty(0, np.int64) if index is None else index.reshape(-1).contiguous().numpy()


def loss_backward(p: Tensor, g: Tensor, index: Tensor | None, glag: Tensor) -> Tensor:
    """``g p - glag e_index`` for one ``g`` and ``glag`` a row."""
    rows = _rows(p)
    out = torch.empty(rows.shape, dtype=torch.from_numpy(rows).dtype, device="cpu")
    scales = [x.double().expand(p.shape[:-1]).reshape(-1).contiguous().numpy() for x in (g, glag)]
    for_rows(
        conjugate.loss_backward,
        *rows.shape,
        rows,
        scales[0],
        _indices(index),
        scales[1],
        out.numpy(),
    )
    return out.reshape(p.shape).to(p.dtype)


def entmax_domega(p: Tensor, alpha: float | Tensor) -> Tensor:
    """dOmega/dalpha at fixed p, one float64 value a row."""
    rows = _rows(p)
    out = torch.empty(len(rows), dtype=torch.float64, device="cpu")
    for_rows(conjugate.entmax_domega, *rows.shape, rows, _parameters(alpha, p.shape), out.numpy())
    return out.reshape(p.shape[:-1])


def dense_lag(z: Tensor, top: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """(sum_c a_c (top - z_c), sum_c a_c) of each row, in float64; 0 times infinity is 0."""
    rows = _rows(z)
    if a.numel() <= z.shape[-1]:
        a = a.reshape(-1, a.shape[-1]).expand(1, z.shape[-1])
    lag, total = (torch.empty(len(rows), dtype=torch.float64, device="cpu") for _ in range(2))
    tops = top.detach().double().reshape(-1).contiguous()
    arrays = (x.numpy() for x in (tops, torch.from_numpy(_rows(a)), lag, total))
    for_rows(conjugate.dense_lag, *rows.shape, rows, *arrays)
    return lag.reshape(z.shape[:-1]), total.reshape(z.shape[:-1])
