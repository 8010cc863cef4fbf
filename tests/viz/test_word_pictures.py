"""What the report shows of a word is what the model says of it."""

from __future__ import annotations

import pytest
import torch
from tests.cli.runs import make_run

from parsimax.seq2seq import evaluation, search
from parsimax.seq2seq import run as trained
from parsimax.seq2seq.data.batching import pad
from parsimax.seq2seq.data.readers import Example
from parsimax.seq2seq.data.symbols import EOS
from parsimax.viz.word_pictures import mistakes, word_picture

DRAW = Example("draw", "drew", ("V", "PST"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> trained.Run:
    return trained.load(make_run(tmp_path_factory.mktemp("runs") / "a"))


def test_word_picture(run: trained.Run) -> None:
    picture = word_picture(
        run.model, run.codec, DRAW, asked="past", origin="seen", grid=True, steps=True, limit=20
    )
    batch = pad([run.codec.encode_source(DRAW)])
    (found,) = search.support(run.model, batch.source, batch.source_lengths, limit=20)
    assert [leaf.probability for leaf in picture.leaves] == pytest.approx(
        [h.probability for h in found.sequences]
    )
    assert picture.complete is found.complete
    assert picture.gold == tuple("drew")
    best = found.sequences[0]
    assert picture.target == run.codec.target_symbols([*best.symbols, EOS])
    assert picture.weights is not None
    assert len(picture.weights) == len(picture.target) == len(picture.steps)
    with torch.no_grad():
        target = [*best.symbols, EOS]
        weights = run.model.attention(pad([run.codec.encode_source(DRAW)], [target]))["context"]
    torch.testing.assert_close(torch.tensor(picture.weights), weights[0, 0, 0])
    # The probabilities of the given symbols along the steps multiply to that of the word.
    product = 1.0
    for step, given in zip(picture.steps, picture.target, strict=True):
        assert step.given == given
        product *= dict(step.candidates)[given]
    assert product == pytest.approx(best.probability, rel=1e-4)


def test_mistakes_are_the_wrong_ones_with_the_gold_probability(run: trained.Run) -> None:
    examples = [DRAW, Example("go", "went", ("V", "PST"))]
    result = evaluation.evaluate(run.model, run.codec, examples, max_length=12)
    found = mistakes(run.model, run.codec, result.predictions, examples, {"V;PST": "past"})
    wrong = [p for p in result.predictions if not p.right]
    assert sorted(m.lemma for m in found) == sorted(p.source for p in wrong)
    assert [m.probability for m in found] == sorted((m.probability for m in found), reverse=True)
    assert {m.asked for m in found} == {"past"}
    for mistake in found:
        example = next(e for e in examples if e.source == mistake.lemma)
        batch = pad([run.codec.encode_source(example)])
        gold = run.codec.encode_target(example)
        (score,) = search.score(run.model, batch.source, batch.source_lengths, [gold])
        assert mistake.gold_probability == pytest.approx(score.probability, rel=1e-4)


def test_nothing_wrong(run: trained.Run) -> None:
    assert mistakes(run.model, run.codec, [], [], {}) == []


def test_the_models_mode_is_left_alone(run: trained.Run) -> None:
    assert not run.model.training
    word_picture(run.model, run.codec, DRAW, asked="past", origin="seen", limit=3)
    assert not run.model.training
