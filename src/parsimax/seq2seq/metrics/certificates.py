"""How often a search could prove what it returned."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

# Peters, Niculae and Martins (2019), section 4.1: entmax(alpha=1.5), beam 5, validation sets of
# SIGMORPHON 2018. Setting -> (one sequence has all the probability, the beam covered everything).
PAPER = {"medium": (0.66, 0.79), "high": (0.81, 0.87)}


class Proved(Protocol):
    """What is asked of a search's result."""

    @property
    def hypotheses(self) -> tuple[object, ...]:
        """What was found, best first."""

    @property
    def single(self) -> bool | None:
        """There is exactly one sequence of positive probability; None if that is not claimed."""

    @property
    def exhaustive(self) -> bool | None:
        """No prefix of positive probability was dropped; None if that is not claimed."""

    @property
    def optimal(self) -> bool | None:
        """Nothing dropped can be more probable than the best; None if that is not claimed."""


@dataclass(frozen=True)
class Certificates:
    """Shares of the outputs; None if a share is not claimed, as under a length penalty.

    Args:
        single: the whole probability is on one sequence, and it was found.
        exhaustive: every sequence of positive probability was found.
        optimal: nothing is more probable than the output.
        empty: nothing was found, not even a prefix that a limit cut.
    """

    single: float | None
    exhaustive: float | None
    optimal: float | None
    empty: float


def certificates(results: Iterable[Proved]) -> Certificates:
    """Count certificates."""
    every = list(results)
    if not every:
        raise ValueError("results: expected at least one, got none")
    return Certificates(
        single=_share(r.single for r in every),
        exhaustive=_share(r.exhaustive for r in every),
        optimal=_share(r.optimal for r in every),
        empty=sum(not r.hypotheses for r in every) / len(every),
    )


def _share(claims: Iterable[bool | None]) -> float | None:
    """The share of claims that hold; None if any is not made, because then no share is known."""
    every = list(claims)
    if any(claim is None for claim in every):
        return None
    return sum(map(bool, every)) / len(every)
