"""Mappings from scores to probabilities, as functions and as values."""

from .base import Mapping, parse, registry
from .budget import Budget, budget
from .entmax import Entmax, entmax
from .normmax import Normmax, normmax
from .softmax import Softmax, softmax
from .sparsegen import Sparsegen, sparsegen
from .sparsemax import Sparsemax, sparsemax

__all__ = [
    "Budget",
    "Entmax",
    "Mapping",
    "Normmax",
    "Softmax",
    "Sparsegen",
    "Sparsemax",
    "budget",
    "entmax",
    "normmax",
    "parse",
    "registry",
    "softmax",
    "sparsegen",
    "sparsemax",
]
