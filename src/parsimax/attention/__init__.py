"""Attention with sparse weights: the function, and the modules built on it."""

from .functional import attention

__all__ = ["attention"]
