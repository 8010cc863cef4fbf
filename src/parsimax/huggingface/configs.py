"""Configs of a model's modules: copies of their own, and what they said before.

Models share config objects: two models made from one, or both halves of BART. Whatever is changed
here is changed in copies, so that it reaches the modules that were given and no others.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from .settings import KEY

_BEFORE = "_parsimax_before"  # of a module: its configs, each with what it said before


def own_configs(model: nn.Module) -> list[Any]:
    """Copy all configs. Every module notes what its own said, since a part may be disabled, too."""
    memo: dict[int, Any] = {}
    copies: dict[int, Any] = {}
    for module in model.modules():
        mine: list[Any] = []
        for key, value in _held(module).items():
            own = vars(module)[key] = copy.deepcopy(value, memo)
            mine += _with_parts(own)
        if mine:
            vars(module)[_BEFORE] = [(each, each._attn_implementation) for each in mine]
            copies.update((id(each), each) for each in mine)
    return list(copies.values())


def give_back(model: nn.Module) -> None:
    """Configs that say what they said before; modules outside of ``model`` keep those they have."""
    before = [pair for each in model.modules() for pair in vars(each).pop(_BEFORE, ())]
    if not before:
        return
    changed = {id(config) for config, _ in before}
    memo: dict[int, Any] = {}
    for module in model.modules():
        for key, value in _held(module).items():
            if id(value) in changed:
                vars(module)[key] = copy.deepcopy(value, memo)
    for config, implementation in before:
        own = memo.get(id(config))
        if own is not None:
            own._attn_implementation = implementation
            vars(own).pop(KEY, None)


def drop_settings(model: nn.Module) -> None:
    """Configs that say nothing of sparse attention, whatever files or other models have said."""
    kept = [value for each in model.modules() for value in vars(each).values()]
    if not any(KEY in getattr(value, "__dict__", ()) for value in kept):
        return
    memo: dict[int, Any] = {}
    for module in model.modules():
        for key, value in _held(module).items():
            own = vars(module)[key] = copy.deepcopy(value, memo)
            for each in _with_parts(own):
                vars(each).pop(KEY, None)


def with_settings(config: Any, settings: dict[str, Any]) -> Any:
    """A copy of the config of a whole model that says this, and nothing of its own for parts."""
    own = copy.deepcopy(config)
    for each in _with_parts(own):
        vars(each).pop(KEY, None)
    own.parsimax = settings
    return own


def check_configs(model: nn.Module) -> None:
    """Refuse what transformers would refuse to save once another attention is set."""
    for name, module in model.named_modules():
        for config in _held(module).values():
            if any(getattr(each, "output_attentions", False) for each in _with_parts(config)):
                raise ValueError(
                    f"model: the config of {name or type(module).__name__!r} has "
                    "output_attentions=True, which transformers takes with its eager attention "
                    "only; set it to False there, or load the model with "
                    "output_attentions=False, and pass output_attentions=True to the calls that "
                    "are to return weights"
                )


def _held(module: nn.Module) -> dict[str, Any]:
    from transformers import PreTrainedConfig

    return {key: x for key, x in vars(module).items() if isinstance(x, PreTrainedConfig)}


def _with_parts(config: Any) -> list[Any]:
    parts = [getattr(config, key, None) for key in config.sub_configs]
    return [config, *(part for part in parts if part is not None)]
