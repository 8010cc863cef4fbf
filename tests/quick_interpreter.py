"""Triton's interpreter without half of its time.

Whenever one kernel function calls another, the interpreter looks through all of ``triton.language``
for what it has to replace, although the outer call has replaced it. What there is to look at does
not change, so it is looked for once.
"""

from __future__ import annotations

import inspect
from typing import Any


def hasten() -> None:
    """Remember the names; does nothing where the interpreter is not built as we know it."""
    try:
        from triton.language import core
        from triton.runtime import interpreter

        patch_attr = interpreter._patch_attr
        expected = ["pkg", "builder", "scope"]
        if list(inspect.signature(interpreter._patch_builtin).parameters) != expected:
            return
    except (ImportError, AttributeError):
        return
    names: dict[Any, list[str]] = {}

    def patch_builtin(pkg: Any, builder: Any, scope: Any) -> None:
        if pkg not in names:  # the outermost call, so that nothing is replaced yet
            members = inspect.getmembers(pkg)
            names[pkg] = [name for name, member in members if core.is_builtin(member)]
        for name in names[pkg]:
            member = getattr(pkg, name)
            if core.is_builtin(member):
                patch_attr(pkg, name, member, builder, scope)

    interpreter._patch_builtin = patch_builtin
