"""entmax above alpha = 2: a stand-in by bisection."""

from __future__ import annotations

from .entmax import forward
from .entmax_backward import backward

__all__ = ["backward", "forward"]
