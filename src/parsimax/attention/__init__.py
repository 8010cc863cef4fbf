"""Attention with sparse weights: the function, and the modules built on it."""

from .adaptive import AdaptiveAlpha
from .additive import AdditiveAttention
from .bilinear import BilinearAttention
from .fertility import FertilityAttention, FertilityState
from .functional import attention
from .latent_tree import LatentTreeAttention
from .multihead import MultiheadAttention
from .structured import StructuredAttention

__all__ = [
    "AdaptiveAlpha",
    "AdditiveAttention",
    "BilinearAttention",
    "FertilityAttention",
    "FertilityState",
    "LatentTreeAttention",
    "MultiheadAttention",
    "StructuredAttention",
    "attention",
]
