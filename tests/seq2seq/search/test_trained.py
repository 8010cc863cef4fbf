"""Searches of small trained models, in float32, against every sequence up to a length.

The models are small enough for all 5461 sequences of up to six letters to be scored at once, under
teacher forcing: without steps, and so without caches.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from parsimax.seq2seq.data.batch import Batch
from parsimax.seq2seq.models import RNNSettings, Seq2Seq, TransformerSettings, build
from parsimax.seq2seq.search import (
    Ensemble,
    beam,
    complete,
    exact,
    greedy,
    sample,
    score,
    support,
)

EOS = 2
LETTERS = (3, 4, 5, 6)
LONGEST = 6
SIZE = 7
OUTPUT = "entmax(alpha=1.5)"
SETTINGS = {
    "rnn": RNNSettings(
        embedding=12, hidden=24, encoder_layers=1, decoder_layers=1, output=OUTPUT, dropout=0.0
    ),
    "transformer": TransformerSettings(
        dim=24,
        heads=2,
        encoder_layers=1,
        decoder_layers=1,
        feedforward=48,
        output=OUTPUT,
        dropout=0.0,
    ),
}
Model = Seq2Seq[Any]


def sentences(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 6, (count,), generator=generator)
    source = torch.randint(3, SIZE, (count, 5), generator=generator)
    return source * (torch.arange(5) < lengths[:, None]), lengths


def targets_of(source: Tensor, lengths: Tensor, seed: int) -> list[list[int]]:
    """The source backwards, and one time in three its last symbol twice: truly ambiguous."""
    twice = torch.rand(len(source), generator=torch.Generator().manual_seed(seed)) < 1 / 3
    rows = [row[:n][::-1] for row, n in zip(source.tolist(), lengths.tolist(), strict=True)]
    return [[*row, row[-1]] if two else row for row, two in zip(rows, twice.tolist(), strict=True)]


def trained(kind: str, seed: int, steps: int) -> Model:
    torch.manual_seed(seed)
    model = build(SETTINGS[kind], SIZE, SIZE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(steps):
        source, lengths = sentences(32, seed * 1000 + step)
        said = [[*t, EOS] for t in targets_of(source, lengths, step)]
        target = torch.tensor([[*t, *[0] * (LONGEST + 1 - len(t))] for t in said])
        loss = model(Batch(source, lengths, target, torch.arange(32))) / 32
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="module", params=["rnn", "transformer"])
def model(request: pytest.FixtureRequest) -> Model:
    return trained(request.param, 0, steps={"rnn": 120, "transformer": 250}[request.param])


@pytest.fixture(scope="module")
def batch() -> tuple[Tensor, Tensor]:
    return sentences(64, 7)


EVERY = [s for n in range(LONGEST + 1) for s in itertools.product(LETTERS, repeat=n)]


def brute_force(model: Model, source: Tensor, length: Tensor) -> dict[tuple[int, ...], float]:
    """Probabilities of all sequences up to LONGEST letters, each in full, in one large batch."""
    target = torch.tensor([[*s, EOS, *[0] * (LONGEST - len(s))] for s in EVERY])
    size = int(length)
    inputs = source[:size].expand(len(EVERY), size), length.expand(len(EVERY))
    with torch.no_grad():
        hidden = model._unroll(Batch(*inputs, target, torch.arange(len(EVERY))))
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        table = model.output.probabilities(hidden.flatten(0, 1)).double()
    here = table.gather(1, target.flatten()[:, None]).reshape(target.shape)
    p = here.masked_fill(target == 0, 1.0).prod(1)
    return {s: v for s, v in zip(EVERY, p.tolist(), strict=True) if v > 0}


def test_exact_support_and_certified_beams_agree_with_all_sequences(
    model: Model, batch: tuple[Tensor, Tensor]
) -> None:
    source, lengths = (x[:8] for x in batch)
    options = {"max_length": LONGEST}
    all_ = support(model, source, lengths, limit=len(EVERY), **options)
    best = exact(model, source, lengths, **options)
    beams = {size: beam(model, source, lengths, size, 5, **options) for size in (1, 5, 60)}
    seen = {"exact": 0, "complete": 0, "exhaustive": 0, "optimal": 0}
    for i in range(len(source)):
        truth = brute_force(model, source[i], lengths[i])
        order = sorted(truth.values(), reverse=True)
        said = {h.symbols: h.probability for h in all_[i].sequences}
        for symbols in said.keys() | truth.keys():
            assert said.get(symbols, 0) == pytest.approx(truth.get(symbols, 0), abs=1e-6)
        if all_[i].complete:
            seen["complete"] += 1
            assert all_[i].covered == pytest.approx(1, abs=1e-5)  # seven steps of float32
        if best[i].proved:
            seen["exact"] += 1
            assert best[i].hypothesis is not None
            assert best[i].hypothesis.probability == pytest.approx(order[0], abs=1e-6)
        for results in beams.values():
            got = results[i]
            for h in got.hypotheses:
                assert h.probability == pytest.approx(truth.get(h.symbols, 0), abs=1e-6)
            if got.exhaustive:
                seen["exhaustive"] += 1
                # A support may differ with the batch, where hardly anything is at stake.
                tiny = sum(p < 1e-6 for p in said.values())
                assert abs(got.finished - len(said)) <= tiny
            if got.optimal:
                seen["optimal"] += 1
                assert got.hypotheses[0].probability == pytest.approx(order[0], abs=1e-6)
    assert min(seen.values()) >= 3, seen  # the claims above were made, not only possible


def test_one_sentence_or_sixty_four_padded_or_not(
    model: Model, batch: tuple[Tensor, Tensor]
) -> None:
    source, lengths = batch
    together = beam(model, source, lengths, 5, 3, max_length=10)
    drawn = sample(model, source, lengths, 2)
    next_ = complete(model, source, lengths, [()] * 64)
    differ = 0
    for i, n in enumerate(lengths.tolist()):
        short = source[i : i + 1, :n], lengths[i : i + 1]
        (alone,) = beam(model, *short, 5, 3, max_length=10)
        for one, other in zip(alone.hypotheses, together[i].hypotheses, strict=False):
            assert one.probability == pytest.approx(other.probability, abs=1e-5)
        differ += [h.symbols for h in alone.hypotheses] != [
            h.symbols for h in together[i].hypotheses
        ]
        assert sample(model, *short, 2, index=[i])[0][0].symbols == drawn[i][0].symbols
        (after,) = complete(model, *short, [()])
        large = [s.symbol for s in after.next if s.probability >= 1e-6]
        assert large == [s.symbol for s in next_[i].next if s.probability >= 1e-6]
    assert differ == 0


def test_an_uncertified_greedy_result_that_exact_search_beats() -> None:
    """A half-trained model is unsure at the first symbol, and greedy search then pays for it."""
    model = trained("rnn", 1, steps=40)
    source, lengths = sentences(64, 3)
    first = greedy(model, source, lengths, max_length=LONGEST)
    best = exact(model, source, lengths, max_length=LONGEST, beam_size=1)
    beaten = [
        i
        for i, (one, other) in enumerate(zip(first, best, strict=True))
        if one.finished and other.hypothesis and one.hypotheses[0] != other.hypothesis
    ]
    assert beaten
    for i in beaten:
        assert not first[i].optimal
        worse, better = first[i].hypotheses[0], best[i].hypothesis
        assert better is not None
        assert better.log_probability > worse.log_probability
        truth = brute_force(model, source[i], lengths[i])
        assert truth[better.symbols] == pytest.approx(better.probability, abs=1e-6)
        assert truth[worse.symbols] == pytest.approx(worse.probability, abs=1e-6)
        if best[i].proved:
            assert better.probability == pytest.approx(max(truth.values()), abs=1e-6)


def test_an_ensemble_of_models_and_its_scores(model: Model) -> None:
    models = [model, trained("rnn", 2, steps=60)]
    source, lengths = sentences(16, 5)
    ensemble = Ensemble(models)
    found = beam(ensemble, source, lengths, 5, max_length=LONGEST)
    symbols = [d.hypotheses[0].symbols for d in found]
    again = score(ensemble, source, lengths, symbols, finished=True)
    for d, scored in zip(found, again, strict=True):
        if d.hypotheses[0].finished:
            assert scored.log_probability == pytest.approx(
                d.hypotheses[0].log_probability, abs=1e-5
            )
    # Of one symbol after another it is the mean of the members' probabilities.
    members = [score(m, source, lengths, symbols) for m in models]
    for mean, *each in zip(again, *members, strict=True):
        assert mean.probabilities == pytest.approx(
            [math.fsum(p) / 2 for p in zip(*(e.probabilities for e in each), strict=True)], abs=1e-6
        )
