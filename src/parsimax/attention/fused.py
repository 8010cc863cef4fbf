"""Attention by one kernel where there is one: few keys, on a GPU, in half precision.

Many keys are the matter of :mod:`.flash`. Everything else takes the plain path of
:mod:`.functional`, and so does whatever differentiates the gradient once more.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from parsimax._core.backend import choose, refuse_wrappers
from parsimax._core.validation import recorded, transform_or_forward_mode, without_values
from parsimax.mappings import Entmax, Mapping, Softmax, Sparsemax
from parsimax.mappings.rowmap import fit, kernels_allowed

from .again import gradients_again, gradients_wanted
from .choice import plain


def kernel_alpha(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: float | Tensor,
    mapping: Mapping | None,
    dropout_p: float,
    paged: bool = False,
) -> float | Tensor | None:
    """The alpha to call a kernel with, or None if the plain path must do it.

    The first dimension of k and v is that of q, unless they are pages.
    """
    if dropout_p > 0 or q.device.type != "cuda" or not q.ndim == k.ndim == v.ndim == 4:
        return None
    refuse_wrappers(k, v)
    if not q.dtype == k.dtype == v.dtype or choose("auto", q) != "triton":
        return None
    if not (paged or q.shape[0] == k.shape[0]) or k.shape[:2] != v.shape[:2]:
        return None
    if isinstance(alpha, Tensor) and alpha.device != q.device:
        return None
    if transform_or_forward_mode() or (not recorded() and without_values(q)):
        return None
    return _alpha_of(alpha, mapping, q.shape[1])


def few_keys(q: Tensor, k: Tensor, v: Tensor, alpha: float | Tensor) -> bool:
    """Whether :func:`fused_attention` is for this problem."""
    if recorded() or (not isinstance(alpha, Tensor) and alpha > 2.0):
        return False
    fits: bool = _kernels()[1].fits(q, k, v)
    return fits


def _alpha_of(alpha: float | Tensor, mapping: Mapping | None, heads: int) -> float | Tensor | None:
    if mapping is not None:
        if isinstance(mapping, Softmax):
            return 1.0
        if isinstance(mapping, Sparsemax):
            return 2.0
        if not isinstance(mapping, Entmax) or isinstance(mapping.alpha, Tensor):
            return None
        alpha = mapping.alpha
    if isinstance(alpha, Tensor):
        one_a_head = alpha.ndim == 1 and alpha.shape[0] == heads and alpha.is_floating_point()
        return alpha if one_a_head else None
    alpha = plain(alpha)
    return float(alpha) if 1.0 <= alpha < math.inf else None


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Tensor | None,
    causal: bool,
    alpha: float | Tensor,
    scale: float,
) -> Tensor:
    """Context (B, Hq, Lq, Ev); ``visible`` broadcasts to the scores, alpha is a number or (Hq,)."""
    seen = None if visible is None else visible.expand(*q.shape[:3], k.shape[2])
    tensor = alpha if isinstance(alpha, Tensor) else None
    value = 0.0 if isinstance(alpha, Tensor) else alpha
    arguments = (q, k, v, seen, causal, tensor, value, scale)
    if not gradients_wanted(q, k, v, tensor):
        return _forward(*arguments)[0]
    out: Tensor = _Fused.apply(*arguments)  # type: ignore[no-untyped-call]
    return out


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        q, k, v, seen, causal, tensor, value, scale = arguments
        out, saved = _forward(*arguments)
        # as they came: a copy made here would have no part in a gradient of the gradient
        ctx.save_for_backward(q, k, v, seen, tensor, *saved)
        ctx.causal, ctx.value, ctx.scale = causal, value, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = grads
        q, k, v, seen, tensor, *kept = ctx.saved_tensors
        want = tensor is not None and ctx.needs_input_grad[5]
        if not kernels_allowed(g):
            gq, gk, gv, ga = _plain_gradients(ctx, (q, k, v, seen, tensor), g)
            return gq, gk, gv, None, None, ga, None, None
        alpha = ctx.value if tensor is None else alphas_of_heads(tensor)
        on_device_of, short_attention = _kernels()
        saved = short_attention.Saved(*kept)
        with on_device_of(q):
            gq, gk, gv, change = short_attention.backward(
                *_in_rows(q, k, v), seen, ctx.causal, alpha, ctx.scale, saved, g, want
            )
        gk, gv = _of_groups(gk, k), _of_groups(gv, v)
        ga = None if change is None else fit(change.sum(0), tensor)
        return gq, gk, gv, None, None, ga, None, None


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Tensor | None,
    causal: bool,
    tensor: Tensor | None,
    value: float,
    scale: float,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The context, and what its backward takes."""
    on_device_of, short_attention = _kernels()
    alpha = value if tensor is None else alphas_of_heads(tensor)
    with on_device_of(q):
        out, saved = short_attention.forward(*_in_rows(q, k, v), seen, causal, alpha, scale)
    return out, saved


@cache
def _kernels() -> tuple[Any, Any]:
    """What is imported only where it is needed; to look it up takes as long as a launch."""
    from parsimax.kernels.gpu import on_device_of, short_attention

    return on_device_of, short_attention


def _in_rows(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A row of a head must lie in one piece."""
    whole = [x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v)]
    return whole[0], whole[1], whole[2]


def alphas_of_heads(alpha: Tensor) -> Tensor:
    """As kernels read them: one after the other, with no fewer digits than float32."""
    kept = alpha.detach()
    return (kept if kept.dtype in (torch.float32, torch.float64) else kept.float()).contiguous()


def _of_groups(gradient: Tensor, like: Tensor) -> Tensor:
    """Query heads that share keys add up."""
    if gradient.shape == like.shape:
        return gradient
    items, heads, *rest = like.shape
    return gradient.reshape(items, heads, -1, *rest).sum(2)


def _plain_gradients(ctx: Any, tensors: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    """In operations that can be differentiated again."""
    from .choice import entmax_of_heads
    from .functional import attend

    q, k, v, seen, tensor = tensors
    if ctx.causal:
        band = q.new_ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
        seen = band if seen is None else seen & band
    grouped = q.shape[1] != k.shape[1]

    def context_of(q: Tensor, k: Tensor, v: Tensor, tensor: Tensor | None) -> Tensor:
        alpha = ctx.value if tensor is None else tensor
        return attend(
            q, k, v, lambda s, m: entmax_of_heads(s, alpha, m), seen, None, 0.0, ctx.scale, grouped
        ).context

    inputs = (q, k, v, tensor)
    wanted = [x is not None and x.requires_grad for x in inputs]
    return tuple(gradients_again(context_of, inputs, wanted, g))
