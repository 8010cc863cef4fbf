"""Structures of a user's own, known only by how to find the best one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from .base import Structure


@dataclass(frozen=True, eq=False)
class FromOracle(Structure):
    """Any set of 0/1 structures over scores, given by a function that finds the best of them.

    ``map_oracle`` takes the scores of one instance, a float64 tensor on the CPU of the shape that
    the scores have without the batch dimension (cut to its length), and returns a tensor, or an
    array of numpy, of that shape: 1 where the structure with the highest total score has a part, 0
    elsewhere. It must be exact: a structure that it never returns does not exist. What is forbidden
    by a mask or by -inf comes as a very low score. One segment of a row, for example:

    >>> import torch, parsimax as px
    >>> def best_segment(scores):
    ...     ends = torch.cat([scores.new_zeros(1), scores.cumsum(0)])
    ...     sums = ends[None, :] - ends[:, None]  # [start, stop]
    ...     sums = sums.masked_fill(torch.ones_like(sums).tril().bool(), -torch.inf)
    ...     start, stop = divmod(int(sums.argmax()), len(ends))
    ...     segment = torch.zeros_like(scores)
    ...     segment[start:stop] = 1
    ...     return segment
    >>> segments = px.structured.FromOracle(best_segment)
    >>> r = px.sparsemap(torch.tensor([[-0.4, 0.6, 0.7, -0.1, 0.3]]), segments)
    >>> r.marginals
    tensor([[0.0000, 0.6000, 0.7000, 0.0000, 0.3000]])

    Scores are (B, d) or (B, n, m), or (B, ...) without lengths. The function runs in Python, one
    instance at a time, a few times as often as the solution has structures.
    """

    map_oracle: Callable[[Tensor], Tensor | np.ndarray[Any, Any]]

    kind: ClassVar[str] = "PYTHON"

    def __post_init__(self) -> None:
        if not callable(self.map_oracle):
            raise TypeError(
                f"map_oracle must be a function of the scores, got {type(self.map_oracle).__name__}"
            )

    def variables(self, scores: Any, shape: tuple[int, ...]) -> Any:
        """Ask the oracle; which variables are active in what it returns, checked."""
        z = torch.from_numpy(scores).reshape(shape)
        found = self.map_oracle(z)
        if isinstance(found, np.ndarray):
            found = torch.from_numpy(found)
        if not isinstance(found, Tensor):
            raise TypeError(
                "map_oracle must return a torch.Tensor or a numpy array of zeros and ones, "
                f"got {type(found).__name__}"
            )
        if found.shape != z.shape:
            raise ValueError(
                "map_oracle must return a tensor of the shape of the scores it was given, "
                f"{tuple(z.shape)}, got {tuple(found.shape)}"
            )
        flat = found.detach().to("cpu").reshape(-1)
        active = flat != 0
        if not bool((flat[active] == 1).all()):
            wrong = flat[active & (flat != 1)][0].item()
            raise ValueError(f"map_oracle must return zeros and ones, got {wrong!r} among them")
        return active.nonzero().reshape(-1).numpy().astype(np.int32)
