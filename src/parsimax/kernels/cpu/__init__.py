"""Numba kernels for the CPU: rows of every simplex mapping, forward, backward and conjugate.

Every kernel is a serial loop over a range of rows; :mod:`.pool` splits the rows over threads. The
functions here take tensors of any shape whose last dimension is the row, and any float dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import budget, entmax, normmax
from .pool import for_rows

_FORWARD: dict[str, Callable[..., Any]] = {
    "entmax": entmax.entmax_forward,
    "sparsegen": entmax.sparsegen_forward,
    "normmax": normmax.normmax_forward,
    "budget": budget.budget_forward,
}
_BACKWARD: dict[str, Callable[..., Any]] = {
    "entmax": entmax.entmax_backward,
    "sparsegen": entmax.sparsegen_backward,
    "normmax": normmax.normmax_backward,
    "budget": budget.budget_backward,
}
_CONJUGATE: dict[str, Callable[..., Any]] = {"entmax": entmax.entmax_conjugate}


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


def forward(name: str, z: Tensor, parameter: float | Tensor) -> Tensor:
    """Probabilities along the last dimension, rounded once to the dtype of ``z``."""
    rows = _rows(z)
    # of the final shape: a view as the result could not be changed in place
    p = torch.empty(z.shape, dtype=torch.from_numpy(rows).dtype)
    out = p.view(rows.shape).numpy()
    for_rows(_FORWARD[name], *rows.shape, rows, _parameters(parameter, z.shape), out)
    return p.to(z.dtype)


def backward(
    name: str, p: Tensor, g: Tensor, parameter: float | Tensor, want_parameter: bool
) -> tuple[Tensor, Tensor]:
    """Gradient in the scores, and in the parameter (one value a row, or empty if not wanted)."""
    rows, grads = _rows(p), _rows(g)
    out = torch.empty(rows.shape, dtype=torch.from_numpy(rows).dtype)
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


def has_conjugate(name: str) -> bool:
    """Whether :func:`conjugate` has a kernel for this mapping."""
    return name in _CONJUGATE


def conjugate(name: str, z: Tensor, p: Tensor, parameter: float | Tensor) -> tuple[Tensor, Tensor]:
    """(Omega*(z) - max(z), max(z)) of each row, in float64."""
    rows = _rows(z)
    gap, top = np.empty(len(rows)), np.empty(len(rows))
    parameters = _parameters(parameter, z.shape)
    for_rows(_CONJUGATE[name], *rows.shape, rows, _rows(p), parameters, gap, top)
    shape = z.shape[:-1]
    return torch.from_numpy(gap).reshape(shape), torch.from_numpy(top).reshape(shape)
