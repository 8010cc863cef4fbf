"""Mappings from scores to probabilities, as functions and as values."""

from .base import Mapping, parse, registry
from .budget import Budget, budget
from .entmax import Entmax, entmax
from .fusedmax import Fusedmax, fusedmax
from .normmax import Normmax, normmax
from .oscarmax import Oscarmax, oscarmax
from .softmax import Softmax, softmax
from .sparsegen import Sparsegen, sparsegen
from .sparsemax import Sparsemax, sparsemax

__all__ = [
    "Budget",
    "Entmax",
    "Fusedmax",
    "Mapping",
    "Normmax",
    "Oscarmax",
    "Softmax",
    "Sparsegen",
    "Sparsemax",
    "budget",
    "entmax",
    "fusedmax",
    "normmax",
    "oscarmax",
    "parse",
    "registry",
    "softmax",
    "sparsegen",
    "sparsemax",
]
