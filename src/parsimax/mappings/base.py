"""Mappings as values: frozen objects that a config can name, a registry and a parser."""

from __future__ import annotations

import ast
import dataclasses
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from parsimax._core.dtypes import autocast_scores, working
from parsimax._core.masks import apply_mask, same_shape
from parsimax._core.validation import check_dim, check_scores, nearest

from .autograd import apply_rowmap
from .rowmap import Parameter, RowMap


@dataclass(frozen=True, eq=False)
class Mapping(ABC):
    """A regularised argmax, Pi(z) = argmax over p of <p, z> - Omega(p), chosen by value.

    Call it on scores; ``str`` gives the text that :func:`parse` reads back, if its parameter is a
    number.
    """

    @property
    @abstractmethod
    def rowmap(self) -> RowMap:
        """The mathematics on one row."""

    @property
    @abstractmethod
    def parameter(self) -> Parameter:
        """The one number, or tensor of numbers, that the row map takes."""

    def __call__(
        self, z: Tensor, dim: int = -1, mask: Tensor | None = None, *, backend: str = "auto"
    ) -> Tensor:
        """Probabilities along ``dim``; ``mask`` is True where a score may receive some."""
        return map_scores(self.rowmap, z, self.parameter, dim, mask, backend)

    def regularizer(self, p: Tensor, dim: int = -1) -> Tensor:
        """Omega(p) along ``dim``."""
        p = check_scores(p, "p")
        dim = check_dim(dim, p.ndim)
        parameter = align_parameter(self.parameter, p, dim, self.rowmap.parameter_name)
        return self.rowmap.omega(p.movedim(dim, -1), parameter)

    def __eq__(self, other: object) -> bool:
        """The same mapping with the same number, or with the very same tensor."""
        if not isinstance(other, Mapping) or type(self) is not type(other):
            return NotImplemented
        return all(map(_same, self._values(), other._values()))

    def __hash__(self) -> int:
        return hash((type(self), *self._values()))

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    def __str__(self) -> str:
        """The mapping as it is written in a config, e.g. ``entmax(alpha=1.5)``."""
        values = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        inside = ", ".join(
            f"{name}={v.tolist() if isinstance(v, Tensor) else repr(v)}" for name, v in values
        )
        name = name_of(type(self))
        return f"{name}({inside})" if inside else name


def _same(mine: object, theirs: object) -> bool:
    if isinstance(mine, Tensor) or isinstance(theirs, Tensor):
        return mine is theirs
    return mine == theirs


def name_of(cls: type[Mapping]) -> str:
    """``ConstrainedSoftmax`` is written ``constrained_softmax``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


def map_scores(
    rowmap: RowMap, z: Tensor, parameter: Parameter, dim: int, mask: Tensor | None, backend: str
) -> Tensor:
    """Check, mask, move ``dim`` to the end, map, move it back."""
    z = check_scores(z)
    dim = check_dim(dim, z.ndim)
    parameter = align_parameter(parameter, z, dim, rowmap.parameter_name)
    z = apply_mask(autocast_scores(z), mask)
    if dim == z.ndim - 1:
        return _map_rows(rowmap, z, parameter, backend)
    return _map_rows(rowmap, z.movedim(dim, -1), parameter, backend).movedim(-1, dim).contiguous()


def _map_rows(rowmap: RowMap, z: Tensor, parameter: Parameter, backend: str) -> Tensor:
    if not rowmap.by_groups:
        return apply_rowmap(rowmap, z, parameter, backend)
    # which entries are equal says what moves together, so half precision is rounded afterwards
    p = rowmap.probabilities(apply_rowmap(rowmap, working(z), parameter, backend))
    return p.to(z.dtype)


def align_parameter(parameter: Parameter, z: Tensor, dim: int, name: str) -> Parameter:
    """A tensor parameter with the scores' dimensions, ``dim`` moved to the end and of size one."""
    if not isinstance(parameter, Tensor):
        return parameter
    if not parameter.is_floating_point():
        raise TypeError(f"a tensor {name} must have a floating-point dtype, got {parameter.dtype}")
    if parameter.device != z.device:
        if parameter.numel() != 1:
            raise ValueError(
                f"a tensor {name} must be on the device of the scores, {z.device}, "
                f"got {parameter.device}"
            )
        parameter = parameter.to(z.device)
    if dim == z.ndim - 1 and same_shape(parameter.shape, (*z.shape[:-1], 1)):
        return parameter
    missing = z.ndim - parameter.ndim
    full = parameter.reshape((1,) * missing + parameter.shape) if missing > 0 else parameter
    wanted = (*z.shape[:dim], 1, *z.shape[dim + 1 :])
    fits = missing >= 0 and all(
        have == 1 or have == want for have, want in zip(full.shape, wanted, strict=True)
    )
    if not fits:
        raise ValueError(
            f"a tensor {name} must broadcast to the scores {tuple(z.shape)} with size 1 along "
            f"dim {dim}, that is to {wanted}, got shape {tuple(parameter.shape)}"
        )
    return full if dim == z.ndim - 1 else full.movedim(dim, -1)


