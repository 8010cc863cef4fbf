"""Shares of certificates; what is not claimed is not counted."""

from __future__ import annotations

import math

import pytest

from parsimax.seq2seq.metrics.certificates import certificates
from parsimax.seq2seq.search import Decoded, Hypothesis


def decoded(count: int, exhaustive: bool | None, optimal: bool | None) -> Decoded:
    hypotheses = tuple(Hypothesis((i,), -1.0 - i, -1.0 - i) for i in range(4, 4 + count))
    return Decoded(hypotheses, exhaustive, optimal, count, 0.5, -math.inf)


def test_shares() -> None:
    found = certificates(
        [
            decoded(1, True, True),
            decoded(3, True, True),
            decoded(1, False, True),  # one hypothesis, but others may exist: not single
            decoded(1, False, False),
            decoded(0, False, False),
        ]
    )
    assert found.single == 1 / 5
    assert found.exhaustive == 2 / 5
    assert found.optimal == 3 / 5
    assert found.empty == 1 / 5


def test_nothing_is_claimed_where_one_result_claims_nothing() -> None:
    found = certificates([decoded(1, True, True), decoded(1, None, None)])
    assert found.single is None
    assert found.exhaustive is None
    assert found.optimal is None


def test_no_results() -> None:
    with pytest.raises(ValueError, match="at least one"):
        certificates([])
