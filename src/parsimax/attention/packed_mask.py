"""Packed sequences in one matrix of weights, where all but those of a sequence are hidden.

This is for derivatives that are recorded, of torch.func or in forward mode: an operator would give
none there, or zeros, and nobody can look at where sequences begin to take them one by one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .functional import Weigh, attend
from .visibility import Band, intersect, within_band


def all_at_once(
    inputs: tuple[Tensor, Tensor, Tensor],
    starts: tuple[Tensor, Tensor],
    weigh: Weigh,
    band: Band,
    *,
    bottom_right: bool,
    scale: float,
    grouped: bool,
    dropout_p: float,
) -> Tensor:
    """Context (total, heads, Ev); NaN if sequences cannot begin there.

    ``band`` is without its offset.
    """
    q, k, v = (x.transpose(0, 1) for x in inputs)
    (of_query, place, queries, fits_q), (of_key, ahead, keys, fits_k) = (
        _places(x.long(), y.shape[0]) for x, y in zip(starts, inputs[:2], strict=True)
    )
    if bottom_right:
        place = place + (keys - queries)[of_query]
    of_one = of_key == of_query.unsqueeze(1)
    visible = intersect(of_one, within_band(band, ahead - place.unsqueeze(1)))
    q = q * torch.where(fits_q & fits_k, 1.0, torch.nan).to(q.dtype)
    found = attend(q, k, v, weigh, visible, None, dropout_p, scale, grouped)
    return found.context.transpose(0, 1)


def _places(starts: Tensor, total: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of each row its sequence and its place there, of each sequence its length; and if all fit."""
    ends, lengths = starts[1:].contiguous(), starts.diff()
    row = torch.arange(total, device=starts.device)
    sequence = torch.searchsorted(ends, row, right=True)
    if ends.shape[0]:
        sequence = sequence.clamp(max=ends.shape[0] - 1)
    fits = (starts[0] == 0) & (starts[-1] == total) & (lengths >= 0).all()
    return sequence, row - starts[sequence], lengths, fits
