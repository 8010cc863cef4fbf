"""The most probable symbols of each row, in an order that no batch or device changes."""

from __future__ import annotations

import torch
from torch import Tensor

from .inputs import faults, raise_faults


def log(probabilities: Tensor) -> Tensor:
    """Logarithms in float64, never above 0: a rounded row may hold 1.0000001."""
    return probabilities.double().clamp(0, 1).log()


def most_probable(probabilities: Tensor, count: int, position: int) -> tuple[Tensor, Tensor]:
    """The ``count + 1`` largest of each row (N, count + 1) and their symbols, the largest first.

    The one more is the largest that is left out. Equals stand in the order of their symbols. Fewer
    columns come back if the vocabulary is smaller. ``position`` is for messages: values that are
    no probabilities raise here.
    """
    size = probabilities.shape[1]
    values, symbols = probabilities.topk(min(count + 1, size), dim=1)
    # topk leaves the order of equals open: by symbol first, then by value, which keeps it.
    symbols, order = symbols.sort(dim=1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    symbols = symbols.gather(1, order)
    # ... and which of the equals it took, if the last of them did not fit.
    cut = values.shape[1] > count
    torn = (values[:, count - 1] == values[:, count]) & (values[:, count] > 0) if cut else None
    found = faults(probabilities, values[:, 0])
    if torn is not None:
        found = torch.cat([found, torn.any()[None]])
    flags = found.tolist()
    raise_faults(flags[:3], position)
    if torn is not None and flags[3]:
        rows = torn.nonzero().squeeze(1)
        whole, order = probabilities[rows].sort(dim=1, descending=True, stable=True)
        values[rows], symbols[rows] = whole[:, : count + 1], order[:, : count + 1]
    return values, symbols
