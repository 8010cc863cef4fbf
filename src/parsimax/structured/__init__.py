"""SparseMAP: distributions over few whole structures, and the structures it knows."""

from .alignment import MonotoneAlignment
from .base import Structure
from .budget import Budget
from .from_oracle import FromOracle
from .loss import sparsemap_loss
from .matching import Matching
from .result import ConvergenceWarning, SparseMAPResult
from .sequence import Sequence
from .solving import sparsemap
from .trees import Arborescence, ProjectiveTree

__all__ = [
    "Arborescence",
    "Budget",
    "ConvergenceWarning",
    "FromOracle",
    "Matching",
    "MonotoneAlignment",
    "ProjectiveTree",
    "Sequence",
    "SparseMAPResult",
    "Structure",
    "sparsemap",
    "sparsemap_loss",
]
