"""The page of ``parsimax audit``: is attention an explanation, for readers who know no code."""

from .page import Facts, audit_page, write_page

__all__ = ["Facts", "audit_page", "write_page"]
