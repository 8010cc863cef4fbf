"""The files with the weights of a model: which alphas they have, and which layer was saved where.

A layer that is given as part of a model does not know its name in the whole, and the halves of an
encoder-decoder have layers of the same names. So it is found by its weights, which are those of
the file right after ``from_pretrained``.
"""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .families import heads_of
from .interface import ALPHA

_END = f".{ALPHA}.a"
# as from_pretrained looks for them; the second kind is that of torch.save
_FILES = ("model.safetensors", "pytorch_model.bin")


def of_folder(source: str) -> Files | None:
    """None for a name on a hub, since nobody knows in which revision."""
    return Files(source, {}) if source and Path(source).is_dir() else None


class Files:
    """Tensors in the files of one model.

    Args:
        source: a folder, or a name on a hub whose files are here already.
        where: of the arguments of ``from_pretrained``, those that say which files.

    Attributes:
        layers: names of all layers with saved alphas.
    """

    def __init__(self, source: str, where: dict[str, Any]) -> None:
        self.source = source
        self._paths = _paths(source, where)
        self._loaded: dict[str, dict[str, Tensor]] = {}
        self.layers = {key.removesuffix(_END) for key in self._paths if key.endswith(_END)}

    def alpha(self, saved: str, name: str, layer: nn.Module) -> Tensor:
        """The parameter ``a`` that was saved under a name, for this layer."""
        value = self._read(saved + _END)
        if value.shape != (heads_of(layer),):
            raise ValueError(
                f"{name}: expected {heads_of(layer)} saved alphas, one a head, got shape "
                f"{tuple(value.shape)} in {self.source!r}"
            )
        return value

    def find(self, names: list[str], name: str, layer: nn.Module) -> str | None:
        """Under which name a layer was saved, with alphas or without; None if it is not known.

        Args:
            names: what it would be called if its model was saved, the likeliest first.
            name: of the layer in what was given, the last part of its name in the file.
            layer: with the weights from the file.
        """
        known = _weights(layer)
        places = self._places(known, name)
        alike = {each for each in self.layers if _ends(each, name)}
        if not places:  # quantised, not loaded, or wrapped: there are only names to go by
            return self._choose(names, name, alike)
        same = {place for place in places if self._agrees(place, known)}
        if not same and alike:
            raise ValueError(
                f"{name}: its weights are not those in {self.source!r}, where alphas were learned "
                "beside them; enable the model right after from_pretrained, load it with "
                "px.huggingface.load, or pass restore=False to start anew"
            )
        return self._choose(names, name, same)

    def has(self, name: str, layer: nn.Module) -> bool:
        """Whether there may be weights of a layer of that name; those of a new one are nowhere."""
        known = _weights(layer)
        return not known or bool(self._places(known, name))

    def _places(self, known: dict[str, Tensor], name: str) -> set[str]:
        return {
            key.removesuffix(f".{part}")
            for part in known
            for key in self._paths
            if key.endswith(f".{part}") and _ends(key.removesuffix(f".{part}"), name)
        }

    def _choose(self, names: list[str], name: str, found: set[str]) -> str | None:
        exact = next((each for each in names if each in found), None)
        if exact is None and len(found) > 1:
            raise ValueError(
                f"{name}: cannot tell which of {', '.join(sorted(found))} in {self.source!r} it "
                "is; enable the whole model, or pass restore=False to start anew"
            )
        return exact if exact is not None else next(iter(found), None)

    def _agrees(self, place: str, known: dict[str, Tensor]) -> bool:
        shared = [part for part in known if f"{place}.{part}" in self._paths]
        rows = [(self._read(f"{place}.{part}", first=True), known[part][0]) for part in shared]
        return bool(rows) and all(_same(saved, own.detach().cpu()) for saved, own in rows)

    def _read(self, key: str, first: bool = False) -> Tensor:
        from safetensors import safe_open

        path = self._paths[key]
        if _is_pickled(path):
            if path not in self._loaded:
                self._loaded[path] = _load(path)
            whole = self._loaded[path][key]
            return whole[0] if first else whole
        with safe_open(path, "pt") as tensors:
            value: Tensor = tensors.get_slice(key)[0] if first else tensors.get_tensor(key)
        return value


def _ends(one: str, two: str) -> bool:
    """Whether a name is the last part of the other."""
    short, long = sorted((one, two), key=len)
    return f".{long}".endswith(f".{short}")


def _weights(layer: nn.Module) -> dict[str, Tensor]:
    """Matrices that can be compared; vectors are often the same everywhere, and 0."""
    return {
        name: value.data
        for name, value in layer.named_parameters()
        if type(value.data) is Tensor
        and value.ndim > 1
        and value.is_floating_point()
        and value.device.type != "meta"
    }


def _same(one: Tensor, two: Tensor) -> bool:
    """Equal but for the rounding of bfloat16, which has 8 bits, and of the smallest in float16."""
    if one.shape != two.shape:
        return False
    return torch.allclose(one.double(), two.double(), rtol=2**-8, atol=2**-24, equal_nan=True)


def _is_pickled(path: str) -> bool:
    return path.endswith(".bin")


def _load(path: str) -> dict[str, Tensor]:
    """What torch.save wrote, read as late as can be."""
    mapped = zipfile.is_zipfile(path)
    state: dict[str, Tensor] = torch.load(path, "cpu", weights_only=True, mmap=mapped)
    return state


def _paths(source: str, where: dict[str, Any]) -> dict[str, str]:
    """The file of every tensor."""
    from safetensors import safe_open
    from transformers.utils.hub import cached_file

    where = dict(where)
    variant = where.pop("variant", None)

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

    for file in _FILES:
        single = get(_named(file, variant))
        if single is not None and _is_pickled(single):
            try:
                return dict.fromkeys(_load(single), single)
            except pickle.UnpicklingError:  # there is more than tensors in it
                return {}
        if single is not None:
            with safe_open(single, "pt") as tensors:
                return dict.fromkeys(tensors.keys(), single)
        listed = get(_named(f"{file}.index.json", variant))
        if listed is not None:
            shards = json.loads(Path(listed).read_text(encoding="utf-8"))["weight_map"]
            found = {shard: get(shard) for shard in set(shards.values())}
            return {key: path for key, shard in shards.items() if (path := found[shard])}
    return {}


def _named(file: str, variant: str | None) -> str:
    """As transformers does: before the last part of a name."""
    start, _, end = file.rpartition(".")
    return file if variant is None else f"{start}.{variant}.{end}"
