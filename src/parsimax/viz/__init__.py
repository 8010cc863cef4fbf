"""Pictures: self-contained HTML pages with inline SVG.

A page holds everything it shows; opening it fetches nothing. Plots are drawn by matplotlib, which
is imported only for them; trees, grids and strips need nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parsimax.viz.demo import demo_page, write_demo

__all__ = ["demo_page", "write_demo"]


def __getattr__(name: str) -> Any:
    """Load the page of the family of mappings, and matplotlib with it, on first use."""
    if name in __all__:
        from parsimax.viz import demo

        return getattr(demo, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
