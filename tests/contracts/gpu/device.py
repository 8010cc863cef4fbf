"""Where the Triton kernels are tested: on the GPU if there is one, else by Triton's interpreter.

The interpreter takes some milliseconds for each operation on a tile, so tests here put many rows
into few calls.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.contracts.members import Member

pytest.importorskip("triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def on_device(x: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A new tensor for the kernels to work on."""
    return torch.as_tensor(x).detach().clone().to(DEVICE, dtype)


def triton_rows(member: Member, z: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    """The mapping by its Triton kernel."""
    return member.function(z, *args, backend="triton", **options)


def with_gradient(
    member: Member, z: torch.Tensor, weights: torch.Tensor, backend: str = "triton", **options: Any
) -> tuple[torch.Tensor, ...]:
    """(p, gradient in the scores, and in the parameter if that is a tensor)."""
    z = z.detach().clone().requires_grad_()
    inputs = [z]
    name = member.family.parameter
    if isinstance(options.get(name), torch.Tensor):
        options[name] = options[name].detach().clone().requires_grad_()
        inputs.append(options[name])
    p = member.function(z, backend=backend, **options)
    return p.detach(), *torch.autograd.grad(p, inputs, weights.to(p))


def numpy(x: torch.Tensor) -> np.ndarray:
    """In float64, on the CPU."""
    return x.detach().double().cpu().numpy()
