"""Sources that cannot be, given to every search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.seq2seq.search.tables import TableStepper, random_rule

from parsimax.seq2seq import search

SEARCHES: dict[str, Callable[..., Any]] = {
    "beam": search.beam,
    "greedy": search.greedy,
    "exact": search.exact,
    "support": search.support,
    "sample": search.sample,
    "score": lambda *given: search.score(*given, [(3,), (3,)]),
    "complete": lambda *given: search.complete(*given, [(), ()]),
    "next_symbols": lambda *given: search.next_symbols(*given, [(), ()]),
}


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("length", [0, -1, 4])
def test_lengths_lie_within_the_source(name: str, length: int) -> None:
    source = torch.tensor([[3, 4, 3], [4, 3, 4]])
    with pytest.raises(ValueError, match=f"between 1 and 3, the columns of source, got {length}"):
        SEARCHES[name](TableStepper(random_rule(0)), source, torch.tensor([3, length]))
