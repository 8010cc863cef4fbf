"""Where attention is in the models we know, and whether each layer asks for it by name.

A layer that computes its weights itself would go on using softmax without a word. So every block
of a model is looked at, and whatever looks like attention and is not known is named in an error.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

from torch import nn

from .interface import ENCODER_STATES

SUPPORTED = "BERT, RoBERTa, ModernBERT, GPT-2, Llama, Mistral, OPT, T5, BART and Marian"
_HOME = "transformers.models."
_INTERFACE = "ALL_ATTENTION_FUNCTIONS"  # what a layer looks its attention function up in


@dataclass(frozen=True)
class Slot:
    """Where a block keeps an attention layer, and of which class it is."""

    path: str
    attention: str
    optional: bool = False  # cross-attention is only there in a decoder


def _bert(name: str) -> dict[str, tuple[Slot, ...]]:
    own = Slot("attention.self", f"{name}SelfAttention")
    return {f"{name}Layer": (own, Slot("crossattention.self", f"{name}CrossAttention", True))}


def _bart(name: str) -> dict[str, tuple[Slot, ...]]:
    own = Slot("self_attn", f"{name}Attention")
    return {
        f"{name}EncoderLayer": (own,),
        f"{name}DecoderLayer": (own, Slot("encoder_attn", f"{name}Attention")),
    }


def _decoder(name: str) -> dict[str, tuple[Slot, ...]]:
    return {f"{name}DecoderLayer": (Slot("self_attn", f"{name}Attention"),)}


BLOCKS: dict[str, tuple[Slot, ...]] = {
    **_bert("Bert"),
    **_bert("Roberta"),
    "ModernBertEncoderLayer": (Slot("attn", "ModernBertAttention"),),
    "GPT2Block": (Slot("attn", "GPT2Attention"), Slot("crossattention", "GPT2Attention", True)),
    **_decoder("Llama"),
    **_decoder("Mistral"),
    **_decoder("OPT"),
    "T5Block": (
        Slot("layer.0.SelfAttention", "T5Attention"),
        Slot("layer.1.EncDecAttention", "T5Attention", True),
    ),
    **_bart("Bart"),
    **_bart("Marian"),
}
# what keeps its blocks in a list
_STACKS = frozenset(
    (
        *("BertEncoder", "RobertaEncoder", "BartEncoder", "BartDecoder", "MarianEncoder"),
        *("MarianDecoder", "ModernBertModel", "GPT2Model", "LlamaModel", "MistralModel"),
        *("OPTDecoder", "T5Stack"),
    )
)
_LOOKS_LIKE_ATTENTION = re.compile("atten[dt]|attn", re.IGNORECASE)  # attends, attentive
# what a forward calls that attends, whatever its class is called
_ATTENDS = frozenset(
    (_INTERFACE, "scaled_dot_product_attention", "multi_head_attention_forward", "flex_attention")
)


def find_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Every attention layer by its name; raises if there is one that would be missed."""
    layers: dict[str, nn.Module] = {}
    for name, block in _blocks(model):
        for slot in BLOCKS[_known(block, BLOCKS) or ""]:
            layer = _at(block, slot.path)
            if layer is None and slot.optional:
                continue
            if layer is None or _known(layer, {slot.attention}) is None:
                raise _missed(
                    _join(name, slot.path),
                    f"expected {slot.attention} of transformers, got {type(layer).__name__}",
                )
            layers[_join(name, slot.path)] = layer
    _check_nothing_else(model, layers)
    if not layers:
        raise ValueError(
            f"model: found no attention layer to change in {type(model).__name__}; supported are "
            f"{SUPPORTED}"
        )
    for name, layer in layers.items():
        if not dispatches(layer):
            raise _missed(
                name,
                f"the forward of {type(layer).__name__} computes its weights itself instead of "
                "asking transformers' AttentionInterface; use that of a transformers which does "
                "(for T5, 5.16 or newer)",
            )
    return layers


def layers_of_blocks(
    model: nn.Module,
) -> Iterator[tuple[str, nn.Module, nn.Module, nn.Module | None]]:
    """(name, block, the layer with which it attends to itself, that to an encoder) of every one."""
    for name, block in _blocks(model):
        own, *cross = (_at(block, slot.path) for slot in BLOCKS[_known(block, BLOCKS) or ""])
        if own is not None:
            yield name, block, own, cross[0] if cross else None


def arguments_of(block: nn.Module) -> tuple[str, ...]:
    """What the forward of a block may be given without a name, in order."""
    for forward in _forwards(block):
        named = [
            parameter.name
            for parameter in inspect.signature(forward).parameters.values()
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.name != "self"
        ]
        if ENCODER_STATES in named:
            return tuple(named)
    return ()


