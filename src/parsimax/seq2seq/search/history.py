"""Back-pointers of a beam: what was kept at each step, read once at the end."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]


@dataclass
class Histories:
    """Candidates kept at each step, and which of them were rows of the next step.

    ``parents`` and ``symbols`` hold, for every candidate of a step, the row it extends and by what;
    ``rows`` the candidates that became the next step's rows, in order. All stay on the device until
    :meth:`read`.
    """

    parents: list[Tensor] = field(default_factory=list)
    symbols: list[Tensor] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)

    def add(self, parents: Tensor, symbols: Tensor, rows: Tensor) -> None:
        """One step's candidates, in one dimension."""
        self.parents.append(parents)
        self.symbols.append(symbols)
        self.rows.append(rows)

    def read(self, steps: Ints, rows: Ints) -> list[tuple[int, ...]]:
        """The symbols of these prefixes: row ``rows[i]`` of step ``steps[i]`` has that many."""
        if not len(steps):
            return []
        last = int(steps.max())
        parents, symbols, kept = (
            to_host(x[:last]) for x in (self.parents, self.symbols, self.rows)
        )
        said = np.zeros((len(steps), last), dtype=np.int64)
        at = rows.copy()
        for step in range(last - 1, -1, -1):
            among = steps > step
            candidate = kept[step][at[among]]
            said[among, step] = symbols[step][candidate]
            at[among] = parents[step][candidate]
        return [tuple(row[:n]) for row, n in zip(said.tolist(), steps.tolist(), strict=True)]


def to_host(tensors: list[Tensor]) -> list[NDArray[np.generic]]:
    """Tensors of one dimension as arrays, in one transfer."""
    if not tensors:
        return []
    whole = torch.cat(tensors).cpu().numpy()
    ends = np.cumsum([len(x) for x in tensors])
    return np.split(whole, ends[:-1])
