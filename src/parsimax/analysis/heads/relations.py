"""General search: how much weight does a head put on the tokens that satisfy a predicate?

A relation says for each query and key of a sentence whether the key is one that is looked for.
A head's score is the weight on such keys, averaged over the queries that could see any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from parsimax._core.records import AttentionRecord

from .checking import Sentence
from .measuring import by_module
from .scores import HeadScores

TokenPredicate = Callable[[str], bool]
Relation = Callable[[AttentionRecord], Tensor]


class RelationMeasure:
    """Sums of the weight on a relation."""

    def __init__(self, module: str, relation: Relation) -> None:
        self.module, self._relation = module, relation
        self._mass: Tensor | None = None
        self._counts: Tensor | None = None
        self._uniform = 0.0
        self._queries = 0

    def add(self, sentence: Sentence) -> None:
        """Take one sentence in."""
        found = self._relation(sentence.record)
        if found.dtype != torch.bool or found.shape != sentence.allowed.shape:
            raise ValueError(
                f"relation: expected bool {tuple(sentence.allowed.shape)}, one row a query and "
                f"one column a key, got {found.dtype} {tuple(found.shape)}"
            )
        found = found & sentence.allowed
        rows = found.any(-1)
        mass = torch.einsum("lhqk,qk->lh", sentence.weights, found.double())
        counts = (sentence.live & rows).sum(-1)
        self._mass = mass if self._mass is None else self._mass + mass
        self._counts = counts if self._counts is None else self._counts + counts
        shares = found.sum(-1).double() / sentence.allowed.sum(-1).clamp(min=1)
        self._uniform += float(shares[rows].sum())
        self._queries += int(rows.sum())

    def result(self) -> HeadScores:
        """The scores so far."""
        assert self._mass is not None
        assert self._counts is not None
        return HeadScores(
            module=self.module,
            scores=self._mass / self._counts,  # 0 / 0 is NaN, which is what no query means
            queries=self._queries,
            uniform=self._uniform / self._queries if self._queries else math.nan,
        )


def token_relation(key: TokenPredicate, query: TokenPredicate | None = None) -> Relation:
    """The relation of tokens that satisfy ``key`` to queries that satisfy ``query``."""

    def relation(record: AttentionRecord) -> Tensor:
        keys = torch.tensor([bool(key(token)) for token in record.tokens], device="cpu")
        queries = torch.tensor(
            [query is None or bool(query(token)) for token in record.query_tokens], device="cpu"
        )
        return queries[:, None] & keys

    return relation


def search(
    records: Iterable[AttentionRecord],
    key: TokenPredicate | None = None,
    *,
    query: TokenPredicate | None = None,
    relation: Relation | None = None,
) -> dict[str, HeadScores]:
    """Mean weight of every head on the tokens that are looked for, by module.

    Args:
        records: of one model.
        key: True for tokens that are looked for.
        query: True for tokens whose attention counts; all by default.
        relation: instead of both, a function from a record to bool (Lq, Lk), for what depends on
            more than the tokens themselves.

    Which head looks at full stops, wherever it stands?

    >>> import torch
    >>> weights = torch.tensor([[[[0.0, 1.0], [0.0, 1.0]], [[1.0, 0.0], [0.5, 0.5]]]])
    >>> record = AttentionRecord(("yes", "."), weights, "encoder")
    >>> [(str(head), score) for head, score in search([record], ".".__eq__)["encoder"].ranking()]
    [('encoder, layer 1, head 1', 1.0), ('encoder, layer 1, head 2', 0.25)]
    """
    if (key is None) == (relation is None) or (relation is not None and query is not None):
        raise ValueError("search: expected either key, with or without query, or relation alone")
    chosen = relation if key is None else token_relation(key, query)
    assert chosen is not None
    return by_module(records, lambda module: RelationMeasure(module, chosen))
