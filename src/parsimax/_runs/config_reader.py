"""From YAML and dotted overrides to frozen dataclasses; a mistake is named by file, line and key.

Nothing here knows what the options mean: the dataclasses say which there are and of what type, and
a table of rules says which values make sense.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Made = TypeVar("Made")
Rule = Callable[[Any], str | None]
"""What is wrong with a value, as the end of "expected ...", or None."""


class ConfigError(ValueError):
    """An option that does not exist or a value that cannot be."""


@dataclass(frozen=True)
class Given:
    """A value as somebody wrote it, and where; ``bare`` if nothing was written."""

    value: object
    where: str
    bare: bool = False


Tree = dict[str, "Given | Tree"]


def read_yaml(path: Path) -> Tree:
    """The options of a YAML file, each with its line."""
    import yaml

    if path.is_dir():
        raise ConfigError(f"{path} is a folder; expected a YAML config file")
    if not path.exists():
        beside = sorted(p.name for p in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        raise ConfigError(
            f"there is no config file {path}"
            + _did_you_mean(path.name, beside, lambda name: str(path.parent / name))
        )
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if root is None:
        return {}
    constructor = yaml.SafeLoader("")

    def walk(node: yaml.Node, prefix: str) -> Tree:
        if not isinstance(node, yaml.MappingNode):
            line = node.start_mark.line + 1
            listed = isinstance(node, yaml.SequenceNode)
            got = "a list" if listed else repr(node.value)
            raise ConfigError(
                f"{path} line {line}: expected options such as 'seed: 1' under "
                f"{prefix.rstrip('.') or 'the top level'}, got {got}"
            )
        found: Tree = {}
        for name_node, value_node in node.value:
            name = str(constructor.construct_object(name_node, deep=True))
            where = f"{path} line {name_node.start_mark.line + 1}"
            if name in found:
                raise ConfigError(f"{where}: {prefix}{name} is given twice")
            if isinstance(value_node, yaml.MappingNode):
                found[name] = walk(value_node, f"{prefix}{name}.")
            else:
                value = constructor.construct_object(value_node, deep=True)
                found[name] = Given(value, where)
        return found

    return walk(root, "")


def read_overrides(arguments: Sequence[str]) -> Tree:
    """The options of ``--optimizer.lr 1e-3`` or ``--optimizer.lr=1e-3``; values are YAML.

    Several values in a row are a list, and an option without one is true.

    >>> read_overrides(["--optimizer.lr", "0.5"])["optimizer"]["lr"].value
    0.5
    """
    import yaml

    grouped: list[tuple[str, list[str]]] = []
    for argument in arguments:
        if argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            grouped.append((name, [value] if equals else []))
        elif grouped:
            grouped[-1][1].append(argument)
        else:
            raise ConfigError(
                f"unexpected argument {argument!r}; options are written --section.name VALUE, "
                "such as --optimizer.lr 1e-3"
            )
    tree: Tree = {}
    for key, texts in grouped:
        try:
            # a star begins a glob here, and an alias in YAML, of which there are none to name
            values = [text if text.startswith("*") else yaml.safe_load(text) for text in texts]
        except yaml.YAMLError as error:
            raise ConfigError(f"--{key}: {' '.join(texts)!r} is not a YAML value") from error
        read = True if not values else values[0] if len(values) == 1 else values
        if isinstance(read, dict):
            raise ConfigError(f"--{key}: give each option by its dotted name, got {texts[0]!r}")
        merge(tree, nest(key, Given(read, f"--{key}", bare=not values)))
    return tree


def nest(key: str, given: Given) -> Tree:
    """``a.b.c`` as nested sections."""
    *sections, name = key.split(".")
    tree: Tree = {name: given}
    for section in reversed(sections):
        tree = {section: tree}
    return tree


def merge(into: Tree, other: Tree) -> None:
    """Write the options of ``other`` over those of ``into``."""
    for name, value in other.items():
        mine = into.get(name)
        if isinstance(mine, dict) and isinstance(value, dict):
            merge(mine, value)
        else:
            into[name] = value


def given(values: dict[str, Any], where: str) -> Tree:
    """Options from nested dictionaries."""
    return {
        name: given(v, where) if isinstance(v, dict) else Given(v, where)
        for name, v in values.items()
    }


def to_yaml(made: Any) -> str:
    """A whole config as text that :func:`read_yaml` reads."""
    import yaml

    text: str = yaml.safe_dump(_plain(dataclasses.asdict(made)), sort_keys=False, width=100)
    return text


def _plain(value: object) -> object:
    """Tuples as lists, which is what YAML has."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value


