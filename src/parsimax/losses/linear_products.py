"""The gradients of a linear layer from those of its logits, which are sparse, dense or of rank one.

For row n, with p* = entmax(z_n) and z_n = W h_n + b, the value and its gradient in z_n are

    value_n = scale_n gap + own_n (m - z_target) + each_n sum_c w_c (m - z_c)
    g_n     = scale_n p* - own_n e_target - each_n w

and the gradients are G'h in the weight, G W in the rows, and the sum of G in the bias. The last
term, that of label smoothing, is the same vector for all rows: its part is of rank one. The others
are not zero only on the support and the target.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from parsimax._core.dtypes import HALF, exact, working
from parsimax.mappings.rowmap import Parameter

from .targets import Indices, Options, mean_divisor

if TYPE_CHECKING:
    from parsimax.kernels.cpu.linear import Support


@dataclass(frozen=True)
class Problem:
    """Rows (N, D), a layer (V, D), and how the terms of each row count: see above."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    alpha: Parameter  # a tensor is (1, 1) or (N, 1)
    index: Tensor
    scale: Tensor
    own: Tensor
    each: Tensor
    class_weight: Tensor | None
    smoothed: bool
    backend: str

    def select(self, rows: Tensor | slice) -> Problem:
        """A part of the rows."""
        several = isinstance(self.alpha, Tensor) and len(self.alpha) > 1
        return replace(
            self,
            hidden=self.hidden[rows],
            alpha=self.alpha[rows] if several else self.alpha,  # type: ignore[index]
            index=self.index[rows],
            scale=self.scale[rows],
            own=self.own[rows],
            each=self.each[rows],
        )

    def times(self, g: Tensor) -> Problem:
        """All rows scaled by a gradient from above: one value, or one a row."""
        scale, own, each = (g.to(x.dtype) * x for x in (self.scale, self.own, self.each))
        return replace(self, scale=scale, own=own, each=each)


def as_rows(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    alpha: Parameter,
    indices: Indices,
    options: Options,
    backend: str,
) -> Problem:
    """One row an item, and how much each term of its loss counts, the mean's divisor included."""
    classes, items = len(weight), hidden.shape[:-1]
    divisor = mean_divisor(indices) if options.reduction == "mean" else 1.0
    own = indices.weight * (1 - options.smoothing) / divisor
    each = indices.kept.to(own.dtype) * (options.smoothing / classes) / divisor
    total = classes if options.weight is None else exact(options.weight).sum()
    scale = own + each * total
    if isinstance(alpha, Tensor):
        alpha = (
            alpha.reshape(1, 1) if alpha.numel() == 1 else alpha.expand(*items, 1).reshape(-1, 1)
        )
    return Problem(
        hidden.reshape(-1, hidden.shape[-1]),
        weight,
        bias,
        alpha,
        indices.index.reshape(-1),
        scale.reshape(-1),
        own.reshape(-1),
        each.reshape(-1),
        options.weight,
        options.smoothing > 0,
        backend,
    )


class Wanted(NamedTuple):
    """Which gradients to compute."""

    hidden: bool
    weight: bool
    bias: bool
    alpha: bool


@dataclass(frozen=True)
class Gradients:
    """Buffers in working precision; None where not wanted."""

    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None


def working_dtype(x: Tensor) -> torch.dtype:
    """What gradients are added up in: float32 for half precision."""
    return torch.float32 if x.dtype in HALF else x.dtype


def empty_gradients(problem: Problem, wanted: Wanted) -> Gradients:
    """Zeros."""
    hidden, weight = problem.hidden, problem.weight
    dtype = working_dtype(hidden)
    return Gradients(
        hidden.new_zeros(hidden.shape, dtype=dtype) if wanted.hidden else None,
        weight.new_zeros(weight.shape, dtype=dtype) if wanted.weight else None,
        weight.new_zeros(len(weight), dtype=dtype) if wanted.bias else None,
    )


