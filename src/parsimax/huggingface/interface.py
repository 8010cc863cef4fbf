"""What transformers calls: a function for attention and one for masks, under one name.

A model asks the first for its context and the second for what may be seen. Both are needed: with
no mask function under that name, transformers makes no masks at all and says nothing.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parsimax.attention.choice import entmax_of_heads
from parsimax.attention.functional import attend, attention
from parsimax.attention.visibility import band_mask, intersect, read_band

from . import traces

NAME = "parsimax"
STATE = "_parsimax"  # the attribute of a layer with what follows
ALPHA = "parsimax_alpha"  # and its submodule, if alpha is learned
ENCODER_STATES = "encoder_hidden_states"  # what blocks call them

_PADDING = torch.uint8  # what hides keys for all queries, besides what the layer hides itself

# Arguments of layers in families we do not know, each of which changes the result.
_NOT_OURS = ("softcap", "s_aux", "head_mask", "cache", "block_table")


class Mine(threading.local):
    """What has happened in the calling thread, since several may call one model at a time.

    Every thread, every copy and every pickle starts with what stands here. torch.compile must not
    see it: it would guard on what one thread has.
    """

    asked: bool | None = None  # an owner: for weights
    called: bool = False  # a layer: the function below, since it began to run
    ran: bool = False  # a layer: since its block began to run

    def __reduce__(self) -> tuple[type[Mine], tuple[()]]:
        return type(self), ()


@dataclass
class Owner:
    """A model that makes masks and collects what its layers return."""

    wants_weights: bool = False  # as it was last called, in whichever thread
    compiled: bool = False  # and whether that was compiled code
    mine: Mine = field(default_factory=Mine)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(vars(Owner()) | state)  # some were saved with less
        register()  # a process that only unpickles a model never calls enable

    def ask(self, wanted: bool) -> None:
        """A call begins."""
        self.wants_weights = wanted
        self.compiled = torch.compiler.is_compiling()
        if not torch.compiler.is_compiling():
            self.mine.asked = wanted

    def asked(self) -> bool:
        """Whether the call that a layer is part of wants weights.

        A layer may run in a thread in which its owner did not: on a GPU, autograd has one of its
        own for what a checkpoint computes again. Then the last call counts.
        """
        if torch.compiler.is_compiling() or self.compiled or self.mine.asked is None:
            return self.wants_weights
        return self.mine.asked


@dataclass
class Layer:
    """What an attention layer is to do."""

    name: str
    heads: int
    alpha: float  # where it starts, if it is learned
    owner: Owner = field(default_factory=Owner)
    mine: Mine = field(default_factory=Mine)
    cross: bool = False  # it attends to the states of an encoder
    # Compiled code sets nothing in `mine`. What of it was compiled without what is around it:
    ran_compiled: bool = False  # the layer, without its block
    called_compiled: bool = False  # the function below, without the layer

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({"mine": Mine()} | state)  # some were saved without


@dataclass
class Block:
    """Around a layer that must run whenever it does, and one where it is given encoder states."""

    name: str
    layer: Layer
    cross: Layer | None = None
    arguments: tuple[str, ...] = ()  # of its forward, as they may be given without a name

    def given_states(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call is given what an encoder has made."""
        if self.cross is None:
            return False
        given = {**dict(zip(self.arguments, args, strict=False)), **kwargs}
        return given.get(ENCODER_STATES) is not None


