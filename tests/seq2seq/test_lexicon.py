"""The English set: clean rows, split by lemma, the same every time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parsimax.seq2seq import lexicon


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> lexicon.Lexicon:
    return lexicon.build(tmp_path_factory.mktemp("lexicon"))


def read(path: Path) -> list[tuple[str, str, str]]:
    return [tuple(line.split("\t")) for line in path.read_text().splitlines()]  # type: ignore[misc]


def test_rows_are_clean(built: lexicon.Lexicon) -> None:
    seen = set()
    for side in (built.train, built.dev, built.test):
        for lemma, form, tags in read(side):
            assert re.fullmatch("[a-z]+", lemma)
            assert re.fullmatch("[a-z]+", form)
            assert tags in lexicon.TAGS
            assert (lemma, tags) not in seen  # one answer a question
            seen.add((lemma, tags))
    assert len(seen) > 20_000


def test_no_lemma_is_on_two_sides(built: lexicon.Lexicon) -> None:
    sides = {s: {row[0] for row in read(getattr(built, s))} for s in ("train", "dev", "test")}
    assert not sides["train"] & (sides["dev"] | sides["test"])
    assert not sides["dev"] & sides["test"]
    assert {side: len(lemmas) for side, lemmas in sides.items()} == built.lemmas
    total = sum(built.lemmas.values())
    # binomial with n of about 6,400: four standard deviations are below 0.015
    assert built.lemmas["test"] / total == pytest.approx(0.08, abs=0.015)
    assert built.lemmas["dev"] / total == pytest.approx(0.04, abs=0.015)


def test_verbs_that_the_documentation_names(built: lexicon.Lexicon) -> None:
    train, test = read(built.train), read(built.test)
    assert ("go", "went", lexicon.PAST) in train
    assert ("go", "gone", lexicon.PARTICIPLE) in train
    assert ("draw", "drawn", lexicon.PARTICIPLE) in test
    assert ("draw", "drew", lexicon.PAST) in test


@pytest.mark.parametrize(
    ("lemma", "forms"),
    [
        # From a grammar, not from the lexicon.
        ("walk", {"walked", "walking", "walks"}),
        ("stop", {"stopped", "stopping", "stops"}),
        ("try", {"tried", "trying", "tries"}),
        ("run", {"ran", "run", "running", "runs"}),
        ("write", {"wrote", "written", "writing", "writes"}),
        ("have", {"had", "having", "has"}),
        ("travel", {"travels"}),  # traveled or travelled: not asked
        ("learn", {"learning", "learns"}),  # learned or learnt
    ],
)
def test_known_verbs(lemma: str, forms: set[str]) -> None:
    assert {row.form for row in lexicon.verbs() if row.lemma == lemma} == forms


def test_the_same_files_for_the_same_seed(built: lexicon.Lexicon, tmp_path: Path) -> None:
    again = lexicon.build(tmp_path / "a")
    other = lexicon.build(tmp_path / "b", seed=1)
    assert again.test.read_bytes() == built.test.read_bytes()
    assert again.train.read_bytes() == built.train.read_bytes()
    assert other.test.read_bytes() != built.test.read_bytes()
    assert ("draw", "drawn", lexicon.PARTICIPLE) in read(other.test)


@pytest.mark.parametrize("name", ["dev", "test"])
def test_shares_are_shares(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{name}: expected a share between 0 and 0.5, got 20"):
        lexicon.build(tmp_path, **{name: 20})


def test_package_that_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lexicon, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'parsimax\[train\]'"):
        lexicon.build(tmp_path)
