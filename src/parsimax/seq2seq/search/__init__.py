"""Greedy, sampled, beam and exact search, with certificates.

Every search asks a :class:`Stepper` for probabilities and nothing else. A symbol is in the support
of a row if its probability is above zero, and what is not there is never said.
"""

from .beam_search import beam, greedy
from .results import Decoded, Hypothesis
from .stepper import Stepper

__all__ = ["Decoded", "Hypothesis", "Stepper", "beam", "greedy"]
