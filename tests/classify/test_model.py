"""Attention, output and loss of a classifier, against loops over words in float64."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import parsimax as px
from parsimax.classify.config import (
    AttentionSettings,
    BiLSTMSettings,
    ModelSettings,
    TransformerSettings,
)
from parsimax.classify.model import Classifier
from parsimax.classify.pooling import Pooling

SIZE = 6
MASK = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0]], dtype=torch.bool)
MAPPINGS = ("softmax", "sparsemax", "sparsegen(lam=0.5)", "entmax(alpha=1.3)", "normmax(alpha=3)")


def states() -> Tensor:
    return torch.randn(*MASK.shape, SIZE, dtype=torch.float64)


def query_by_hand(pooling: Pooling, h: Tensor) -> Tensor | None:
    """Of one text without padding (L, H)."""
    if pooling.query == "none":
        return None
    if pooling.query == "learned":
        return pooling.vector
    if pooling.query == "mean":
        return sum(list(h)) / len(h)  # type: ignore[no-any-return]
    return torch.cat([h[-1, : SIZE // 2], h[0, SIZE // 2 :]])


def scores_by_hand(pooling: Pooling, h: Tensor) -> Tensor:
    query, found = query_by_hand(pooling, h), []
    for state in h:
        if pooling.kind == "dot":
            assert query is not None
            total = sum(a * b for a, b in zip(state.tolist(), query.tolist(), strict=True))
            found.append(torch.tensor(total / math.sqrt(SIZE), dtype=torch.float64))
            continue
        inner = pooling.additive.memory_proj.weight @ state + pooling.additive.memory_proj.bias
        if query is not None:
            inner = inner + pooling.additive.query_proj.weight @ query
        found.append(pooling.additive.score.weight[0] @ inner.tanh())
    return torch.stack(found)


CHOICES = [
    (kind, query)
    for kind, query in itertools.product(
        ("additive", "dot"), ("auto", "none", "learned", "final", "mean")
    )
    if (kind, query) != ("dot", "none")
]


@pytest.mark.parametrize(("kind", "query"), CHOICES)
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_attention_by_hand(kind, query, mapping: str) -> None:
    pooling = Pooling(AttentionSettings(kind, query, 5, mapping), SIZE).double()
    h = states() * 3
    weights = pooling(h, MASK)
    assert weights.shape == MASK.shape
    assert not weights[~MASK].any()
    torch.testing.assert_close(weights.sum(1), torch.ones(3, dtype=torch.float64))
    for row, mask in enumerate(MASK):
        expected = px.mappings.parse(mapping)(scores_by_hand(pooling, h[row, mask]))
        torch.testing.assert_close(weights[row, mask], expected, rtol=0, atol=1e-10)


def test_the_default_queries_are_those_of_jain_and_wallace() -> None:
    assert Pooling(AttentionSettings("additive"), SIZE).query == "none"
    assert Pooling(AttentionSettings("dot"), SIZE).query == "learned"


def test_uniform_attention_learns_nothing() -> None:
    pooling = Pooling(AttentionSettings("uniform"), SIZE)
    assert not list(pooling.parameters())
    expected = torch.tensor([[0.25] * 4, [1.0, 0, 0, 0], [0.5, 0.5, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(pooling(states(), MASK), expected)


@pytest.mark.parametrize(("kind", "query"), [*CHOICES, ("uniform", "auto")])
def test_a_text_of_nothing_has_no_attention(kind, query) -> None:
    pooling = Pooling(AttentionSettings(kind, query, 5), SIZE).double()
    weights = pooling(states(), torch.zeros_like(MASK))
    assert not weights.any()


ENCODERS = [BiLSTMSettings(hidden=3), TransformerSettings(dim=6, heads=2, feedforward=8)]


def make(encoder=ENCODERS[0], classes: int = 2, **settings) -> Classifier:
    return Classifier(ModelSettings(embedding=5, encoder=encoder, **settings), 20, classes)


TOKENS = torch.tensor([[3, 4, 5, 6], [7, 0, 0, 0], [8, 1, 0, 0]])


@pytest.mark.parametrize("encoder", ENCODERS, ids=lambda e: e.kind)
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("output", ["softmax", "sparsemax", "entmax(alpha=1.5)"])
def test_the_pieces_are_the_model(encoder, classes: int, output: str) -> None:
    model = make(encoder, classes, output=output, boundaries=True).eval()
    h = model.encode(model.embed(TOKENS), MASK)
    probabilities = model.decode(h, model.attend(h, MASK), MASK)
    assert torch.equal(probabilities, model.probabilities(TOKENS, MASK))
    assert probabilities.shape == (3, classes)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(3))


@torch.no_grad()
def test_two_classes_are_logistic_regression_on_the_context() -> None:
    model = make().double().eval()
    h = model.encode(model.embed(TOKENS), MASK)
    weights = model.attend(h, MASK)
    assert model.out.weight.shape == (1, 6)
    for row in range(3):
        context = sum(weights[row, i] * h[row, i] for i in range(4))
        odds = float(model.out.weight[0] @ context + model.out.bias[0])
        expected = torch.tensor([1 / (1 + math.exp(odds)), 1 / (1 + math.exp(-odds))]).double()
        found = model.decode(h, weights, MASK)[row]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_the_loss_is_cross_entropy_for_softmax() -> None:
    model, labels = make(classes=3), torch.tensor([0, 2, 1])
    scores, class_weights = torch.randn(3, 3), torch.tensor([0.5, 1.0, 2.0])
    torch.testing.assert_close(
        model.loss(scores, labels, class_weights),
        F.cross_entropy(scores, labels, class_weights, reduction="none"),
    )


@pytest.mark.parametrize("output", MAPPINGS)
def test_the_gradient_of_the_loss_is_probability_minus_target(output: str) -> None:
    model, labels = make(classes=3, output=output), torch.tensor([0, 2, 1])
    scores = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(model.loss(scores, labels).sum(), scores)
    expected = model.output(scores) - F.one_hot(labels, 3)
    torch.testing.assert_close(gradient, expected.detach(), rtol=0, atol=1e-10)


def test_dropout_is_for_training_only() -> None:
    model = make(dropout=0.5)
    first, second = (model.probabilities(TOKENS, MASK) for _ in range(2))
    assert not torch.equal(first, second)
    model.eval()
    first, second = (model.probabilities(TOKENS, MASK) for _ in range(2))
    assert torch.equal(first, second)


def test_vectors_are_what_the_embedding_begins_with() -> None:
    vectors = torch.randn(20, 7)
    model = Classifier(ModelSettings(encoder=ENCODERS[0]), 20, 2, vectors)
    assert torch.equal(model.embedding.weight[1:], vectors[1:])
    assert not model.embedding.weight[0].any()
    frozen = Classifier(ModelSettings(encoder=ENCODERS[0], freeze_embedding=True), 20, 2, vectors)
    assert not frozen.embedding.weight.requires_grad
    with pytest.raises(ValueError, match=r"vectors must have shape \(20, 5\).*got \(20, 7\)"):
        Classifier(ModelSettings(embedding=5), 20, 2, vectors)
    with pytest.raises(ValueError, match="classes must be at least 2, got 1"):
        Classifier(ModelSettings(), 20, 1)
