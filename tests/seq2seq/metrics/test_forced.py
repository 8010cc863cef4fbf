"""Sums under teacher forcing: by hand, and the model's own against step by step."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
import torch
from tests.seq2seq.scripted import Scripted

from parsimax.seq2seq.data.batch import Batch
from parsimax.seq2seq.data.symbols import EOS, PAD
from parsimax.seq2seq.metrics.forced import measure_steps, summarise
from parsimax.seq2seq.models import Measures, RNNSettings, build

A, B = 4, 5
SOURCE, ONE = torch.tensor([[A]]), torch.tensor([1])


def test_by_hand() -> None:
    """Gold "a EOS": P(a) = 0.75, P(EOS | a) = 0."""
    model = Scripted({(A,): {(A, B): 0.75, (B,): 0.25}}, 6)
    batch = Batch(
        torch.tensor([[A]]), torch.tensor([1]), torch.tensor([[A, EOS, PAD]]), torch.tensor([0])
    )
    eps = 0.01
    forced = summarise(measure_steps(model, batch, eps), epsilon=eps, vocabulary=6, one_model=False)
    assert forced.tokens == 2
    assert forced.accuracy == 0.5
    assert forced.zero_gold == 0.5
    assert forced.support == 1.5
    assert forced.vocabulary == 4  # EOS, UNK, a, b
    # p_gold + (1 - sum p^2) / 2: 0.75 + (1 - 0.625) / 2, and 0 + (1 - 1) / 2
    assert forced.sparsemax_score == pytest.approx((0.75 + 0.1875) / 2)
    logs = math.log(0.76 / 1.04) + math.log(0.01 / 1.04)  # 4 symbols get epsilon
    assert forced.epsilon_perplexity == pytest.approx(math.exp(-logs / 2))
    assert forced.loss is None
    assert forced.attended is None


def test_a_model_measures_what_its_steps_say() -> None:
    settings = RNNSettings(embedding=8, hidden=12, encoder_layers=1, decoder_layers=1, init=1.0)
    model = build(settings, 9, 9).eval()
    batch = Batch(
        torch.tensor([[4, 5, 6], [7, 8, PAD]]),
        torch.tensor([3, 2]),
        torch.tensor([[5, 6, 7, EOS], [4, EOS, PAD, PAD]]),
        torch.tensor([0, 1]),
    )
    with torch.no_grad():
        own, stepped = model.measure(batch), measure_steps(model, batch)
    unknown = {"loss", "attended", "attendable"}  # to someone who sees probabilities alone
    for name in {f.name for f in fields(Measures)} - unknown:
        # float32 probabilities, and logarithms of those near epsilon = 1e-6
        assert float(getattr(stepped, name)) == pytest.approx(
            float(getattr(own, name)), rel=1e-4, abs=1e-4
        ), name


def test_of_equals_one_is_the_most_probable() -> None:
    """Otherwise a uniform model would be right always, and an ensemble more often than a model."""
    model = Scripted({(A,): {(A,): 0.5, (B,): 0.5}}, 6)
    first, second = (
        measure_steps(model, Batch(SOURCE, ONE, torch.tensor([[gold, EOS]]), ONE))
        for gold in (A, B)
    )
    assert (first.correct, second.correct) == (2.0, 1.0)


def test_smoothed_probabilities_add_up_to_one() -> None:
    """Of all that can be said first: by the model's own measure and step by step."""
    settings = RNNSettings(embedding=8, hidden=12, encoder_layers=1, decoder_layers=1, init=1.0)
    model = build(settings, 9, 9).eval()
    sums = {"own": 0.0, "stepped": 0.0}
    for symbol in range(EOS, 9):
        batch = Batch(
            torch.tensor([[4, 5]]), torch.tensor([2]), torch.tensor([[symbol]]), torch.tensor([0])
        )
        with torch.no_grad():
            sums["own"] += math.exp(float(model.measure(batch, 0.1).log_smoothed))
            sums["stepped"] += math.exp(float(measure_steps(model, batch, 0.1).log_smoothed))
    assert sums == pytest.approx({"own": 1.0, "stepped": 1.0}, abs=1e-5)


def test_nothing_measured() -> None:
    with pytest.raises(ValueError, match="at least one target symbol"):
        summarise(Measures(), epsilon=1e-6, vocabulary=9)
