"""Attention with sparse weights: the function, and the modules built on it."""

from .adaptive import AdaptiveAlpha
from .additive import AdditiveAttention
from .bilinear import BilinearAttention
from .decoding import decode
from .fertility import FertilityAttention, FertilityState
from .functional import attention
from .key_bounds import KeyBounds
from .latent_tree import LatentTreeAttention
from .measuring import AttentionStatistics, statistics
from .multihead import MultiheadAttention
from .structured import StructuredAttention
from .varlen import packed

__all__ = [
    "AdaptiveAlpha",
    "AdditiveAttention",
    "AttentionStatistics",
    "BilinearAttention",
    "FertilityAttention",
    "FertilityState",
    "KeyBounds",
    "LatentTreeAttention",
    "MultiheadAttention",
    "StructuredAttention",
    "attention",
    "decode",
    "packed",
    "statistics",
]
