"""Dependency trees: every word has one head, and heads lead to the root."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from .base import Structure, sums_from_one


@dataclass(frozen=True, eq=False)
class _Tree(Structure):
    """What both kinds of trees share."""

    single_root: bool = True
    square: ClassVar[bool] = True
    target_rule: ClassVar[str] = (
        "every column sums to 1, and so does the diagonal, or to more with single_root=False"
    )

    def __post_init__(self) -> None:
        if not isinstance(self.single_root, bool):
            raise TypeError(
                f"single_root must be True or False, got {type(self.single_root).__name__} "
                f"{self.single_root!r}"
            )

    @property
    def options(self) -> tuple[int, ...]:
        """Whether one word only may hang from the root."""
        return (int(self.single_root),)

    def check_instance(self, rows: int, columns: int) -> str | None:
        """A tree of words needs a score for every pair of them."""
        if rows == columns:
            return None
        return f"{rows} x {columns}, and trees need a square, [head, child] for every two words"

    def target_error(self, y: Tensor, inside: Tensor) -> Tensor:
        """Of columns, and of the roots."""
        roots = y.diagonal(dim1=1, dim2=2).sum(1) - 1
        off = roots.abs() if self.single_root else (-roots).clamp(min=0)
        off = off * inside.flatten(1).any(1)
        return off.maximum(sums_from_one(y, inside, 1))


@dataclass(frozen=True, eq=False)
class Arborescence(_Tree):
    """Non-projective dependency trees: the spanning arborescences of a graph.

    Scores are (B, n, n): ``scores[:, h, m]`` for "h is the head of m", and ``scores[:, m, m]``, on
    the diagonal, for "m hangs from the root". Every column of a structure has one 1.

    Args:
        single_root: Exactly one word hangs from the root; if False, any number from one up may.

    >>> import torch, parsimax as px
    >>> scores = torch.zeros(1, 3, 3)
    >>> scores[0, 0, 0] = scores[0, 0, 1] = scores[0, 1, 2] = 5.0  # root -> 0 -> 1 -> 2
    >>> px.sparsemap(scores, px.structured.Arborescence()).marginals
    tensor([[[1., 1., 0.],
             [0., 0., 1.],
             [0., 0., 0.]]])
    """

    kind: ClassVar[str] = "ARBORESCENCE"


@dataclass(frozen=True, eq=False)
class ProjectiveTree(_Tree):
    """Projective dependency trees: no two arcs cross when drawn over the sentence.

    Scores are those of :class:`Arborescence`.

    Args:
        single_root: Exactly one word hangs from the root; if False, several may, and no arc passes
            over one that does, as if the root stood before the sentence.

    >>> import torch, parsimax as px
    >>> scores = torch.zeros(1, 3, 3)
    >>> scores[0, 1, 0] = scores[0, 1, 2] = scores[0, 1, 1] = 5.0  # 0 <- 1 -> 2
    >>> px.sparsemap(scores, px.structured.ProjectiveTree()).marginals
    tensor([[[0., 0., 0.],
             [1., 1., 1.],
             [0., 0., 0.]]])
    """

    kind: ClassVar[str] = "PROJECTIVE_TREE"
