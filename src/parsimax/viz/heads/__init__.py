"""Pictures of what heads do, after Figures 2 to 10 of Correia, Niculae and Martins (2019)."""

from .page import heads_page, write_page

__all__ = ["heads_page", "write_page"]