_REGISTRY: dict[str, type[Mapping]] = {}


def register(cls: type[Mapping]) -> type[Mapping]:
    """Add a mapping class to the registry, under its name in lower case."""
    _REGISTRY[name_of(cls)] = cls
    return cls


def registry() -> dict[str, type[Mapping]]:
    """All mappings by name.

    >>> sorted(registry())
    ['budget', 'constrained_softmax', 'constrained_sparsemax', 'entmax', 'fusedmax', 'normmax', \
'oscarmax', 'softmax', 'sparsegen', 'sparsemax']
    """
    return dict(_REGISTRY)


def parse(text: str | Mapping) -> Mapping:
    """Read a mapping as written in a config.

    >>> parse("entmax(alpha=1.33)")
    Entmax(alpha=1.33)
    >>> print(parse("sparsemax"))
    sparsemax
    """
    if isinstance(text, Mapping):
        return text
    if not isinstance(text, str):
        hint = "; give its .mapping" if isinstance(getattr(text, "mapping", None), Mapping) else ""
        raise TypeError(
            f"mapping must be text such as 'entmax(alpha=1.5)' or a mapping, got {text!r}{hint}"
        )
    name, positional, keywords = _read_call(text)
    if name not in _REGISTRY:
        raise ValueError(
            f"unknown mapping {name!r} in {text!r}; known are "
            f"{', '.join(sorted(_REGISTRY))}{nearest(name, _REGISTRY)}"
        )
    cls = _REGISTRY[name]
    fields = [f.name for f in dataclasses.fields(cls)]
    if len(positional) > len(fields):
        raise ValueError(
            f"{name} takes {len(fields)} argument(s), got {len(positional)} in {text!r}"
        )
    arguments = dict(zip(fields, positional, strict=False))
    for key, value in keywords.items():
        if key not in fields:
            raise ValueError(
                f"unknown argument {key!r} of {name} in {text!r}; it takes "
                f"{', '.join(fields) or 'none'}{nearest(key, fields)}"
            )
        if key in arguments:
            raise ValueError(f"argument {key!r} of {name} is given twice in {text!r}")
        arguments[key] = value
    return cls(**arguments)


def _read_call(text: str) -> tuple[str, list[object], dict[str, object]]:
    """``name`` or ``name(literal, key=literal)``."""
    expected = f"mapping must be written like 'entmax(alpha=1.5)', got {text!r}"
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        if isinstance(tree, ast.Name):
            return tree.id, [], {}
        if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
            raise ValueError(expected)
        positional = [ast.literal_eval(a) for a in tree.args]
        if any(k.arg is None for k in tree.keywords):
            raise ValueError(expected)
        keywords = {str(k.arg): ast.literal_eval(k.value) for k in tree.keywords}
    except (SyntaxError, ValueError) as error:
        raise ValueError(expected) from error
    names = [str(k.arg) for k in tree.keywords]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"argument {name!r} of {tree.func.id} is given twice in {text!r}")
    return tree.func.id, positional, keywords
