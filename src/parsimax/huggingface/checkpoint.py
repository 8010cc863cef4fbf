"""Alphas of a model that was saved: where they are, and how they come back.

``save_pretrained`` writes them beside the weights, and the settings of ``enable`` in config.json.
``from_pretrained`` knows nothing of them, and leaves them; ``enable`` takes them up.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from . import configs
from .families import find_layers
from .files import Files, of_folder
from .interface import ALPHA, STATE, Layer, Owner
from .settings import (
    Settings,  # noqa: F401  models that are pickled already say it is here
    inside,
    saved_settings,
    tell,
    told,
)

Values = list[tuple[nn.Module, Tensor]]
# what says where the files of a model are
_WHERE = ("cache_dir", "revision", "subfolder", "token", "variant")
_ANEW = "or pass restore=False to start anew"


def load(model_class: Any, name_or_path: Any, **kwargs: Any) -> Any:
    """Load a model that was saved with sparse attention, and enable it as it was.

    Args:
        model_class: such as ``AutoModelForCausalLM`` or ``BertModel``.
        name_or_path: of the folder, as for ``from_pretrained``.
        kwargs: for ``from_pretrained``.

    Returns:
        The model, with its alphas if they were learned, and each part as it was if parts of it
        were enabled with other settings or disabled; with ``output_loading_info=True`` a pair, as
        from ``from_pretrained``.
    """
    from .enabling import disable, enable

    if not hasattr(model_class, "from_pretrained"):
        raise TypeError(
            f"model_class must be a class of transformers with from_pretrained, got {model_class!r}"
        )
    made = model_class.from_pretrained(name_or_path, **kwargs)
    model = made[0] if isinstance(made, tuple) else made
    files = Files(str(name_or_path), {key: kwargs[key] for key in _WHERE if key in kwargs})
    settings = saved_settings(model) or _unwritten(model, files, "config" in kwargs)
    parts = settings.pop("parts", {})
    if settings:
        enable(model, **settings, restore=False)
    else:  # nothing but the parts was enabled
        tell(model, {})
    for name in sorted(parts):  # what is inside another comes after it
        part = _part(model, name, files.source)
        if parts[name] is None:
            disable(part)
        else:
            enable(part, **parts[name], restore=False)
    values: Values = []
    for name, layer in find_layers(model).items():
        saved = next((each for each in _names(model, name) if each in files.layers), None)
        learned = ALPHA in layer._modules
        if saved is None and learned:
            raise _lost(name, files.source, "for a start anew use from_pretrained and enable")
        if saved is not None and not learned:
            raise ValueError(
                f"{name}: {files.source!r} has learned alphas, and its config.json does not say "
                "so; use from_pretrained, and px.huggingface.enable with learn_alpha=True"
            )
        if saved is not None:
            values.append((layer, files.alpha(saved, name, layer)))
    put_alphas(values)
    return made


def save(model: Any, folder: Any, **kwargs: Any) -> None:
    """Save a model, so that ``load`` brings back each part as it is now.

    ``save_pretrained`` does so only if :func:`enable` or :func:`load` was called with the whole
    model: one of which a part was enabled cannot know that.

    Args:
        model: of transformers.
        folder: as for ``save_pretrained``.
        kwargs: for ``save_pretrained``.
    """
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"model must be a model of transformers, got {type(model).__name__}")
    if told(model):
        model.save_pretrained(folder, **kwargs)
        return
    parts = _enabled_parts(model)
    if not parts:
        raise ValueError(
            "model: expected one that px.huggingface.enable was called with, or with a part of it"
        )
    settings = parts.pop("", {}) | ({"parts": parts} if parts else {})
    config = model.config
    model.config = configs.with_settings(config, settings)  # others may hold its own
    try:
        model.save_pretrained(folder, **kwargs)
    finally:
        model.config = config


def _enabled_parts(model: nn.Module) -> dict[str, dict[str, Any]]:
    """With what each innermost model of transformers is enabled, by its name."""
    found: dict[str, dict[str, Any]] = {}
    for name, part in model.named_modules():
        owner = vars(part).get(STATE)
        if not isinstance(owner, Owner):
            continue
        for module in part.modules():
            state = vars(module).get(STATE)
            if isinstance(state, Layer) and state.owner is owner:
                learned = ALPHA in module._modules
                found[name] = {"alpha": state.alpha, "learn_alpha": learned}
                break  # all were enabled by one call
    return found


def was_saved(model: Any) -> bool:
    """Whether a model comes from a file, with settings or alphas."""
    files = of_folder(_source(model))
    return saved_settings(model) is not None or (files is not None and bool(files.layers))


def saved_alphas(model: Any, layers: dict[str, nn.Module], learn_alpha: bool) -> Values:
    """What layers of a model, by their names in it, had when it was saved, if it was learned."""
    settings = saved_settings(model) or {}
    source = _source(model)
    files = of_folder(source)
    if files is None and _any_learned(settings) and layers:
        raise ValueError(
            f"model: {source!r}, where its learned alphas were saved, is no folder here; load it "
            f"with px.huggingface.load, {_ANEW}"
        )
    if files is None or not (files.layers or _any_learned(settings)):
        return []
    values: Values = []
    taken: set[str] = set()
    absent: list[str] = []
    new: list[str] = []
    for name, layer in layers.items():
        saved = files.find(_names(model, name), name, layer)
        if saved in files.layers:
            values.append((layer, files.alpha(saved, name, layer)))
            taken.add(saved)
        elif _learned(settings, saved or name):
            (absent if files.has(name, layer) else new).append(name)
    if not taken or taken != files.layers:  # what is new may be there by another name
        absent += new
    if absent:
        advice = "load it with px.huggingface.load and all that from_pretrained was given"
        raise _lost(absent[0], source, f"{advice}, {_ANEW}")
    if values and not learn_alpha:
        raise ValueError(
            f"learn_alpha: the model in {source!r} was saved with learned alphas; pass "
            "learn_alpha=True to take them up, or restore=False to leave them"
        )
    return values


def saved_start(model: Any, learn_alpha: bool) -> float | None:
    """The alpha with which all of a model was saved; None if it was learned, or nothing was said.

    One that was saved starts one that is to be learned.
    """
    settings = saved_settings(model)
    if settings is None or _any_learned(settings):
        return None
    source, alpha = _source(model), settings.get("alpha")
    if settings.get("parts"):
        raise ValueError(
            f"alpha: the model in {source!r} was saved with settings of their own for its parts; "
            f"load it with px.huggingface.load, pass alpha for all of it, {_ANEW}"
        )
    if not isinstance(alpha, int | float) or (learn_alpha and not 1 < alpha < 2):
        raise ValueError(
            f"alpha: the model in {source!r} was saved with alpha={alpha}, where no "
            f"{'learned ' if learn_alpha else ''}alpha can be; pass alpha, {_ANEW} at 1.5"
        )
    return float(alpha)


def put_alphas(values: Values) -> None:
    """Set the parameters of layers, which must be enabled."""
    with torch.no_grad():
        for layer, value in values:
            getattr(layer, ALPHA).a.copy_(value)


def _unwritten(model: nn.Module, files: Files, given: bool) -> dict[str, Any]:
    """Settings, where the config has none: that of a part is not the one that is saved."""
    if not files.layers and given:
        raise ValueError(
            "config: the config that was given has no settings of sparse attention, and the files "
            f"of {files.source!r} have no learned alphas; leave it out, give one that was read "
            "from there, or use from_pretrained and px.huggingface.enable"
        )
    if not files.layers:
        raise ValueError(
            f"name_or_path: {files.source!r} was not saved with sparse attention, or only a part "
            "of the model was enabled, which px.huggingface.save writes down and save_pretrained "
            "does not; use from_pretrained and px.huggingface.enable"
        )
    others = [x for x in find_layers(model) if files.layers.isdisjoint(_names(model, x))]
    if others:
        raise ValueError(
            f"name_or_path: {files.source!r} has learned alphas and no settings for other layers, "
            f"such as {others[0]!r}, since only a part of the model was enabled; use "
            "from_pretrained, and px.huggingface.enable with that part: it takes up its alphas"
        )
    return {"alpha": 1.5, "learn_alpha": True}


def _any_learned(settings: dict[str, Any]) -> bool:
    said = [settings, *settings.get("parts", {}).values()]
    return any(each and each.get("learn_alpha") for each in said)


def _learned(settings: dict[str, Any], name: str) -> bool:
    """What settings say of a layer: those of the smallest part that it is in."""
    parts = settings.get("parts", {})
    around = [part for part in parts if inside(name, part)]
    said = parts[max(around, key=len)] if around else settings
    return bool(said and said.get("learn_alpha"))


def _names(model: nn.Module, name: str) -> list[str]:
    """With or without the name of the model inside: either may have been saved."""
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    return [name, prefix + name, name.removeprefix(prefix)]


def _part(model: nn.Module, name: str, source: str) -> nn.Module:
    found: dict[str, nn.Module] = dict(model.named_modules())
    for each in _names(model, name):
        if each in found:
            return found[each]
    if name == getattr(model, "base_model_prefix", ""):
        return model
    raise ValueError(
        f"name_or_path: the model in {source!r} was saved with other settings for {name!r}, and "
        f"{type(model).__name__} has no such part; use from_pretrained and px.huggingface.enable"
    )


def _source(model: Any) -> str:
    """What a model says it was loaded from."""
    return str(getattr(model.config, "name_or_path", "") or "")


def _lost(name: str, source: str, advice: str) -> ValueError:
    return ValueError(
        f"{name}: found no saved alphas in the files of {source!r}, although its "
        f"config.json says that they were learned; {advice}"
    )