def build(
    cls: type[Made],
    tree: Tree,
    *,
    where: str,
    rules: Mapping[str, Rule],
    known_elsewhere: Mapping[str, str],
) -> Made:
    """A dataclass from its options; what is not given has its default.

    Args:
        where: who is to blame for what is missing.
        rules: by dotted key, what a value has to satisfy.
        known_elsewhere: names that other programs use, and what they are called here.
    """
    keys = tuple(all_keys(cls))
    made = _build(cls, tree, "", where, rules, (keys, known_elsewhere))
    assert isinstance(made, cls)
    return made


def all_keys(cls: type, prefix: str = "") -> Iterator[str]:
    """The dotted names of all options, those of every kind of a section."""
    seen = set()
    for name, hint in _hints(cls).items():
        for section in _sections(hint):
            for key in all_keys(section, f"{prefix}{name}."):
                if key not in seen:
                    seen.add(key)
                    yield key
        if not _sections(hint):
            yield f"{prefix}{name}"


def flatten(made: object, prefix: str = "") -> dict[str, object]:
    """The values of a dataclass by dotted name."""
    assert dataclasses.is_dataclass(made)
    flat: dict[str, object] = {}
    for field in dataclasses.fields(made):
        value = getattr(made, field.name)
        if dataclasses.is_dataclass(value):
            flat.update(flatten(value, f"{prefix}{field.name}."))
        else:
            flat[prefix + field.name] = value
    return flat


Names = tuple[tuple[str, ...], Mapping[str, str]]


def _build(
    cls: type, tree: Tree, prefix: str, where: str, rules: Mapping[str, Rule], names: Names
) -> object:
    hints = _hints(cls)
    for name, found in tree.items():
        if name not in hints:
            raise ConfigError(_unknown(prefix, name, found, hints, names))
    arguments: dict[str, object] = {}
    for field in dataclasses.fields(cls):
        key = prefix + field.name
        given: Given | Tree | None = tree.get(field.name)
        sections = _sections(hints[field.name])
        if sections:
            if given is None or (isinstance(given, Given) and given.value is None):
                given = {}
            if not isinstance(given, dict):
                raise ConfigError(
                    f"{given.where}: {key} is a section; give its options as {key}.NAME, "
                    f"got {given.value!r}"
                )
            section = _choose(sections, given, key)
            arguments[field.name] = _build(section, given, f"{key}.", where, rules, names)
            continue
        if given is None:
            required = (
                field.default is dataclasses.MISSING
                and field.default_factory is dataclasses.MISSING
            )
            if required:
                raise ConfigError(f"{where}: {key} is missing; it has no default")
            continue
        if isinstance(given, dict):
            name = next(iter(given), "")
            raise ConfigError(
                f"{_first_place(given) or where}: {key} takes one value and has no option "
                f"{key}.{name}"
            )
        try:
            value = convert(given.value, hints[field.name], f"{given.where}: {key}")
        except ConfigError as error:
            if not given.bare:
                raise
            expected = str(error).removeprefix(f"{given.where}: {key}: ").rpartition(", got ")[0]
            raise ConfigError(f"{given.where}: {expected} after it, got nothing") from None
        wrong = rules[key](value) if key in rules and value is not None else None
        if wrong is not None:
            got = "" if "got " in wrong or repr(value) in wrong else f", got {given.value!r}"
            raise ConfigError(f"{given.where}: {key}: {wrong}{got}")
        arguments[field.name] = value
    try:
        made: object = cls(**arguments)
    except ValueError as error:
        raise ConfigError(f"{_first_place(tree) or where}: {prefix}{error}") from error
    return made


