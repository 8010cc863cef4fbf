"""The page of ``parsimax sweep``: Figures 1 to 4 and Tables 1 and 2 of Meister et al. (2021)."""

from .page import sweep_page, write_page

__all__ = ["sweep_page", "write_page"]
