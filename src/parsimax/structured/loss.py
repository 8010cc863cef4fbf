r"""The SparseMAP loss (Niculae et al. 2018): the Fenchel-Young loss of a structure.

.. math:: L(z, y) = \max_{\mu \in \mathcal M}
          \left( \langle z, \mu \rangle - \tfrac12 \|\mu\|^2 \right)
          + \tfrac12 \|y\|^2 - \langle z, y \rangle, \quad \nabla_z L = \mu^* - y

with the transitions' scores on both sides, where there are some.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from parsimax._core.masks import apply_mask
from parsimax._core.validation import check_choice, check_scores, forward_levels, values_readable

from .base import Structure, instance_sizes
from .sequence import Sequence
from .solving import as_batch, cut_of, sparsemap


def sparsemap_loss(
    scores: Tensor,
    target: Tensor,
    structure: Structure,
    lengths: Tensor | None = None,
    tol: float = 1e-6,
    *,
    mask: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """How far the scores are from giving all probability to ``target``; convex, at least 0.

    It is 0 once the target leads every other structure by a margin: half the number of parts in
    which they differ, counted on both sides. The gradient is marginals minus target, in transitions
    edge marginals minus the target's transitions.

    Args:
        scores: as for :func:`parsimax.sparsemap`, and so are ``structure``, ``lengths``, ``tol``
            and ``mask``.
        target: a structure as zeros and ones, in the shape of the scores; without transitions also
            any marginals. For a :class:`Sequence` also labels (B, n), as integers. What lies beyond
            a length is ignored.
        reduction: "mean" over the instances, "sum" or "none".

    >>> import torch, parsimax as px
    >>> scores = torch.tensor([[[1.0, 0.9], [0.6, 0.3]]], requires_grad=True)
    >>> loss = px.sparsemap_loss(scores, torch.eye(2)[None], px.structured.Matching())
    >>> loss
    tensor(0.6050, grad_fn=<MeanBackward0>)
    >>> torch.autograd.grad(loss, scores)
    (tensor([[[-0.5500,  0.5500],
             [ 0.5500, -0.5500]]]),)
    """
    check_choice(reduction, "reduction", ("mean", "sum", "none"))
    scores = check_scores(scores, "scores")
    result = sparsemap(scores.double(), structure, lengths, tol, mask=mask)
    lead = result.gap.shape
    y = _check_target(target, scores, structure)
    _, _, flat = as_batch(scores, structure, lengths)
    batch, rows, columns = flat.shape
    if lengths is not None:
        y = torch.where(_inside(structure, lengths, lead, scores), y, 0.0)
    if values_readable() and bool(y.detach().isnan().any()):
        raise ValueError(f"labels as target must lie between 0 and {scores.shape[-1] - 1}")
    y = y.reshape(batch, rows, columns)
    allowed = apply_mask(scores, mask).double().reshape(batch, rows, columns)
    if values_readable() and y.device.type == "cpu" and y.numel() > 0:
        _check_sums(y.detach(), target.dtype, allowed.detach(), structure, lengths, scores, lead)
    edges = y_edges = None
    transitions = structure.extra_scores(rows, columns, batch)
    if transitions is not None and rows > 1:
        transitions = transitions.double().expand(batch, rows - 1, columns, columns)
        edges = result.edge_marginals
        assert edges is not None
        edges = edges.reshape(transitions.shape)
        y_edges = y[:, :-1, :, None] * y[:, 1:, None, :]  # exact for zeros and ones
    else:
        transitions = None
    marginals = result.marginals.reshape(batch, rows, columns)
    arguments = (allowed, transitions, y, marginals, edges, y_edges)
    losses: Tensor
    if forward_levels() > 1:
        # torch runs an autograd.Function's jvp outside the outer levels. Through the marginals, the
        # derivative is the same: at the optimum, what they add to it is 0.
        losses = _FenchelYoung.forward(*arguments)
    else:
        losses = _FenchelYoung.apply(*arguments)  # type: ignore[no-untyped-call]
    losses = losses.to(scores.dtype).reshape(lead)
    if reduction == "none":
        return losses
    if reduction == "sum" or batch == 0:
        return losses.sum()
    return losses.mean()


def _check_target(target: object, scores: Tensor, structure: Structure) -> Tensor:
    """The target in float64 and in the shape of the scores."""
    if not isinstance(target, Tensor):
        raise TypeError(f"target must be a torch.Tensor, got {type(target).__name__}")
    if isinstance(structure, Sequence) and target.shape == scores.shape[:-1]:
        return _from_labels(target, scores.shape[-1])
    if target.shape != scores.shape:
        hint = f" or labels {tuple(scores.shape[:-1])}" if isinstance(structure, Sequence) else ""
        raise ValueError(
            f"target must have the shape of the scores, {tuple(scores.shape)}{hint}, "
            f"got {tuple(target.shape)}"
        )
    y = target.double()
    if values_readable():
        fractions = not (isinstance(structure, Sequence) and structure.transitions is not None)
        ok = ((y >= 0) & (y <= 1)) if fractions else ((y == 0) | (y == 1))
        if not bool(ok.all()):
            wanted = "between 0 and 1" if fractions else "0 or 1, where there are transitions"
            raise ValueError(
                f"every value of target must be {wanted}, got {y.detach()[~ok][0].item():g}"
            )
    return y


def _check_sums(
    y: Tensor,
    dtype: torch.dtype,
    scores: Tensor,
    structure: Structure,
    lengths: Tensor | None,
    unshaped: Tensor,
    lead: torch.Size,
) -> None:
    """Sums of parts must be those of structures; where nothing is allowed, there is none."""
    inside = torch.ones_like(y, dtype=torch.bool)
    if lengths is not None:
        inside = _inside(structure, lengths, lead, unshaped).reshape(y.shape)
    some = (inside & (scores != -torch.inf)).flatten(1).any(1)
    off = torch.where(some, structure.target_error(y, inside), 0.0)
    rounding = torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
    limit = 1e-5 + rounding * y.flatten(1).sum(1)
    if bool((off > limit).any()):
        item = int((off > limit).nonzero()[0])
        raise ValueError(
            f"target must be a structure, or a mixture of some, that is {structure}: "
            f"{structure.target_rule}; item {item} of the batch misses that by "
            f"{float(off[item]):.3g}"
        )


def _from_labels(labels: Tensor, k: int) -> Tensor:
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise TypeError(f"labels as target must have an integer dtype, got {labels.dtype}")
    # labels beyond a length may be anything, such as -100; the others are seen by their shape
    inside = (labels >= 0) & (labels < k)
    y = torch.nn.functional.one_hot(torch.where(inside, labels, 0).long(), k).double()
    return torch.where(inside.unsqueeze(-1), y, torch.nan)


def _inside(structure: Structure, lengths: Tensor, lead: torch.Size, scores: Tensor) -> Tensor:
    """True where the lengths reach, in the shape of the scores."""
    _, shape, flat = as_batch(scores, structure, lengths)
    cut, (_, rows, columns) = cut_of(structure, shape), flat.shape
    sizes = instance_sizes(structure, tuple(lead), rows, columns, lengths, cut).to(scores.device)
    row = torch.arange(flat.shape[1], device=scores.device)[:, None] < sizes[:, :1, None]
    column = torch.arange(flat.shape[2], device=scores.device) < sizes[:, 1:, None]
    return (row & column).reshape(scores.shape)


class _FenchelYoung(torch.autograd.Function):
    """The loss of each instance. Marginals come with their graph, for the second derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        z: Tensor,
        transitions: Tensor | None,
        y: Tensor,
        marginals: Tensor,
        edges: Tensor | None,
        y_edges: Tensor | None,
    ) -> Tensor:
        """At least 0 also after rounding."""
        dims = (1, 2)
        loss = _inner(z, marginals).sum(dims) - _inner(z, y).sum(dims)
        loss = loss + (y.square() - marginals.square()).sum(dims) / 2
        if transitions is not None and edges is not None and y_edges is not None:
            gain = _inner(transitions, edges) - _inner(transitions, y_edges)
            loss = loss + gain.sum((1, 2, 3))
        return loss.clamp(min=0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Everything: the gradient is a difference of arguments."""
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Marginals minus target; in the target, target minus scores."""
        z, transitions, y, marginals, edges, y_edges = ctx.saved_tensors
        g = grad[:, None, None]
        in_transitions = None
        if transitions is not None and ctx.needs_input_grad[1]:
            in_transitions = g[..., None] * (edges - y_edges)
        in_y = g * (y - z) if ctx.needs_input_grad[2] else None
        return g * (marginals - y), in_transitions, in_y, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        """The same gradient, along tangents; that of the marginals counts for nothing."""
        z, _, y, marginals, edges, y_edges = ctx.saved_tensors
        along: Tensor = marginals.new_zeros(len(marginals))
        if tangents[0] is not None:
            along = along + (tangents[0] * (marginals - y)).sum((1, 2))
        if tangents[1] is not None:
            along = along + (tangents[1] * (edges - y_edges)).sum((1, 2, 3))
        if tangents[2] is not None:
            along = along + (tangents[2] * (y - z)).sum((1, 2))
        return along


def _inner(z: Tensor, weights: Tensor) -> Tensor:
    """Products in which 0 times infinity is 0."""
    return torch.where(weights == 0, 0.0, z) * weights
