"""What a structure says about itself: shapes, lengths, and which oracle finds its best member."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Structure(ABC):
    """A set of structures over scores; the argument ``structure`` of :func:`parsimax.sparsemap`.

    A subclass names its oracle and checks shapes; everything else (batches, lengths, derivatives)
    is the same for all.
    """

    # the name of a constant in ``parsimax.kernels.cpu.structured.oracles``
    kind: ClassVar[str]
    # dimensions of one instance's scores: 2 for a matrix, 1 for a vector
    score_dims: ClassVar[int] = 2
    # the scores' dimensions that a length cuts: ``lengths`` is (B,) for one, (B, 2) or (B,) for two
    square: ClassVar[bool] = False

    @property
    def options(self) -> tuple[int, ...]:
        """What the oracle reads after the size of an instance: integers."""
        return ()

    @property
    def extra(self) -> Tensor | None:
        """Scores that belong to no single variable, differentiable, or None."""
        return None

    @abstractmethod
    def check_instance(self, rows: int, columns: int) -> str | None:
        """Why no structure of this size exists, in words that follow "got ..."; None if one does."""