def heads_of(layer: nn.Module) -> int:
    """How many heads its queries have."""
    places = (layer, getattr(layer, "config", None))
    for place in places:
        for name in ("num_attention_heads", "num_heads", "n_heads"):
            number = getattr(place, name, None)
            if isinstance(number, int):
                return number
    raise ValueError(f"model: {type(layer).__name__} does not say how many heads it has")


def _blocks(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every block; all blocks of a stack must be of kinds we know, or have one inside."""
    stacks = {
        id(child)
        for module in model.modules()
        if _known(module, _STACKS) is not None
        for child in module.children()
    }
    for name, module in model.named_modules():
        if _known(module, BLOCKS) is not None:
            yield name, module
        elif isinstance(module, nn.ModuleList):
            children = {_join(name, key): unwrapped(each) for key, each in module.named_children()}
            known = [key for key, each in children.items() if _has_block(each)]
            for key, each in children.items():
                if key not in known and (known or id(module) in stacks):
                    raise _missed(key, f"{type(each).__name__} is no block that we know")


def _has_block(module: nn.Module) -> bool:
    """Whether it is one, or wraps one, as what computes activations again does."""
    return any(_known(part, BLOCKS) is not None for part in module.modules())


def _check_nothing_else(model: nn.Module, layers: dict[str, nn.Module]) -> None:
    """That no other module looks like attention."""
    ours = {id(part) for layer in layers.values() for part in layer.modules()}
    for name, module in model.named_modules():
        if id(module) in ours or not _looks_like_attention(module):
            continue
        if not any(id(part) in ours for part in module.modules()):
            raise _missed(
                name,
                f"{type(module).__name__} is no attention layer that we know; supported are "
                f"{SUPPORTED}",
            )


def _looks_like_attention(module: nn.Module) -> bool:
    """By the name of its class, or by what its forward calls."""
    if _LOOKS_LIKE_ATTENTION.search(type(module).__name__):
        return True
    return any(not _ATTENDS.isdisjoint(_names(each)) for each in _forwards(module))


def _missed(name: str, why: str) -> ValueError:
    return ValueError(f"model: the layer {name!r} would keep its own attention: {why}")


# --- looking into modules -------------------------------------------------------------------------


def unwrapped(module: nn.Module) -> nn.Module:
    """What torch.compile was given, if this is what it returned."""
    inner = getattr(module, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else module


def _known(module: nn.Module, names: Any) -> str | None:
    """The name among ``names`` of its class, or of a class of transformers that it extends."""
    for kind in type(module).__mro__:
        if kind.__name__ in names and kind.__module__.startswith(_HOME):
            return kind.__name__
    return None


def _at(block: nn.Module, path: str) -> nn.Module | None:
    module: Any = block
    for key in path.split("."):
        module = getattr(module, key, None) if not key.isdigit() else _item(module, int(key))
        if not isinstance(module, nn.Module):
            return None
        module = unwrapped(module)
    return module if isinstance(module, nn.Module) else None


def _item(modules: Any, place: int) -> Any:
    return modules[place] if isinstance(modules, nn.ModuleList) and place < len(modules) else None


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def dispatches(layer: nn.Module) -> bool:
    """Whether the code of its forward mentions the interface, or leaves the work to one that does.

    This is what can be known before it runs; that it was asked is checked whenever it runs.
    """
    for forward in _forwards(layer):
        names = set(_names(forward))
        if _INTERFACE in names:
            return True
        if "super" not in names:
            return False
    return False


def _forwards(layer: nn.Module) -> Iterator[Callable[..., Any]]:
    """The forward that would run, then those it may call with super()."""
    own = vars(layer).get("forward")
    if own is not None:  # put on this one object, as libraries do that move weights about
        yield own
    for kind in type(layer).__mro__:
        if "forward" in vars(kind):
            yield vars(kind)["forward"]


def _names(function: Any) -> Iterator[str]:
    while True:  # through functools.wraps, partial and bound methods
        inner = getattr(function, "__wrapped__", None) or getattr(function, "__func__", None)
        if inner is None and isinstance(function, functools.partial):
            inner = function.func
        if inner is None:
            break
        function = inner
    code = getattr(function, "__code__", None)
    codes = [code] if isinstance(code, CodeType) else []
    while codes:
        each = codes.pop()
        yield from each.co_names
        codes += [part for part in each.co_consts if isinstance(part, CodeType)]
