"""Pictures: self-contained HTML pages, drawn by matplotlib as inline SVG.

A page holds everything it shows; opening it fetches nothing.
"""

from parsimax.viz.demo import demo_page, write_demo

__all__ = ["demo_page", "write_demo"]