def register() -> None:
    """Make both functions known to transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, attention_mask)


def alpha_of(layer: nn.Module) -> float | Tensor:
    """A number, or one for each head."""
    learned = getattr(layer, ALPHA, None)
    if learned is None:
        fixed: float = getattr(layer, STATE).alpha
        return fixed
    values: Tensor = learned()
    return values


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Context (B, Lq, H, E), and weights if the model was asked for them.

    Keys and values come with their own number of heads. Without a mask, or with one of padding
    alone, a causal layer sees what stands before, nearer than its window, and one query sees all.
    """
    layer = getattr(module, STATE, None)
    if layer is None:
        raise RuntimeError(
            f'{type(module).__name__} was asked for attn_implementation="{NAME}" and has no alpha; '
            "call px.huggingface.enable(model), which sets both"
        )
    # a trace records operations of torch alone: what it returned would be arbitrary
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        raise RuntimeError(
            f"{layer.name}: torch.jit.trace cannot record sparse attention, whose kernels it does "
            "not see; use torch.export or torch.compile"
        )
    for name in _NOT_OURS:
        if others.get(name) is not None:
            raise ValueError(f"{layer.name}: {name} is not supported in sparse attention")
    if not torch.compiler.is_dynamo_compiling():
        layer.mine.called = True
    elif not traces.attends():
        layer.called_compiled = True
    queries = query.shape[-2]
    causal, window = False, None
    if (attention_mask is None or attention_mask.dtype == _PADDING) and queries > 1:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if causal and key.shape[-2] > queries:  # places of a static cache that are still empty
            key, value = key[..., :queries, :], value[..., :queries, :]
            attention_mask = None if attention_mask is None else attention_mask[..., :queries]
        window = None if sliding_window is None else sliding_window - 1  # transformers counts self
    if attention_mask is not None:
        attention_mask = _of_these_keys(attention_mask, key, layer.name)
    if position_bias is not None:
        attention_mask = _biased(position_bias[..., : key.shape[-2]], attention_mask)
    grouped = query.shape[1] != key.shape[1]
    alpha = alpha_of(module)
    if layer.owner.asked() or others.get("output_attentions"):
        shape = torch.Size((*query.shape[:-1], key.shape[-2]))
        band = band_mask(read_band(shape, causal, "top-left", window), shape, query.device)
        added = attention_mask is not None and attention_mask.is_floating_point()
        made = attend(
            query,
            key,
            value,
            lambda scores, visible: entmax_of_heads(scores, alpha, visible),
            intersect(None if added else attention_mask, band),
            attention_mask if added else None,
            dropout,
            query.shape[-1] ** -0.5 if scaling is None else scaling,
            grouped,
        )
        weights = None if made.weights is None else made.weights.to(query.dtype)
        return made.context.transpose(1, 2).contiguous(), weights
    context = attention(
        query,
        key,
        value,
        attention_mask,
        dropout,
        causal,
        scaling,
        grouped,
        alpha=alpha,
        window=window,
    )
    return context.transpose(1, 2).contiguous(), None


def _of_these_keys(mask: Tensor, key: Tensor, name: str) -> Tensor:
    if mask.ndim != 4:
        raise ValueError(
            f"{name}: attention_mask must have shape (B, 1 or heads, queries, keys) here, got "
            f"{tuple(mask.shape)}"
        )
    padding = mask.dtype == _PADDING and mask.shape[-2] == 1
    if not padding and mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(
            f"{name}: attention_mask must be bool or floating-point, got {mask.dtype}; use .bool()"
        )
    if mask.shape[-1] not in (1, key.shape[-2]):
        raise ValueError(
            f"{name}: attention_mask has places for {mask.shape[-1]} keys, and there are "
            f"{key.shape[-2]}"
        )
    return mask.bool() if padding else mask


def _biased(bias: Tensor, mask: Tensor | None) -> Tensor:
    """What T5 adds to the scores for the distance of two words; -inf where nothing is seen."""
    if mask is None:
        return bias
    return bias.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else bias + mask


def attention_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """Bool (B, 1, Lq, Lk), True where a key may be seen, as transformers makes it for SDPA.

    None stands for everything, or for what is causal and within the window of the layer, which
    the layer then tells :func:`attention_forward`: no matrix is needed for those. Nor is one for
    padding besides: that is a mask of the keys, (B, 1, 1, Lk) and in bytes, as no other mask is.
    """
    from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

    if not args:
        keys = _padding(**kwargs)
        if _layer_knows(**kwargs):
            return None if keys is None or _sees_all(keys) else keys.to(_PADDING)
        if kwargs.get("mask_function") is bidirectional_mask_function and keys is not None:
            skip = kwargs.get("allow_is_bidirectional_skip", False) and _sees_all(keys)
            return None if skip else keys.expand(-1, -1, kwargs["q_length"], -1)
    mask: Tensor | None = sdpa_mask(*args, **kwargs)
    return mask


def _layer_knows(
    q_length: int | None = None,
    kv_length: int | None = None,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    config: Any = None,
    **_: Any,
) -> bool:
    """Whether, but for padding, a window or what is later hides keys, and queries stand at them."""
    if not allow_is_causal_skip and hasattr(config, "is_causal"):
        return False  # to look both ways is not left to layers that are told otherwise
    if q_length is None or not isinstance(q_offset, int):
        return False
    if q_length != kv_length or q_offset != 0 or kv_offset != 0:
        return False
    return allow_is_causal_skip or (local_size is not None and allow_is_bidirectional_skip)