def convert(value: object, hint: object, place: str) -> object:
    """The value as the type asks for it; numbers may be written as YAML forgets them (1e-3)."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _convert_union(value, get_args(hint), place)
    if origin is Literal:
        options = get_args(hint)
        if value in options and not isinstance(value, bool):
            return value
        listed = ", ".join(map(str, options))
        raise ConfigError(
            f"{place}: expected one of {listed}, got {value!r}"
            + _did_you_mean(str(value), [str(o) for o in options])
        )
    if origin is tuple:
        kinds = get_args(hint)
        values = list(value) if isinstance(value, list | tuple) else [value]
        if kinds[-1] is Ellipsis:
            return tuple(convert(v, kinds[0], place) for v in values)
        if len(values) != len(kinds):
            raise ConfigError(f"{place}: expected {len(kinds)} values, got {value!r}")
        return tuple(convert(v, kind, place) for v, kind in zip(values, kinds, strict=True))
    if hint is bool and isinstance(value, bool):
        return value
    if hint is str and isinstance(value, str):
        return value
    if hint in (int, float) and not isinstance(value, bool):
        number = _number(value)
        if number is not None and hint is float:
            return number
        if number is not None and number.is_integer():
            return value if isinstance(value, int) else int(number)
    expected = {bool: "true or false", str: "text", int: "a whole number", float: "a number"}
    raise ConfigError(f"{place}: expected {expected.get(hint, hint)}, got {value!r}")  # type: ignore[call-overload]


def _convert_union(value: object, kinds: Sequence[object], place: str) -> object:
    if value is None and type(None) in kinds:
        return None
    kinds = [kind for kind in kinds if kind is not type(None)]
    failures = []
    for kind in kinds:
        try:
            return convert(value, kind, place)
        except ConfigError as error:
            failures.append(str(error))
    if len(failures) == 1:
        raise ConfigError(failures[0])
    wanted = " or ".join(f.removeprefix(f"{place}: expected ").split(", got ")[0] for f in failures)
    raise ConfigError(f"{place}: expected {wanted}, got {value!r}")


def _number(value: object) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _hints(cls: type) -> dict[str, object]:
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def _sections(hint: object) -> list[type]:
    """The dataclasses that a type allows: none for plain values."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return [k for k in kinds if isinstance(k, type) and dataclasses.is_dataclass(k)]


def _choose(sections: Sequence[type], tree: Tree, key: str) -> type:
    """The section's dataclass, by its ``kind`` where there are several."""
    if len(sections) == 1:
        return sections[0]
    by_kind = {get_args(_hints(s)["kind"])[0]: s for s in sections}
    given = tree.get("kind")
    if given is None:
        return sections[0]
    if not isinstance(given, Given) or given.value not in by_kind:
        value = given.value if isinstance(given, Given) else given
        place = given.where if isinstance(given, Given) else ""
        raise ConfigError(
            f"{place}: {key}.kind: expected one of {', '.join(by_kind)}, got {value!r}"
            + _did_you_mean(str(value), by_kind)
        )
    return by_kind[given.value]


def _unknown(
    prefix: str, name: str, given: Given | Tree, siblings: Iterable[str], names: Names
) -> str:
    keys, elsewhere = names
    place = given.where if isinstance(given, Given) else _first_place(given)
    key = prefix + name
    if isinstance(given, dict):  # a section: its first option tells what was meant
        inner = _first_key(given)
        close = difflib.get_close_matches(f"{key}.{inner}", keys, n=1, cutoff=0.6)
        if close:
            return f"{place}: unknown option {key}.{inner}; did you mean {close[0]}?"
    if key in keys:
        return (
            f"{place}: {key} is an option of another {prefix}kind than the one that is set; take "
            f"it out, or set {prefix}kind"
        )
    # A sibling whose name is close, then what others call it, then the same name in another
    # section, then whatever is close.
    close = difflib.get_close_matches(name, list(siblings), n=1, cutoff=0.6)
    if close:
        found = prefix + close[0]
    elif name in elsewhere:
        found = elsewhere[name]
    else:
        same = [k for k in keys if k.rsplit(".", 1)[-1] == name]
        found = (same or difflib.get_close_matches(key, keys, n=1, cutoff=0.5) or [""])[0]
    if found:
        return f"{place}: unknown option {key}; did you mean {found}?"
    listed = ", ".join(prefix + s for s in siblings)
    return f"{place}: unknown option {key}; there are {listed}"


def _first_key(tree: Tree) -> str:
    for name, value in tree.items():
        return name if isinstance(value, Given) else f"{name}.{_first_key(value)}"
    return ""


def _first_place(tree: Tree) -> str:
    for value in tree.values():
        return value.where if isinstance(value, Given) else _first_place(value)
    return ""


def _did_you_mean(value: str, options: Iterable[str], write: Callable[[str], str] = str) -> str:
    close = difflib.get_close_matches(value, list(options), n=1, cutoff=0.5)
    return f"; did you mean {write(close[0])}?" if close else ""
