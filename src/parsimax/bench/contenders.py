"""Who takes part in ``parsimax bench rows``: ours, torch, and the packages that are installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

import parsimax.mappings as px
from parsimax.bench import floor

OURS, BASE = "parsimax", "torch.softmax"
LATE = "no time left"  # why a peer was not measured

# A number, or a tensor with one alpha a row whose gradient is asked for, too.
Alpha = float | Literal["tensor"]


@dataclass(frozen=True)
class Inputs:
    """Scores, the gradient of their probabilities, and one alpha a row for those who take it."""

    z: Tensor
    g: Tensor
    alpha: Tensor
    alpha_like_z: Tensor


@dataclass(frozen=True)
class Contender:
    """One way to compute alpha-entmax of rows; ``solve`` takes the scores and the alphas."""

    name: str
    alpha: Alpha
    solve: Callable[[Tensor, Tensor], Tensor]
    same_dtype: bool = False  # whether a tensor of alpha has to have the dtype of the scores

    def forward(self, inputs: Inputs) -> Tensor:
        """Probabilities."""
        return self.solve(inputs.z, self._alphas(inputs))

    def leaves(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """What has a gradient."""
        return (inputs.z, self._alphas(inputs)) if self.alpha == "tensor" else (inputs.z,)

    def _alphas(self, inputs: Inputs) -> Tensor:
        return inputs.alpha_like_z if self.same_dtype else inputs.alpha


def softmax() -> Contender:
    """What all others are compared with."""
    return Contender(BASE, 1.0, lambda z, _: torch.softmax(z, -1))


def take_part(alpha: Alpha, dtype: torch.dtype, device: str) -> Iterator[Contender]:
    """Ours, and what the peers that are installed offer for this alpha."""
    if alpha == "tensor":
        yield Contender(OURS, alpha, px.entmax)
    else:
        yield Contender(OURS, alpha, lambda z, _: px.entmax(z, alpha))
    if present("entmax"):
        yield _entmax(alpha, dtype, device)
        if dtype.itemsize == 2:  # in half precision it is wrong; this is how to use it there
            yield _widened(_entmax(alpha, torch.float32, device))
    if device == "cuda" and present("adasplash") and alpha != "tensor":
        yield from _adasplash(alpha)


def present(package: str) -> bool:
    """Whether a peer can be imported."""
    return importlib.util.find_spec(package) is not None


def _entmax(alpha: Alpha, dtype: torch.dtype, device: str) -> Contender:
    import entmax

    if alpha == 1.5:
        return Contender("entmax.entmax15", alpha, lambda z, _: entmax.entmax15(z, dim=-1))
    if alpha == 2.0:
        return Contender("entmax.sparsemax", alpha, lambda z, _: entmax.sparsemax(z, dim=-1))
    name = "entmax.entmax_bisect"
    if alpha == "tensor":
        return Contender(name, alpha, lambda z, alphas: entmax.entmax_bisect(z, alphas, -1), True)
    # A number would be copied to the device in every call, which no graph can hold; it takes the
    # dtype of the scores there, too.
    value = torch.tensor(alpha, dtype=dtype, device=device)
    return Contender(name, alpha, lambda z, _: entmax.entmax_bisect(z, value, -1))


def _widened(contender: Contender) -> Contender:
    return Contender(
        f"{contender.name}, float32 inside",
        contender.alpha,
        lambda z, alphas: contender.solve(z.float(), alphas).to(z.dtype),
    )


def _adasplash(alpha: float) -> Iterator[Contender]:
    import adasplash

    yield Contender("adasplash", alpha, lambda z, _: adasplash.triton_entmax(z, alpha))
    if alpha in (1.5, 2.0):  # two iterations unless told, where all other alphas have ten
        yield Contender(
            "adasplash, 10 iterations",
            alpha,
            lambda z, _: adasplash.triton_entmax(z, alpha, n_iter=10),
        )


def draw(shape: tuple[int, int], std: float, dtype: torch.dtype, device: str) -> list[Inputs]:
    """Normal scores, as many sets as it takes to stay out of the cache of a GPU."""
    generator = torch.Generator(device).manual_seed(0)
    count = 1
    if device == "cuda":
        cache = torch.cuda.get_device_properties().L2_cache_size
        count = floor.sets(shape, dtype.itemsize, cache)
    alpha = alphas(shape[0]).to(device)

    def one() -> Inputs:
        z = torch.randn(shape, generator=generator, device=device).mul_(std).to(dtype)
        g = torch.randn(shape, generator=generator, device=device).to(dtype)
        wide = alpha.to(torch.promote_types(dtype, torch.float32))
        return Inputs(
            z.requires_grad_(),
            g,
            wide.clone().requires_grad_(),
            alpha.to(dtype, copy=True).requires_grad_(),
        )

    return [one() for _ in range(count)]


def alphas(rows: int) -> Tensor:
    """One alpha a row, (rows, 1), from 1.05 to 1.95 in mixed order; bfloat16 holds each exactly.

    >>> float(alphas(1000).min()), float(alphas(1000).max())
    (1.0546875, 1.9453125)
    """
    steps = torch.linspace(7, 121, rows, dtype=torch.float64).round()
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
    return (1 + steps[order] / 128).float().unsqueeze(-1)
