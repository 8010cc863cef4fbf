"""Everything of parsimax as Modules, which store arguments and call the functions."""

from parsimax.attention import (
    AdaptiveAlpha,
    AdditiveAttention,
    BilinearAttention,
    FertilityAttention,
    LatentTreeAttention,
    MultiheadAttention,
    StructuredAttention,
)

from .losses import EntmaxLoss, FenchelYoungLoss, LinearEntmaxLoss, SparsemaxLoss
from .mappings import (
    Budget,
    ConstrainedSoftmax,
    ConstrainedSparsemax,
    Entmax,
    Fusedmax,
    Normmax,
    Oscarmax,
    Softmax,
    Sparsegen,
    Sparsemax,
)

__all__ = [
    "AdaptiveAlpha",
    "AdditiveAttention",
    "BilinearAttention",
    "Budget",
    "ConstrainedSoftmax",
    "ConstrainedSparsemax",
    "Entmax",
    "EntmaxLoss",
    "FenchelYoungLoss",
    "FertilityAttention",
    "Fusedmax",
    "LatentTreeAttention",
    "LinearEntmaxLoss",
    "MultiheadAttention",
    "Normmax",
    "Oscarmax",
    "Softmax",
    "Sparsegen",
    "Sparsemax",
    "SparsemaxLoss",
    "StructuredAttention",
]
