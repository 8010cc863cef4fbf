"""Turn sparse attention on in a model, and off again."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from parsimax._core.validation import check_number
from parsimax.attention import AdaptiveAlpha

from . import checkpoint, configs, interface, settings
from .families import SUPPORTED, arguments_of, find_layers, heads_of, layers_of_blocks
from .interface import ALPHA, NAME, STATE, Block, Layer, Owner
from .places import Place, place_of

_USED = "_parsimax_used"  # of a layer: it was enabled before, so that files have no say any more
Model = TypeVar("Model", bound=nn.Module)


class _Default(float):
    """An alpha that nobody gave, even if somebody gives the same value."""


_DEFAULT = _Default(1.5)


def enable(
    model: Model,
    alpha: float | None = _DEFAULT,
    learn_alpha: bool = False,
    *,
    restore: bool = True,
) -> Model:
    """Put alpha-entmax in place of softmax in every attention layer of a model.

    Self-attention and cross-attention of BERT, RoBERTa, ModernBERT, GPT-2, Llama, Mistral, OPT,
    T5, BART and Marian, in all their variants, with padding, windows, caches and grouped queries.
    The model is changed in place, and gets configs of its own if it shared them with another.

    Args:
        model: a model of transformers, or a module that contains some.
        alpha: 1 is softmax, 2 is sparsemax. If alpha is learned, it starts here, strictly between
            1 and 2; None draws it at random for each head. 1.5 unless the model was loaded from a
            folder where another one was saved.
        learn_alpha: whether every head of every layer has an alpha of its own, which is a parameter
            of the model (``...parsimax_alpha.a``): optimizers see it, ``state_dict`` and
            ``save_pretrained`` save it. Call this before you make the optimizer.
        restore: keep learned alphas that the layers have already, the very parameters, and take up
            what was saved in the folder that the model was loaded from; False starts anew.

    Returns:
        The same model.

    Raises:
        ValueError: if any attention layer would keep its own attention; the message names it and
            the model is as it was. Also if learned alphas would be lost.
    """
    _check_transformers(model)
    for name, flag in (("learn_alpha", learn_alpha), ("restore", restore)):
        if not isinstance(flag, bool):
            raise TypeError(f"{name} must be True or False, got {flag!r}")
    given = alpha is not _DEFAULT
    alpha = _check_alpha(alpha, learn_alpha)
    layers = find_layers(model)
    configs.check_configs(model)
    kept = _learned(layers, alpha, learn_alpha) if restore else {}
    places = {
        name: place_of(name, layer, model)
        for name, layer in layers.items()
        if learn_alpha and id(layer) not in kept
    }
    values = _saved(model, layers, learn_alpha) if restore else []
    starts = _saved_starts(model, learn_alpha) if restore and not given else []
    start_of = {id(part): start for each, start in starts for part in each.modules()}
    _undo(model)
    interface.register()
    try:
        # set_attn_implementation misses those that only a layer holds
        for config in configs.own_configs(model):
            config._attn_implementation = NAME
        owners = _hook_owners(model, layers)
        for name, layer in layers.items():
            start = start_of.get(id(layer), alpha)
            _hook_layer(name, layer, owners[name], start, places.get(name), kept.get(id(layer)))
        _hook_blocks(model)
    except BaseException:
        _undo(model)
        raise
    checkpoint.put_alphas(values)
    for layer in layers.values():
        vars(layer)[_USED] = True
    whole = _outermost(model)
    for each in whole:
        start = start_of.get(id(each), alpha)
        settings.tell(each, {"alpha": start, "learn_alpha": learn_alpha})
    for each, start in starts:
        if not any(each is other for other in whole):  # its folder has no say for the rest
            settings.tell(each, {"alpha": start, "learn_alpha": learn_alpha})
    return model


def disable(model: Model) -> Model:
    """Give a model back the attention it had; learned alphas are dropped.

    Of a part of a model, only that part: the rest stays as it is. What a config says from a file
    that was saved with sparse attention is dropped, too.

    Returns:
        The same model. One that was not enabled is left as it is.
    """
    _check_module(model)
    _undo(model)
    configs.drop_settings(model)
    return model


def alphas(model: nn.Module) -> dict[str, Tensor]:
    """The alphas of every attention layer by its name, (heads,), detached."""
    _check_module(model)
    found: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        layer = vars(module).get(STATE)
        if isinstance(layer, Layer):
            value = interface.alpha_of(module)
            if isinstance(value, Tensor):
                found[name] = value.detach().clone()
            else:
                found[name] = torch.full((layer.heads,), value, device="cpu")
    if not found:
        raise ValueError("model: expected one that px.huggingface.enable was called with")
    return found


# --- checks ---------------------------------------------------------------------------------------


def _check_module(model: object) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a model of transformers, got {type(model).__name__}")
    return model


def _check_transformers(model: object) -> None:
    try:
        from transformers import PreTrainedModel
    except ImportError as error:
        raise ImportError(
            "px.huggingface needs transformers; pip install parsimax[huggingface]"
        ) from error
    if not any(isinstance(each, PreTrainedModel) for each in _check_module(model).modules()):
        raise TypeError(
            f"model must be or contain a PreTrainedModel of transformers, got "
            f"{type(model).__name__}; supported are {SUPPORTED}"
        )


def _check_alpha(alpha: object, learn_alpha: bool) -> float | None:
    if alpha is None and learn_alpha:
        return None
    if alpha is None:
        raise TypeError(
            "alpha must be a number, got None, which draws one for each head where learn_alpha=True"
        )
    if isinstance(alpha, bool) or not isinstance(alpha, numbers.Real):
        got = repr(alpha)
        if isinstance(alpha, Tensor):
            got = f"a tensor of shape {tuple(alpha.shape)}"
        raise TypeError(
            "alpha must be a number, the same for all heads (or their start if they are learned), "
            f"got {got}"
        )
    if learn_alpha:
        expected = "strictly between 1 and 2 where a learned alpha starts, or None"
        return check_number(alpha, "alpha", lambda x: 1 < x < 2, expected)
    return check_number(alpha, "alpha", lambda x: 1 <= x < float("inf"), "at least 1 and finite")


# --- what there is --------------------------------------------------------------------------------


def _learned(
    layers: dict[str, nn.Module], alpha: float | None, learn_alpha: bool
) -> dict[int, nn.Module]:
    """Learned alphas of layers, by the id of the layer; raises if they could not stay."""
    found = {name: layer for name, layer in layers.items() if ALPHA in layer._modules}
    name = next(iter(found), None)
    if name is not None and not learn_alpha:
        raise ValueError(
            f"learn_alpha: {name} has learned alphas; pass learn_alpha=True to keep them, or "
            "restore=False to drop them"
        )
    if name is not None and alpha != _DEFAULT:
        raise ValueError(
            f"alpha: {name} has learned alphas, which would not start at {alpha}; leave alpha out "
            "to keep them, or pass restore=False to start anew"
        )
    return {id(layer): getattr(layer, ALPHA) for layer in found.values()}


def _saved(model: nn.Module, layers: dict[str, nn.Module], learn_alpha: bool) -> checkpoint.Values:
    """Alphas from the files that models were loaded from, of layers that have had none yet."""
    new = {id(layer) for layer in layers.values() if _USED not in vars(layer)}
    values: checkpoint.Values = []
    for each in _outermost(model, checkpoint.was_saved):
        if not settings.told(each):
            mine = {name: layer for name, layer in each.named_modules() if id(layer) in new}
            values += checkpoint.saved_alphas(each, mine, learn_alpha)
    return values


def _saved_starts(model: nn.Module, learn_alpha: bool) -> list[tuple[Any, float]]:
    """Models that were loaded from files and not enabled yet, each with the alpha of all of it."""
    found = []
    for each in _outermost(model, lambda part: settings.saved_settings(part) is not None):
        start = None if settings.told(each) else checkpoint.saved_start(each, learn_alpha)
        if start is not None:
            found.append((each, start))
    return found


# --- changes --------------------------------------------------------------------------------------


def _undo(model: nn.Module) -> None:
    """Disable a model, without a word on what it was loaded from."""
    configs.give_back(model)
    settings.forget(model)
    for module in model.modules():
        if STATE in vars(module):
            del vars(module)[STATE]
            _unhook(module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs)
            _unhook(module._forward_hooks, module._forward_hooks_with_kwargs)
        if ALPHA in module._modules:
            delattr(module, ALPHA)


def _outermost(model: nn.Module, chosen: Callable[[nn.Module], bool] | None = None) -> list[Any]:
    """Models of transformers, those that are chosen, and no part of another such."""
    from transformers import PreTrainedModel

    found: list[Any] = []
    inside: set[int] = set()
    for module in model.modules():
        if not isinstance(module, PreTrainedModel) or id(module) in inside:
            continue
        if chosen is None or chosen(module):
            found.append(module)
            inside.update(id(part) for part in module.modules())
    return found


def _hook_owners(model: nn.Module, layers: dict[str, nn.Module]) -> dict[str, Owner]:
    """For each layer, the innermost model of transformers around it."""
    from transformers import PreTrainedModel

    found: dict[int, Owner] = {}
    for module in model.modules():  # from the outside in, so that the innermost is what stays
        if isinstance(module, PreTrainedModel):
            mine = [layer for layer in layers.values() if any(m is layer for m in module.modules())]
            owner = Owner()
            found.update((id(layer), owner) for layer in mine)
            if mine:
                _check_implementation(module, type(module).__name__)
                vars(module)[STATE] = owner
                module.register_forward_pre_hook(interface.before_owner, with_kwargs=True)
    # a layer of the user's own stands in no model
    return {name: found.get(id(layer)) or Owner() for name, layer in layers.items()}


def _hook_layer(
    name: str,
    layer: nn.Module,
    owner: Owner,
    alpha: float | None,
    place: Place | None,
    kept: nn.Module | None,
) -> None:
    _check_implementation(layer, name)
    heads = heads_of(layer)
    vars(layer)[STATE] = Layer(name, heads, 1.5 if alpha is None else alpha, owner)
    if kept is not None:
        layer.add_module(ALPHA, kept)
    elif place is not None:
        with torch.inference_mode(False):  # what is made in that mode can never be learned
            layer.add_module(ALPHA, AdaptiveAlpha(heads, alpha, *place))
    layer.register_forward_pre_hook(interface.before_layer)
    layer.register_forward_hook(interface.after_layer)


def _hook_blocks(model: nn.Module) -> None:
    for name, block, own, cross in layers_of_blocks(model):
        state = Block(name, vars(own)[STATE])
        if cross is not None:
            state.cross, state.arguments = vars(cross)[STATE], arguments_of(block)
            state.cross.cross = True
        vars(block)[STATE] = state
        block.register_forward_pre_hook(interface.before_block)
        block.register_forward_hook(interface.after_block, with_kwargs=True)


def _check_implementation(module: Any, name: str) -> None:
    found = module.config._attn_implementation
    if found != NAME:
        raise ValueError(
            f"model: the layer {name!r} would keep its own attention: it did not take "
            f'attn_implementation="{NAME}" and stays with "{found}"'
        )


def _unhook(hooks: dict[int, Any], with_kwargs: dict[int, bool]) -> None:
    ours = (
        interface.before_owner,
        interface.before_layer,
        interface.after_layer,
        interface.before_block,
        interface.after_block,
    )
    for key in [key for key, hook in hooks.items() if hook in ours]:
        del hooks[key]
        with_kwargs.pop(key, None)
