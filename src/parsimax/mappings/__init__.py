"""Mappings from scores to probabilities, as functions and as values."""

from .base import Mapping, parse, registry
from .budget import Budget, budget
from .constrained_softmax import ConstrainedSoftmax, constrained_softmax
from .constrained_sparsemax import ConstrainedSparsemax, constrained_sparsemax
from .entmax import Entmax, entmax
from .fusedmax import Fusedmax, fusedmax
from .normmax import Normmax, normmax
from .oscarmax import Oscarmax, oscarmax
from .softmax import Softmax, softmax
from .sparsegen import Sparsegen, sparsegen
from .sparsemax import Sparsemax, sparsemax

__all__ = [
    "Budget",
    "ConstrainedSoftmax",
    "ConstrainedSparsemax",
    "Entmax",
    "Fusedmax",
    "Mapping",
    "Normmax",
    "Oscarmax",
    "Softmax",
    "Sparsegen",
    "Sparsemax",
    "budget",
    "constrained_softmax",
    "constrained_sparsemax",
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
