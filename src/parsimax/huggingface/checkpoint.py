"""Alphas of a model that was saved: where they are, and how they come back.

``save_pretrained`` writes them beside the weights, and the settings of ``enable`` in config.json.
``from_pretrained`` knows nothing of them, and leaves them; ``enable`` takes them up.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .families import find_layers, heads_of
from .interface import ALPHA

Values = list[tuple[nn.Module, Tensor]]
_END = f".{ALPHA}.a"
_FILE = "model.safetensors"


class Settings(dict[str, Any]):
    """What ``enable`` was given, in the config of a model; read from a file it is a plain dict."""


# what says where the files of a model are
_WHERE = ("cache_dir", "revision", "subfolder", "token", "variant")


def load(model_class: Any, name_or_path: Any, **kwargs: Any) -> Any:
    """Load a model that was saved with sparse attention, and enable it as it was.

    Args:
        model_class: such as ``AutoModelForCausalLM`` or ``BertModel``.
        name_or_path: of the folder, as for ``from_pretrained``.
        kwargs: for ``from_pretrained``.

    Returns:
        The model, with its alphas if they were learned; with ``output_loading_info=True`` a pair,
        as from ``from_pretrained``.
    """
    from .enabling import enable

    made = model_class.from_pretrained(name_or_path, **kwargs)
    model = made[0] if isinstance(made, tuple) else made
    settings = saved_settings(model)
    if settings is None:
        raise ValueError(
            f"name_or_path: {str(name_or_path)!r} was not saved with sparse attention; use "
            f"from_pretrained and px.huggingface.enable"
        )
    enable(model, **settings, restore=False)
    if settings["learn_alpha"]:
        where = {key: kwargs[key] for key in _WHERE if key in kwargs}
        advice = "for a start anew use from_pretrained and enable with restore=False"
        put_alphas(_matched(model, find_layers(model), str(name_or_path), where, advice))
    return made


def saved_settings(model: nn.Module) -> dict[str, Any] | None:
    """Settings in a config that came from a file."""
    found = getattr(getattr(model, "config", None), "parsimax", None)
    return dict(found) if isinstance(found, dict) and not isinstance(found, Settings) else None


def saved_alphas(model: Any, layers: list[nn.Module], learn_alpha: bool) -> Values:
    """What ``layers`` of a model had when it was saved; nothing if alpha was not learned."""
    settings = saved_settings(model)
    if settings is None or not settings.get("learn_alpha"):
        return []
    source = model.config.name_or_path
    if not learn_alpha:
        raise ValueError(
            f"learn_alpha: the model in {source!r} was saved with learned alphas; pass "
            "learn_alpha=True to take them up, or restore=False to leave them"
        )
    if not source or not Path(source).is_dir():  # on a hub, and nobody knows in which revision
        raise ValueError(
            f"model: {source!r}, where its learned alphas were saved, is no folder here; load it "
            "with px.huggingface.load, or pass restore=False to start anew"
        )
    ours = {id(layer) for layer in layers}
    named = {name: each for name, each in model.named_modules() if id(each) in ours}
    advice = (
        "load it with px.huggingface.load and all that from_pretrained was given, or pass "
        "restore=False to start anew"
    )
    return _matched(model, named, source, {}, advice)


def put_alphas(values: Values) -> None:
    """Set the parameters of layers, which must be enabled."""
    with torch.no_grad():
        for layer, value in values:
            getattr(layer, ALPHA).a.copy_(value)


def _matched(
    model: nn.Module,
    layers: dict[str, nn.Module],
    source: str,
    where: dict[str, Any],
    advice: str,
) -> Values:
    """By name, with or without that of the model inside: either may have been saved."""
    found = _read(source, where)
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    values: Values = []
    for name, layer in layers.items():
        keys = [key + _END for key in (name, prefix + name, name.removeprefix(prefix))]
        key = next((key for key in keys if key in found), None)
        if key is None:
            raise ValueError(
                f"{name}: found no saved alphas in the safetensors files of {source!r}, although "
                f"its config.json says that they were learned; {advice}"
            )
        if found[key].shape != (heads_of(layer),):
            raise ValueError(
                f"{name}: expected {heads_of(layer)} saved alphas, one a head, got shape "
                f"{tuple(found[key].shape)} in {source!r}"
            )
        values.append((layer, found[key]))
    return values


def _read(source: str, where: dict[str, Any]) -> dict[str, Tensor]:
    """All alphas in the files of a model."""
    from safetensors import safe_open

    found: dict[str, Tensor] = {}
    for file in _files(source, where):
        with safe_open(file, "pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118  it is no dict
                if key.endswith(_END):
                    found[key] = tensors.get_tensor(key)
    return found


def _files(source: str, where: dict[str, Any]) -> list[str]:
    from transformers.utils.hub import cached_file

    where = dict(where)
    variant = where.pop("variant", None)
    name = _FILE if variant is None else _FILE.replace(".", f".{variant}.", 1)
    index = _FILE + ".index.json"
    if variant is not None:
        index = index.replace("index.", f"index.{variant}.")

    def get(file: str) -> str | None:
        path: str | None = cached_file(
            source,
            file,
            local_files_only=True,  # from_pretrained has just read them
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            _raise_exceptions_for_gated_repo=False,
            **where,
        )
        return path

    single = get(name)
    if single is not None:
        return [single]
    listed = get(index)
    if listed is None:
        return []
    shards = json.loads(Path(listed).read_text(encoding="utf-8"))["weight_map"]
    kept = {shard for key, shard in shards.items() if key.endswith(_END)}
    return [path for shard in sorted(kept) if (path := get(shard)) is not None]
