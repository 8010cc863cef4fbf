"""Turn sparse attention on in a model, and off again."""

from __future__ import annotations

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


def enable(
    model: Model,
    alpha: float | None = 1.5,
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
            1 and 2; None draws it at random for each head.
        learn_alpha: whether every head of every layer has an alpha of its own, which is a parameter
            of the model (``...parsimax_alpha.a``): optimizers see it, ``state_dict`` and
            ``save_pretrained`` save it. Call this before you make the optimizer.
        restore: take up the alphas of the folder that the model was loaded from, if they were
            saved there.

    Returns:
        The same model.

    Raises:
        ValueError: if any attention layer would keep its own attention; the message names it and
            the model is as it was.
    """
    _check_transformers(model)
    alpha = _check_alpha(alpha, learn_alpha)
    layers = find_layers(model)
    configs.check_configs(model)
    places = {k: place_of(k, each, model) for k, each in layers.items()} if learn_alpha else {}
    values = _saved(model, layers, learn_alpha) if restore else []
    disable(model)
    interface.register()
    try:
        # set_attn_implementation misses those that only a layer holds
        for config in configs.own_configs(model):
            config._attn_implementation = NAME
        owners = _hook_owners(model, layers)
        for name, layer in layers.items():
            _hook_layer(name, layer, owners[name], alpha, places.get(name))
        _hook_blocks(model)
    except BaseException:
        disable(model)
        raise
    checkpoint.put_alphas(values)
    for layer in layers.values():
        vars(layer)[_USED] = True
    for each in _outermost(model):
        settings.tell(each, alpha, learn_alpha)
    return model


def disable(model: Model) -> Model:
    """Give a model back the attention it had; learned alphas are dropped.

    Of a part of a model, only that part: the rest stays as it is.

    Returns:
        The same model. One that was not enabled is left as it is.
    """
    configs.give_back(model)
    settings.forget(model)
    for module in model.modules():
        if STATE in vars(module):
            del vars(module)[STATE]
            _unhook(module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs)
            _unhook(module._forward_hooks, module._forward_hooks_with_kwargs)
        if ALPHA in module._modules:
            delattr(module, ALPHA)
    return model


def alphas(model: nn.Module) -> dict[str, Tensor]:
    """The alphas of every attention layer by its name, (heads,), detached."""
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


def _check_transformers(model: object) -> None:
    try:
        from transformers import PreTrainedModel
    except ImportError as error:
        raise ImportError(
            "px.huggingface needs transformers; pip install parsimax[huggingface]"
        ) from error
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a model of transformers, got {type(model).__name__}")
    if not any(isinstance(each, PreTrainedModel) for each in model.modules()):
        raise TypeError(
            f"model must be or contain a PreTrainedModel of transformers, got "
            f"{type(model).__name__}; supported are {SUPPORTED}"
        )


def _check_alpha(alpha: object, learn_alpha: object) -> float | None:
    if not isinstance(learn_alpha, bool):
        raise TypeError(f"learn_alpha must be True or False, got {learn_alpha!r}")
    if alpha is None and learn_alpha:
        return None
    if alpha is None:
        raise TypeError(
            "alpha must be a number, got None, which draws one for each head where learn_alpha=True"
        )
    if isinstance(alpha, Tensor):
        raise TypeError(
            "alpha must be a number, the same for all heads (or their start if they are learned), "
            f"got a tensor of shape {tuple(alpha.shape)}"
        )
    if learn_alpha:
        expected = "strictly between 1 and 2 where a learned alpha starts, or None"
        return check_number(alpha, "alpha", lambda x: 1 < x < 2, expected)
    return check_number(alpha, "alpha", lambda x: 1 <= x < float("inf"), "at least 1 and finite")


# --- changes --------------------------------------------------------------------------------------


def _saved(model: nn.Module, layers: dict[str, nn.Module], learn_alpha: bool) -> checkpoint.Values:
    """Alphas from the files that models were loaded from, of layers that have had none yet."""
    new = {id(layer) for layer in layers.values() if _USED not in vars(layer)}
    values: checkpoint.Values = []
    for each in _outermost(model, checkpoint.was_saved):
        if not settings.told(each):
            mine = {name: layer for name, layer in each.named_modules() if id(layer) in new}
            values += checkpoint.saved_alphas(each, mine, learn_alpha)
    return values


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
    name: str, layer: nn.Module, owner: Owner, alpha: float | None, place: Place | None
) -> None:
    _check_implementation(layer, name)
    heads = heads_of(layer)
    vars(layer)[STATE] = Layer(name, heads, 1.5 if alpha is None else alpha, owner)
    if place is not None:
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
