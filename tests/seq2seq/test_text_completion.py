"""Text that is being typed, against all that a hand-made model can say."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.seq2seq.scripted import Scripted

from parsimax.seq2seq.data import bpe
from parsimax.seq2seq.data.segmentation import Characters, Segmentation, Words
from parsimax.seq2seq.data.symbols import NAMES
from parsimax.seq2seq.data.textcodec import TextCodec
from parsimax.seq2seq.data.vocabulary import Vocabulary
from parsimax.seq2seq.text_completion import TextCompleter

PIECES = ("▁", "▁m", "▁ma", "▁mat", "▁man", "▁the", "a", "m", "n", "t", "at", "an", "the", "h", "e")
SOURCE = (5,)


def make(kind: Segmentation, symbols: tuple[str, ...]) -> TextCodec:
    pair = (kind, Vocabulary([*NAMES, *symbols]))
    return TextCodec("tsv", pair, pair)


def learned() -> Segmentation:
    return bpe.learn(["the man on the mat", "that mat", "the mat"] * 3, 60)


CODECS = {
    "bpe": make(learned(), PIECES),
    "characters": make(Characters(), ("m", "a", "t", "n", "<space>")),
    "words": make(Words(), ("mat", "ma", "man", "the", "m", "t")),
}


def completer(
    codec: TextCodec, script: dict[tuple[str, ...], float], top: int | None = None
) -> TextCompleter:
    numbers = {
        tuple(codec.target_vocabulary.index(s) for s in said): p for said, p in script.items()
    }
    model = Scripted({SOURCE: numbers}, len(codec.target_vocabulary))
    return TextCompleter(model, codec, top=top)


def test_a_text_that_ends_inside_a_piece() -> None:
    """The model says ▁mat alone: that ma is impossible was false."""
    whole = completer(CODECS["bpe"], {("▁the", "▁mat"): 1.0})
    for typed, rest in (("the ma", "t"), ("the m", "at"), ("the ", "mat"), ("t", "he mat")):
        found = whole.complete(SOURCE, typed)
        assert found.possible
        assert found.forced_text == rest
        assert found.ended
    assert whole.complete(SOURCE, "the man").possible is False
    assert whole.complete(SOURCE, "the mat ").possible is False  # the output ends there


def test_ways_to_cut_add_up() -> None:
    script = {("▁mat",): 0.5, ("▁ma", "t"): 0.125, ("▁ma", "n"): 0.25, ("▁the",): 0.125}
    found = completer(CODECS["bpe"], script).complete(SOURCE, "ma")
    assert [(n.token, n.text) for n in found.next] == [("t", "t"), ("n", "n")]
    assert [n.probability for n in found.next] == pytest.approx([0.625 / 0.875, 0.25 / 0.875])
    assert math.exp(found.log_probability) == pytest.approx(0.875)
    after = completer(CODECS["bpe"], script).complete(SOURCE, "mat")
    assert after.ended
    assert [n.token for n in after.next] == ["<eos>"]
    assert after.next[0].probability == pytest.approx(1)


def test_a_word_is_open_until_a_space_ends_it() -> None:
    model = completer(CODECS["words"], {("ma", "t"): 0.5, ("mat",): 0.25, ("man",): 0.25})
    found = model.complete(SOURCE, "ma")
    assert {(n.text, n.token): n.probability for n in found.next} == pytest.approx(
        {(" t", "t"): 0.5, ("t", "t"): 0.25, ("n", "n"): 0.25}
    )
    assert model.complete(SOURCE, "ma ").forced_text == "t"
    assert model.complete(SOURCE, "mat ").possible is False
    assert model.complete(SOURCE, "th").possible is False  # a beginning of a word that is known
    with pytest.raises(ValueError, match="got 'zoo'"):
        model.complete(SOURCE, "ma zoo")
    with pytest.raises(ValueError, match="got 'mm'"):
        model.complete(SOURCE, "mm")


def test_what_the_vocabulary_cannot_spell() -> None:
    with pytest.raises(ValueError, match="got 'W'"):
        completer(CODECS["bpe"], {("▁mat",): 1.0}).complete(SOURCE, "maWt")


def test_top_lists_fewer_of_the_same() -> None:
    script = {("▁mat",): 0.5, ("▁ma", "t"): 0.125, ("▁ma", "n"): 0.25, ("▁the",): 0.125}
    every = completer(CODECS["bpe"], script).complete(SOURCE, "ma")
    assert completer(CODECS["bpe"], script, top=1).complete(SOURCE, "ma").next == every.next[:1]


def test_of_too_many_ways_the_most_probable_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parsimax.seq2seq.text_completion._WIDTH", 1)
    script = {("▁mat",): 0.25, ("▁ma", "t"): 0.75}
    found = completer(CODECS["bpe"], script).complete(SOURCE, "mat")
    assert found.possible
    assert not found.exhaustive


@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(sorted(CODECS)), data=st.data())
def test_against_everything_that_the_model_can_say(kind: str, data: st.DataObject) -> None:
    codec = CODECS[kind]
    symbols = st.sampled_from(sorted(codec.target_vocabulary.of_text))
    said = data.draw(
        st.lists(st.lists(symbols, min_size=1, max_size=4).map(tuple), min_size=1, max_size=6,
                 unique=True)
    )  # fmt: skip
    weights = [data.draw(st.integers(1, 8)) for _ in said]
    script = {s: w / sum(weights) for s, w in zip(said, weights, strict=True)}
    outputs = [(codec.target_segmentation.join(s), p) for s, p in script.items()]
    text = data.draw(st.sampled_from([t[:k] for t, _ in outputs for k in range(len(t) + 1)]))
    if kind != "words" and data.draw(st.booleans()):
        text += data.draw(st.sampled_from(["m", "a ", "t", " "]))
    found = completer(codec, script).complete(SOURCE, text)
    rests = [(t[len(text) :], p) for t, p in outputs if t.startswith(text)]
    mass = sum(p for _, p in rests)
    assert found.exhaustive
    assert found.possible == bool(rests)
    if not rests:
        return
    # a text that is followed by pieces that add nothing does not occur: mass is exact
    assert math.exp(found.log_probability) == pytest.approx(mass)
    assert sum(n.probability for n in found.next) == pytest.approx(1)
    assert all(rest.startswith(found.forced_text) for rest, _ in rests)
    assert found.ended <= all(rest == found.forced_text for rest, _ in rests)
    for n in found.next:
        possible = sum(p for rest, p in rests if rest.startswith(n.text)) / mass
        assert 0 < n.probability <= possible + 1e-6
