"""What tests of row kernels share: where they run, poisoned outputs, the float64 reference."""

from __future__ import annotations

import numpy as np
import torch
from tests.contracts.scores import adversarial
from torch import Tensor

from parsimax.mappings.rowmap import reference, rowmap_named

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# One entry, a part of a tile, several tiles; and longer than any row that is held whole.
SHORT, STREAMED = (1, 2, 33, 300), 8200

Parameter = float | Tensor


def _there(parameter: Parameter) -> Parameter:
    return parameter.to(DEVICE) if isinstance(parameter, Tensor) else parameter


def _column(parameter: Parameter) -> Parameter:
    return parameter.double()[:, None] if isinstance(parameter, Tensor) else parameter


def hard_rows(d: int) -> Tensor:
    """The rows that break solvers, as one float32 tensor."""
    return torch.from_numpy(np.stack(list(adversarial(d).values()))).float()


def solve(module, z: Tensor, parameter: Parameter) -> Tensor:
    """``module.forward`` into memory full of NaN, so that what is not written shows."""
    z = z.to(DEVICE)
    out = torch.full_like(z, torch.nan)
    module.forward(z, _there(parameter), out)
    return out.cpu()


def exact(name: str, z: Tensor, parameter: Parameter) -> Tensor:
    """The plain torch solution in float64; a tensor parameter has one value a row."""
    return reference(rowmap_named(name), z.double(), _column(parameter))


def pull_back(module, p: Tensor, g: Tensor, parameter: Parameter) -> tuple[Tensor, Tensor]:
    """(gradient in the scores, gradient in the parameter), both poisoned first."""
    p, g = p.to(DEVICE), g.to(DEVICE)
    out, alone = torch.full_like(p, torch.nan), torch.full_like(p, torch.nan)
    change = torch.full((len(p),), torch.nan, dtype=torch.float32, device=DEVICE)
    module.backward(p, g, _there(parameter), out, change)
    module.backward(p, g, _there(parameter), alone, None)
    # the first does not depend on whether the second is asked for, but for how it is compiled
    assert worst(out.nan_to_num(7.0), alone.nan_to_num(7.0).double()) < 1e-6
    return out.cpu(), change.cpu()


def exact_pull_back(name: str, p: Tensor, g: Tensor, parameter: Parameter) -> tuple[Tensor, Tensor]:
    """The same in float64, at the same probabilities."""
    rowmap = rowmap_named(name)
    p, g, parameter = p.double(), g.double(), _column(parameter)
    return rowmap.jacobian(p, g, parameter), (g * rowmap.sensitivity(p, parameter)).sum(-1)


def worst(value: Tensor, expected: Tensor) -> float:
    """The largest error, relative to the largest entry of its row where that is above one."""
    scale = expected.abs().amax(-1, keepdim=True).clamp(min=1.0)
    return float(((value.double() - expected).abs() / scale).max())


def sums_off(p: Tensor, mass: float = 1.0) -> float:
    """How far the sums in float64 are off, relative to a mass above one."""
    return float((p.double().sum(-1) - mass).abs().max()) / max(1.0, mass)
