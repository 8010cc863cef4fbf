"""Is it an explanation? Attention beside importance, under tests that could show it is not."""

from .auditable import Auditable, Text
from .importance import importance

__all__ = ["Auditable", "Text", "importance"]