def _padding(
    kv_length: int = 0, kv_offset: int = 0, attention_mask: Tensor | None = None, **_: Any
) -> Tensor | None:
    """(B, 1, 1, Lk), True for words; what a mask is too short for is padding."""
    if attention_mask is None:
        return None
    if attention_mask.ndim != 2:  # what follows would not look at it
        raise ValueError(
            "attention_mask must have shape (B, keys), or (B, 1 or heads, queries, keys), got "
            f"{tuple(attention_mask.shape)}; a mask of queries and keys is written mask[:, None]"
        )
    missing = max(0, kv_offset + kv_length - attention_mask.shape[1])
    mask = F.pad(attention_mask.bool(), (0, missing))
    return mask[:, None, None, kv_offset : kv_offset + kv_length]


def _sees_all(keys: Tensor) -> bool:
    # the values of a mask are not known while a graph is traced or captured
    if torch.compiler.is_compiling():
        return False
    if keys.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return bool(keys.all())


# --- hooks ----------------------------------------------------------------------------------------


def before_owner(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    """Take note whether a model was asked for weights; not every layer is told."""
    owner = getattr(module, STATE, None)
    if owner is not None:
        asked = kwargs.get("output_attentions")
        wanted = getattr(module.config, "output_attentions", False) if asked is None else asked
        owner.ask(bool(wanted))


def before_layer(module: nn.Module, args: Any) -> None:
    """Nothing was called yet."""
    layer = getattr(module, STATE, None)
    if layer is None:
        return
    if not torch.compiler.is_dynamo_compiling():
        layer.mine.called, layer.mine.ran = False, True
    elif not traces.layer_begins(layer.cross):
        layer.ran_compiled = True


def after_layer(module: nn.Module, args: Any, output: Any) -> None:
    """Raise if a layer has run and computed its attention in another way."""
    layer = getattr(module, STATE, None)
    if layer is None:
        return
    found = getattr(getattr(module, "config", None), "_attn_implementation", None)
    if torch.compiler.is_dynamo_compiling():
        missed = traces.layer_ends() or found != NAME
    else:
        missed = not (layer.mine.called or layer.called_compiled)
    if missed:
        _refuse_layer(layer.name, type(module).__name__, found)


def before_block(module: nn.Module, args: Any) -> None:
    """Its layers have not run yet."""
    block = getattr(module, STATE, None)
    if block is None:
        return
    if torch.compiler.is_dynamo_compiling():
        traces.block_begins()
        return
    block.layer.mine.ran = False
    if block.cross is not None:
        block.cross.mine.ran = False


def after_block(module: nn.Module, args: Any, *rest: Any) -> None:
    """Raise if a block has attended by something else than its layers."""
    block = getattr(module, STATE, None)
    if block is None:
        return
    kwargs = rest[0] if len(rest) == 2 else {}  # the last is the output; older pickles have no more
    states = block.given_states(args, kwargs)
    if torch.compiler.is_dynamo_compiling():
        which = traces.block_ends(states)
        if which is not None:
            _refuse_block(block.name, (block.cross if which else block.layer).name)
        return
    for layer in (block.layer, block.cross) if states else (block.layer,):
        if not (layer.mine.ran or layer.ran_compiled):
            _refuse_block(block.name, layer.name)


# An error in what is traced would only break the graph there: the tracer itself has to raise.
@traces.by_tracer
def _refuse_layer(name: str, kind: str, found: str | None) -> None:
    if found == NAME:
        raise RuntimeError(
            f"the layer {name!r} ran without sparse attention: the forward of {kind} did not call "
            "the attention function that transformers has for it; it must do so whenever it runs"
        )
    raise RuntimeError(
        f"the layer {name!r} ran without sparse attention; its config says "
        f'attn_implementation="{found}", expected "{NAME}": call px.huggingface.enable again '
        "after other changes to the model, or px.huggingface.disable"
    )


@traces.by_tracer
def _refuse_block(name: str, layer: str) -> None:
    raise RuntimeError(
        f"the block {name!r} ran without sparse attention: its layer {layer!r} was not called; its "
        "forward must call it, and px.huggingface.enable must be called again after a layer was "
        "replaced"
    )
