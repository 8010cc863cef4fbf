"""Attention with sparse weights: the function, and the modules built on it."""

from .adaptive import AdaptiveAlpha
from .additive import AdditiveAttention
from .bilinear import BilinearAttention
from .decoding import decode
from .fertility import FertilityAttention, FertilityState
from .functional import attention
from .measuring import AttentionStatistics, statistics
from .multihead import MultiheadAttention
from .packing import packed

__all__ = [
    "AdaptiveAlpha",
    "AdditiveAttention",
    "AttentionStatistics",
    "BilinearAttention",
    "FertilityAttention",
    "FertilityState",
    "MultiheadAttention",
    "attention",
    "decode",
    "packed",
    "statistics",
]