def rows_of(gradients: Gradients, start: int, stop: int) -> Gradients:
    """The same buffers for a part of the rows."""
    hidden = gradients.hidden
    return replace(gradients, hidden=None if hidden is None else hidden[start:stop])


def add_dense(problem: Problem, p: Tensor, out: Gradients) -> None:
    """Add the part of rows with these probabilities; ``p`` is used up."""
    if problem.hidden.dtype in HALF:
        _add_dense_half(problem, p, out)
        return
    g = p
    g.mul_(problem.scale.to(g.dtype).unsqueeze(-1))
    g.scatter_add_(-1, problem.index.unsqueeze(-1), -problem.own.to(g.dtype).unsqueeze(-1))
    if out.bias is not None:
        out.bias.add_(g.sum(0))
    if out.hidden is not None:
        out.hidden.addmm_(g, problem.weight)
    if out.weight is not None:
        out.weight.addmm_(g.t(), problem.hidden)


def _add_dense_half(problem: Problem, p: Tensor, out: Gradients) -> None:
    """The same by products in half precision, into buffers in float32.

    ``scale`` and ``own`` hold the 1 / N of a mean but not yet the factor from above, so their
    products with p may lie below what float16 can hold. Rows go into the products at unit scale
    and get their factor back in the buffers, or from the other side of the product.
    """
    g = p
    unit = torch.maximum(problem.scale.abs(), problem.own.abs()).to(g.dtype)
    unit = torch.where(unit == 0, 1.0, unit).unsqueeze(-1)
    g.mul_(problem.scale.to(g.dtype).unsqueeze(-1) / unit)
    g.scatter_add_(-1, problem.index.unsqueeze(-1), -problem.own.to(g.dtype).unsqueeze(-1) / unit)
    if out.bias is not None:
        out.bias.add_(torch.mv(g.t(), unit.squeeze(-1)))
    g = g.to(problem.weight.dtype)
    if out.hidden is not None:
        out.hidden.addcmul_((g @ problem.weight).to(unit.dtype), unit)
    if out.weight is not None and len(g) > 0:
        # no sum over the rows leaves [-2^15, 2^15]; a power of two, so that it rounds nothing
        hidden = working(problem.hidden)
        largest = (hidden.abs().amax() * len(g) / 2.0**15).clamp(min=torch.finfo(g.dtype).tiny)
        whole = unit.amax() * torch.exp2(torch.ceil(torch.log2(largest)))
        product = g.t() @ (hidden * (unit / whole)).to(g.dtype)
        out.weight.addcmul_(product.to(whole.dtype), whole)


def add_support(problem: Problem, support: Support, out: Gradients) -> None:
    """Add the part of rows whose support is known: sums of rows of W, and of h."""
    from parsimax.kernels.cpu import linear

    entries = linear.scaled(support, problem.scale.contiguous(), problem.own.contiguous())
    if out.hidden is not None:
        linear.add_product(entries, working(problem.weight).contiguous(), out.hidden)
    if out.weight is None and out.bias is None:
        return
    by_word = linear.transposed(entries, len(problem.weight))
    if out.weight is not None:
        linear.add_product(by_word, working(problem.hidden).contiguous(), out.weight)
    if out.bias is not None:
        linear.add_sums(by_word, out.bias)


def add_rank_one(problem: Problem, out: Gradients) -> None:
    """Add the part of label smoothing, -each_n w, which is the same for all rows."""
    weight, hidden = problem.weight, problem.hidden
    w = weight.new_ones(()) if problem.class_weight is None else problem.class_weight
    w = w.detach().expand(len(weight)).to(working(weight).dtype)
    each = problem.each.to(w.dtype)
    if out.hidden is not None:
        out.hidden.addr_(each, torch.mv(working(weight).t(), w), alpha=-1)
    if out.weight is not None:
        out.weight.addr_(w, torch.mv(working(hidden).t(), each), alpha=-1)
    if out.bias is not None:
        out.bias.sub_(w * each.sum())
