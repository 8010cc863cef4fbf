"""Greedy, sampled, beam and exact search, with certificates.

Every search asks a :class:`Stepper` for probabilities and nothing else. A symbol is in the support
of a row if its probability is above zero, and what is not there is never said.

Example:
    A model that begins with 3 or 4, seldom ends after 3 and always after 4. Greedy search goes
    wrong and does not claim otherwise; a beam of two is right and knows it:

    >>> import torch
    >>> class Forked:
    ...     vocabulary_size = 5
    ...     rows = torch.zeros(5, 5)
    ...
    ...     def start(self, source, source_lengths):
    ...         return source
    ...
    ...     def step(self, state, previous):
    ...         return self.rows[previous], state
    ...
    ...     def select(self, state, rows):
    ...         return state[rows]
    >>> Forked.rows[1, [3, 4]] = torch.tensor([0.625, 0.375])  # after BOS
    >>> Forked.rows[3, [2, 3]] = torch.tensor([0.25, 0.75])  # 2 is EOS
    >>> Forked.rows[4, 2] = 1.0
    >>> source = torch.tensor([[3]]), torch.tensor([1])
    >>> for size in (1, 2):
    ...     (found,) = beam(Forked(), *source, size, max_length=8)
    ...     print(found.best.symbols, round(found.best.probability, 3), found.optimal)
    (3, 3, 3, 3, 3, 3, 3, 3) 0.021 False
    (4,) 0.375 True
    >>> (best,) = exact(Forked(), *source)
    >>> best.hypothesis.symbols, best.proved
    ((4,), True)
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
