"""Which values make sense for an option: each rule gives the end of "expected ...", or None."""

from __future__ import annotations

from .config_reader import Rule


def at_least(low: float) -> Rule:
    """A number not below ``low``."""
    return lambda value: None if value >= low else f"expected at least {low}"


def above(low: float) -> Rule:
    """A number above ``low``."""
    return lambda value: None if value > low else f"expected more than {low}"


def fraction(value: float) -> str | None:
    """From 0 to below 1."""
    return None if 0 <= value < 1 else "expected a number from 0 to below 1"


def factor(value: float) -> str | None:
    """Above 0, at most 1."""
    return None if 0 < value <= 1 else "expected a number above 0, at most 1"


def betas(value: tuple[float, float]) -> str | None:
    """The two rates of Adam."""
    return None if all(0 <= b < 1 for b in value) else "expected two numbers from 0 to below 1"


def paths(value: tuple[str, ...]) -> str | None:
    """At least one path, none of them empty."""
    return None if value and all(value) else "expected at least one path"


def mapping(value: str) -> str | None:
    """The text of a mapping."""
    from parsimax import mappings

    try:
        mappings.parse(value)
    except (TypeError, ValueError) as error:
        return str(error)
    return None
