r"""Multi-head attention (Vaswani et al. 2017) with torch's own interface and sparse weights.

.. math:: \mathrm{head}_h = \Pi_h\!\left(\frac{Q W^Q_h (K W^K_h)^\top}{\sqrt{d}}\right) V W^V_h
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parsimax._core.dtypes import autocast_on
from parsimax._core.records import AttentionOutput
from parsimax.mappings import Mapping

from .choice import (
    DEFAULT_ALPHA,
    check_module_alpha,
    check_one_choice,
    entmax_of_heads,
    hold,
    read_mapping,
    shown,
)
from .functional import attend, attention
from .inputs import check_dropout, check_flag, check_size
from .torch_masks import check_sequences, joined, read_masks


class MultiheadAttention(nn.Module):
    """``torch.nn.MultiheadAttention`` with entmax, or any mapping, in place of softmax.

    Arguments, parameter names, initial values and layouts are torch's, and so is the **polarity of
    masks: True hides a key** (everywhere else in parsimax True means allowed). At ``alpha=1``
    outputs, weights and gradients are torch's, except that a query that sees no key gets weights of
    zero, where torch may give NaN.

    Args:
        embed_dim: Size of queries and of the output.
        num_heads: Number of heads, each of size ``embed_dim // num_heads``.
        dropout: Probability with which a weight is dropped in training.
        bias: Whether the projections add a bias.
        add_bias_kv: Whether a learned key and value are appended.
        add_zero_attn: Whether a key and a value of zeros are appended.
        kdim: Size of keys if it is not ``embed_dim``.
        vdim: Size of values if it is not ``embed_dim``.
        batch_first: Whether batched tensors are (N, L, E) and not (L, N, E).
        alpha: 1 is softmax, 2 sparsemax. A number, a tensor (num_heads,), a Parameter, which is
            learned, or a Module that gives such a tensor, as ``AdaptiveAlpha(num_heads)``.
        mapping: Any mapping, text such as ``"sparsegen(lam=0.5)"``, or a Module ``(z, mask=...)``,
            instead of alpha.

    The state_dict of a ``torch.nn.MultiheadAttention`` with the same arguments loads with
    ``strict=True``. A learned alpha adds parameters that torch's module does not have:
    :meth:`from_torch` copies all others strictly and leaves alpha at its start.

    >>> import torch, parsimax as px
    >>> attention = px.nn.MultiheadAttention(8, 2, batch_first=True, alpha=px.nn.AdaptiveAlpha(2))
    >>> x = torch.randn(3, 5, 8)
    >>> context, weights = attention(x, x, x)
    >>> context.shape, weights.shape
    (torch.Size([3, 5, 8]), torch.Size([3, 5, 5]))
    """

    # torch.nn.TransformerEncoderLayer reads this: if it were True, that layer would skip our
    # forward when it evaluates, and compute softmax attention from our weights instead.
    _qkv_same_embed_dim = False

    in_proj_weight: nn.Parameter | None
    q_proj_weight: nn.Parameter | None
    k_proj_weight: nn.Parameter | None
    v_proj_weight: nn.Parameter | None
    in_proj_bias: nn.Parameter | None
    bias_k: nn.Parameter | None
    bias_v: nn.Parameter | None
    alpha: Any
    mapping: Any

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        alpha: float | Tensor | nn.Module = DEFAULT_ALPHA,
        mapping: Mapping | str | nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.embed_dim = check_size(embed_dim, "embed_dim")
        self.num_heads = check_size(num_heads, "num_heads")
        if embed_dim % num_heads:
            raise ValueError(
                f"embed_dim must be a multiple of num_heads, got {embed_dim} and {num_heads}"
            )
        self.head_dim = embed_dim // num_heads
        self.kdim = embed_dim if kdim is None else check_size(kdim, "kdim")
        self.vdim = embed_dim if vdim is None else check_size(vdim, "vdim")
        self.dropout = check_dropout(dropout, "dropout")
        self.batch_first = check_flag(batch_first, "batch_first")
        self.add_zero_attn = check_flag(add_zero_attn, "add_zero_attn")
        check_one_choice(alpha, mapping)

        def empty(*shape: int, wanted: bool = True) -> nn.Parameter | None:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype)) if wanted else None

        packed = self.kdim == self.vdim == embed_dim
        self.in_proj_weight = empty(3 * embed_dim, embed_dim, wanted=packed)
        self.q_proj_weight = empty(embed_dim, embed_dim, wanted=not packed)
        self.k_proj_weight = empty(embed_dim, self.kdim, wanted=not packed)
        self.v_proj_weight = empty(embed_dim, self.vdim, wanted=not packed)
        self.in_proj_bias = empty(3 * embed_dim, wanted=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.bias_k = empty(1, 1, embed_dim, wanted=add_bias_kv)
        self.bias_v = empty(1, 1, embed_dim, wanted=add_bias_kv)
        self._reset_parameters()

        if mapping is None:
            check_module_alpha(alpha, num_heads)
            hold(self, "alpha", alpha)
            self.mapping = None
        else:
            self.alpha = None
            self.mapping = read_mapping(mapping)

    def _reset_parameters(self) -> None:
        """In torch's order, so that the same seed gives the same weights."""
        for weight in (
            self.in_proj_weight,
            self.q_proj_weight,
            self.k_proj_weight,
            self.v_proj_weight,
        ):
            if weight is not None:
                nn.init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)
        for extra in (self.bias_k, self.bias_v):
            if extra is not None:
                nn.init.xavier_normal_(extra)

    @classmethod
    def from_torch(
        cls,
        module: nn.MultiheadAttention,
        *,
        alpha: float | Tensor | nn.Module = DEFAULT_ALPHA,
        mapping: Mapping | str | nn.Module | None = None,
    ) -> MultiheadAttention:
        """A copy of torch's module with another mapping.

        Every parameter of torch's module is copied, or an error says which could not be; only
        those of ``alpha`` and ``mapping`` are new.

        >>> import torch, parsimax as px
        >>> dense = torch.nn.MultiheadAttention(8, 2)
        >>> sparse = px.nn.MultiheadAttention.from_torch(dense, alpha=px.nn.AdaptiveAlpha(2))
        >>> bool((sparse.in_proj_weight == dense.in_proj_weight).all())
        True
        """
        if not isinstance(module, nn.MultiheadAttention):
            raise TypeError(
                f"module must be a torch.nn.MultiheadAttention, got {type(module).__name__}"
            )
        like = module.out_proj.weight
        copy = cls(
            module.embed_dim,
            module.num_heads,
            module.dropout,
            module.in_proj_bias is not None,
            module.bias_k is not None,
            module.add_zero_attn,
            module.kdim,
            module.vdim,
            module.batch_first,
            like.device,
            like.dtype,
            alpha=alpha,
            mapping=mapping,
        )
        missing, unexpected = copy.load_state_dict(module.state_dict(), strict=False)
        unfilled = [name for name in missing if not name.startswith(("alpha", "mapping."))]
        if unfilled or unexpected:
            raise ValueError(
                f"module must have exactly the parameters of torch's own, got {unexpected} besides "
                f"and no {unfilled}"
            )
        for name, parameter in module.named_parameters():
            copy.get_parameter(name).requires_grad_(parameter.requires_grad)
        return copy.train(module.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> AttentionOutput:
        """Attend; unpacks like the pair that torch returns.

        Args:
            query: (L, E) or batched, (L, N, E) or with ``batch_first`` (N, L, E).
            key: The same with S for L and ``kdim`` for E.
            value: The same with S for L and ``vdim`` for E.
            key_padding_mask: (N, S), unbatched (S,); bool, **True hides a key**, or added.
            need_weights: Whether weights are returned, else None. Without them this is
                :func:`px.attention <parsimax.attention>`, whose memory is linear in L and S but
                for masks that are not; dropout may then drop others under the same seed.
            attn_mask: (L, S) or (N * num_heads, L, S); bool, **True hides a key**, or added.
            average_attn_weights: Whether returned weights (N, L, S) are the mean over the heads, or
                those of each head, (N, num_heads, L, S).
            is_causal: Hide key j from query i if j > i, besides what the masks hide. (In torch this
                is only a hint about ``attn_mask``; here it needs no mask.)
        """
        sizes = (self.embed_dim, self.kdim, self.vdim)
        batched = check_sequences(query, key, value, sizes, self.batch_first)
        self._check_dtypes(query, key, value)
        if not batched:
            query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        items, length = query.shape[:2]
        shape = torch.Size((items, self.num_heads, length, key.shape[1]))
        extra = (self.bias_k is not None) + self.add_zero_attn
        is_causal = check_flag(is_causal, "is_causal")
        # who needs no weights leaves them to px.attention, which need not hold them
        held = check_flag(need_weights, "need_weights") or isinstance(self.mapping, nn.Module)
        in_mask = is_causal and (held or extra > 0)  # keys that are appended are seen by all
        visible, bias = read_masks(
            key_padding_mask, attn_mask, in_mask, shape, batched, query.device
        )  # fmt: skip
        q, k, v = self._project(query, key, value)
        k, v = self._append(k, self.bias_k), self._append(v, self.bias_v)
        if extra and visible is not None:
            visible = F.pad(visible, (0, extra), value=True)
        if extra and bias is not None:
            bias = F.pad(bias, (0, extra))
        heads = self._split(q), self._split(k), self._split(v)
        dropout, scale = self.dropout if self.training else 0.0, self.head_dim**-0.5
        weights = None
        if held:
            context, weights = attend(*heads, self._weigh, visible, bias, dropout, scale)
        else:
            mask = joined(visible, bias)
            choice = {"alpha": self._alpha()} if self.mapping is None else {"mapping": self.mapping}
            context = attention(*heads, mask, dropout, is_causal and not in_mask, scale, **choice)
        return self._finish(
            context, weights if need_weights else None, average_attn_weights, batched
        )

    def _check_dtypes(self, *inputs: Tensor) -> None:
        own = self.out_proj.weight.dtype
        if autocast_on(inputs[0].device):
            return
        for name, x in zip(("query", "key", "value"), inputs, strict=True):
            if x.dtype != own:
                raise TypeError(
                    f"{name} must have the dtype of the module's parameters, {own}, got {x.dtype}"
                )

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        weights: tuple[Any, ...] = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        inputs = (query, key, value)
        return [F.linear(*parts) for parts in zip(inputs, weights, biases, strict=True)]

    def _append(self, x: Tensor, learned: Tensor | None) -> Tensor:
        """Keys or values (N, S, E) with the learned one and that of zeros behind them."""
        items = x.shape[0]
        parts = [x]
        if learned is not None:
            parts.append(learned.expand(items, 1, -1))
        if self.add_zero_attn:
            parts.append(x.new_zeros(items, 1, self.embed_dim))
        return torch.cat(parts, 1) if len(parts) > 1 else x

    def _split(self, x: Tensor) -> Tensor:
        """(N, L, E) -> (N, H, L, E / H)."""
        return x.reshape(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)

    def _weigh(self, scores: Tensor, visible: Tensor | None) -> Tensor:
        if self.mapping is not None:
            weights: Tensor = self.mapping(scores, mask=visible)
            return weights
        return entmax_of_heads(scores, self._alpha(), visible)

    def _alpha(self) -> Any:
        return self.alpha() if isinstance(self.alpha, nn.Module) else self.alpha

    def _finish(
        self, context: Tensor, weights: Tensor | None, average: bool, batched: bool
    ) -> AttentionOutput:
        """Join the heads, project, and lay out as the input was."""
        output = self.out_proj(context.transpose(1, 2).flatten(2))
        if weights is not None:
            weights = (weights.mean(1) if average else weights).to(context.dtype)
        if not batched:
            return AttentionOutput(output[0], None if weights is None else weights[0])
        return AttentionOutput(output if self.batch_first else output.transpose(0, 1), weights)

    def extra_repr(self) -> str:
        """Shown in ``print(module)``."""
        parts = [f"embed_dim={self.embed_dim}", f"num_heads={self.num_heads}"]
        if isinstance(self.mapping, Mapping):
            parts.append(f"mapping={self.mapping}")
        elif self.mapping is None and not isinstance(self.alpha, nn.Module):
            parts.append(f"alpha={shown(self.alpha)}")
        return ", ".join(parts)
