"""Merging, interrogation and the general search, on sentences whose answers are known."""

from __future__ import annotations

import math

import pytest
import torch
from tests.analysis.heads.made import looks_at, record, uniform

from parsimax._core.records import AttentionRecord
from parsimax.analysis.heads import Head, interrogation, merging, search

PIECES = ("▁rules", "▁bal", "lo", "ons", ".")


def test_the_score_of_a_word_is_the_largest_weight_on_its_other_pieces() -> None:
    weights = torch.tensor(
        [
            [0.9, 0.1, 0.0, 0.0, 0.0],  # rules: alone, so its weight on itself
            [0.0, 0.5, 0.3, 0.1, 0.1],  # bal: 0.4 on its other pieces
            [0.2, 0.6, 0.1, 0.1, 0.0],  # lo: 0.7, the largest
            [1.0, 0.0, 0.0, 0.0, 0.0],
            [0.5, 0.0, 0.0, 0.0, 0.5],  # the full stop is alone
        ]
    )
    found = merging([record(weights, looks_at(0, 5), tokens=PIECES)])["encoder"]
    assert found.score[0].tolist() == pytest.approx([(0.9 + 0.7 + 0.5) / 3, 2 / 3])
    assert found.score_split[0].tolist() == pytest.approx([0.7, 0.0])
    assert found.within[0].tolist() == pytest.approx([(0.9 + 0.9 + 0.8 + 0 + 0.5) / 5, 1.0])
    assert (found.words, found.split) == (3, 1)
    assert found.ranking_split(1)[0][0] == Head("encoder", 0, 0)


def test_a_head_that_merges_all_words_scores_one() -> None:
    weights = looks_at(0, 5)
    weights[1:4] = 0.0
    weights[1, 2] = weights[2, 3] = weights[3, 1] = 1.0
    found = merging([record(weights, uniform(5), tokens=PIECES)])["encoder"]
    assert found.score[0].tolist() == pytest.approx([1.0, (0.2 + 0.4 + 0.2) / 3], abs=1e-7)
    assert found.ranking(1) == [(Head("encoder", 0, 0), 1.0)]


def test_texts_without_pieces_have_no_score_of_split_words() -> None:
    found = merging([record(uniform(2), tokens=("a", "b"))])["encoder"]
    assert found.score.item() == pytest.approx(0.5)
    assert math.isnan(found.score_split.item())
    assert found.ranking_split() == []
    special = merging([record(uniform(1), tokens=("<eos>",))])["encoder"]
    assert math.isnan(special.score.item())


ASKS = ("▁And", "▁what", "▁is", "▁wh", "y", "?")
SAYS = ("▁I", "▁know", "▁what", "▁is", ".")


def to_mark(size: int, sure: float) -> torch.Tensor:
    """All look at the last token with this weight, and at the first with the rest."""
    weights = torch.zeros(size, size)
    weights[:, 0] = 1 - sure
    weights[:, -1] += sure
    return weights


def test_weight_from_interrogatives_to_the_question_mark() -> None:
    question = to_mark(6, 0.25)
    question[1] = torch.tensor([0.1, 0, 0, 0, 0, 0.9])  # what
    question[3] = torch.tensor([0.5, 0, 0, 0, 0, 0.5])  # wh
    question[4] = torch.tensor([0.3, 0, 0, 0, 0, 0.7])  # y
    records = [
        record(question, uniform(6), tokens=ASKS),
        record(to_mark(5, 0.4), uniform(5), tokens=SAYS),
    ]
    found = interrogation(records)["encoder"]
    assert found.questions.scores[0].tolist() == pytest.approx([0.7, 1 / 6], abs=1e-6)
    assert found.questions.queries == 3
    assert found.questions.uniform == pytest.approx(1 / 6)
    assert found.statements.scores[0].tolist() == pytest.approx([0.4, 0.2], abs=1e-6)
    assert found.statements.queries == 1
    assert found.ranking(1)[0][0] == Head("encoder", 0, 0)


def test_languages_and_own_words() -> None:
    made = record(to_mark(3, 1.0), tokens=("Was", "nun", "?"))
    assert interrogation([made], "de")["encoder"].questions.queries == 1
    assert interrogation([made], "en")["encoder"].questions.queries == 0
    assert interrogation([made], ["NUN"])["encoder"].questions.scores.item() == 1.0
    with pytest.raises(ValueError, match=r"language: expected one of en, de, .* got 'tlh'"):
        interrogation([made], "tlh")


def test_without_questions_there_is_no_score() -> None:
    found = interrogation([record(uniform(3), tokens=("a", "b", "."))])["encoder"]
    assert math.isnan(found.questions.scores.item())
    assert math.isnan(found.questions.uniform)
    assert found.ranking() == []


def test_a_decoder_sees_no_question_mark_ahead() -> None:
    made = record(uniform(6, causal=True), tokens=ASKS, module="decoder", causal=True)
    assert interrogation([made])["decoder"].questions.queries == 0


def test_search_by_tokens() -> None:
    weights = torch.tensor([[0.2, 0.8, 0.0], [0.0, 1.0, 0.0], [0.5, 0.25, 0.25]])
    made = record(weights, uniform(3), tokens=("the", "cat", "sat"))
    found = search([made], lambda token: token in {"cat", "sat"})["encoder"]
    assert found.scores[0].tolist() == pytest.approx([(0.8 + 1.0 + 0.5) / 3, 2 / 3], abs=1e-7)
    assert found.uniform == pytest.approx(2 / 3)
    only = search([made], "cat".__eq__, query="the".__eq__)["encoder"]
    assert only.scores[0].tolist() == pytest.approx([0.8, 1 / 3], abs=1e-7)
    assert only.queries == 1


def test_search_by_relation_agrees_with_a_loop() -> None:
    torch.manual_seed(0)
    weights = torch.softmax(torch.randn(2, 3, 4, 5, dtype=torch.float64), -1)
    made = AttentionRecord(tuple("abcde"), weights, "context", queries=tuple("vwxy"))
    wanted = torch.rand(4, 5) < 0.3
    wanted[1] = False
    found = search([made, made], relation=lambda _: wanted)["context"]
    rows = [q for q in range(4) if wanted[q].any()]
    for layer in range(2):
        for head in range(3):
            mass = [
                sum(weights[layer, head, q, k].item() for k in range(5) if wanted[q, k])
                for q in rows
            ]
            assert found.scores[layer, head].item() == pytest.approx(sum(mass) / len(mass))
    assert found.queries == 2 * len(rows)


def test_search_is_told_what_it_needs() -> None:
    made = record(uniform(2))
    with pytest.raises(ValueError, match=r"either key"):
        search([made])
    with pytest.raises(ValueError, match=r"either key"):
        search([made], bool, relation=lambda _: torch.ones(2, 2).bool())
    with pytest.raises(ValueError, match=r"relation: expected bool \(2, 2\)"):
        search([made], relation=lambda _: torch.ones(2, 2))
