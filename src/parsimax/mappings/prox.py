r"""Two proximal operators on rows, in plain torch: total variation and isotonic regression.

Both are found by splitting. A row begins as one group with one value, its mean. If the best way to
let some of its entries rise and the others fall gains nothing, the group is done; else it is cut
there, and the order of the parts is known from then on. The best way is a problem with two values
an entry: a chain for total variation, a prefix for isotonic regression. All groups of all rows are
looked at together, so the number of rounds is the depth of the splitting.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .groups import before, behind, group_means, group_sums, numbers


def total_variation_prox(x: Tensor, used: Tensor, lam: float | Tensor) -> Tensor:
    r"""argmin_v of :math:`\tfrac12 \|v - x\|^2 + \lambda \sum_i |v_{i+1} - v_i|`.

    Only over the entries ``used``, which must come first in their row.
    """
    tension = torch.as_tensor(lam, dtype=x.dtype, device=x.device)
    place = torch.arange(x.shape[-1], device=x.device)
    starts = (place == 0) | (used != before(used, False))
    # at the start of a group: 1 if it lies above its left neighbour, -1 if below, 0 if alone
    step = torch.zeros_like(x)
    while True:
        group = numbers(starts)
        # neighbours pull with lambda: x moved by that is what a group is the mean of
        pulled = x - tension * step + tension * behind(step, 0.0)
        value = group_means(pulled, group, torch.ones_like(x))
        rises = _rising(value - pulled, starts, tension)
        cut = (rises != before(rises, False)) & ~starts
        if not bool(cut.any()):
            return value
        starts = starts | cut
        step = torch.where(cut, torch.where(rises, 1.0, -1.0), step)


def _rising(cost: Tensor, starts: Tensor, tension: Tensor) -> Tensor:
    """Which entries rise: argmin_b of sum(cost_i b_i) + tension * (changes of b) in each group.

    Viterbi with two states. The message m_i, by how much it costs more for entry i to rise, obeys
    m_i = cost_i + clip(m_(i-1), -tension, tension).
    """
    clipped = _clipped_sums(cost, starts, tension)
    message = cost + torch.where(starts, 0.0, before(clipped, 0.0))
    ends = behind(starts, True)
    sure = ends | (message.abs() > tension)
    # the others do as their right neighbour does
    size = cost.shape[-1]
    place = torch.arange(size, device=cost.device)
    decider = torch.where(sure, place, size - 1).flip(-1).cummin(-1).values.flip(-1)
    return (message < 0).gather(-1, decider)


def _clipped_sums(cost: Tensor, starts: Tensor, tension: Tensor) -> Tensor:
    """n_i = clip(n_(i-1) + cost_i, -tension, tension), from 0 at every start, by doubling.

    Functions clip(n + shift, low, high) are closed under composition.
    """
    own = cost.clamp(-tension, tension)
    low = torch.where(starts, own, -tension)
    high = torch.where(starts, own, tension)
    shift = cost
    reach = 1
    while reach < cost.shape[-1]:
        later = (slice(None),) * (cost.ndim - 1) + (slice(reach, None),)
        earlier = (slice(None),) * (cost.ndim - 1) + (slice(None, -reach),)
        low, high, shift = (
            torch.cat([whole[..., :reach], combined], -1)
            for whole, combined in (
                (low, (low[earlier] + shift[later]).clamp(low[later], high[later])),
                (high, (high[earlier] + shift[later]).clamp(low[later], high[later])),
                (shift, shift[earlier] + shift[later]),
            )
        )
        reach *= 2
    return low


def decreasing_regression(x: Tensor, used: Tensor) -> Tensor:
    """argmin_v of |v - x|^2 with v_1 >= v_2 >= ..., over the entries ``used``, which come first."""
    place = torch.arange(x.shape[-1], device=x.device)
    starts = (place == 0) | (used != before(used, False))
    # what a sum of deviations may be for no other reason than rounding, an entry
    noise = 8 * torch.finfo(x.dtype).eps * x.abs().amax(-1, keepdim=True)
    while True:
        group = numbers(starts)
        one = torch.ones_like(x)
        value = group_means(x, group, one)
        size = group_sums(one, group).gather(-1, group)
        first = torch.where(starts, place, 0).cummax(-1).values
        taken = (place - first + 1).to(x.dtype)  # entries of the prefix that ends here
        excess = _sums_within(x - value, first)
        # the mean is rounded, so that the sum of a whole group is not 0: spread that out
        last = (first + size.long() - 1).clamp(max=x.shape[-1] - 1)
        excess = excess - excess.gather(-1, last) * taken / size
        inside = taken < size
        gain = torch.where(inside, excess - noise * torch.minimum(taken, size - taken), 0.0)
        best = torch.zeros_like(x).scatter_reduce(-1, group, gain, "amax").gather(-1, group)
        here = inside & (gain > 0) & (gain == best)
        if not bool(here.any()):
            return value
        starts = starts | before(here, False)


def _sums_within(x: Tensor, first: Tensor) -> Tensor:
    """Running sums that begin anew at every group; ``first`` is where an entry's group begins."""
    total = x.cumsum(-1)
    return total - (total - x).gather(-1, first)
