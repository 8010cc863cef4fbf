"""Greedy, sampled, beam and exact search, with certificates.

Every search asks a :class:`Stepper` for probabilities and nothing else. A symbol is in the support
of a row if its probability is above zero, and what is not there is never said.
"""

from .beam_search import beam, greedy
from .completion import Completion, NextSymbol, complete, next_symbols
from .ensemble import Ensemble
from .enumeration import Support, SupportNode, support
from .exact_search import Exact, exact
from .results import Decoded, Hypothesis
from .sampling import sample
from .scoring import Scored, score
from .stepper import Stepper

__all__ = [
    "Completion",
    "Decoded",
    "Ensemble",
    "Exact",
    "Hypothesis",
    "NextSymbol",
    "Scored",
    "Stepper",
    "Support",
    "SupportNode",
    "beam",
    "complete",
    "exact",
    "greedy",
    "next_symbols",
    "sample",
    "score",
    "support",
]
