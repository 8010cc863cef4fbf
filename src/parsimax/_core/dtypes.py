"""Which precision things are computed in."""

from __future__ import annotations

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)


def working(z: Tensor) -> Tensor:
    """``z`` in the precision kernels work in: half precision becomes float32."""
    return z.float() if z.dtype in HALF else z


def exact_dtype(z: Tensor) -> torch.dtype:
    """The widest precision of the device that ``z`` is on."""
    return torch.float64 if z.device.type in ("cpu", "cuda") else torch.float32


def exact(z: Tensor) -> Tensor:
    """``z`` in the precision of the plain torch reference: float64 where the device has it."""
    return z.to(exact_dtype(z))


def autocast_on(device: torch.device) -> bool:
    """Whether autocast is enabled for tensors of this device."""
    kind = device.type
    # devices such as meta have none; older torch.compile cannot trace the question
    known = kind in ("cpu", "cuda") or (
        torch.compiler.is_compiling() or torch.amp.is_autocast_available(kind)
    )
    return known and torch.is_autocast_enabled(kind)


def autocast_scores(z: Tensor) -> Tensor:
    """Follow torch's own softmax, which CUDA's autocast lifts from half precision to float32."""
    if z.dtype in HALF and z.device.type == "cuda" and autocast_on(z.device):
        return z.float()
    return z
