"""Everything of parsimax as Modules, which store arguments and call the functions."""

from parsimax.attention import (
    AdaptiveAlpha,
    AdditiveAttention,
    BilinearAttention,
    LatentTreeAttention,
    MultiheadAttention,
    StructuredAttention,
)

from .losses import EntmaxLoss, FenchelYoungLoss, LinearEntmaxLoss, SparsemaxLoss
from .mappings import Budget, Entmax, Normmax, Softmax, Sparsegen, Sparsemax

__all__ = [
    "AdaptiveAlpha",
    "AdditiveAttention",
    "BilinearAttention",
    "Budget",
    "Entmax",
    "EntmaxLoss",
    "FenchelYoungLoss",
    "LatentTreeAttention",
    "LinearEntmaxLoss",
    "MultiheadAttention",
    "Normmax",
    "Softmax",
    "Sparsegen",
    "Sparsemax",
    "SparsemaxLoss",
    "StructuredAttention",
]
