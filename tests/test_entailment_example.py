"""The example on pairs of sentences: trains, tests, writes and draws, on pairs made up here."""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.viz.page import Page

FOLDER = Path(__file__).parents[1] / "experiments" / "structured-attention"
WORDS = ["a", "dog", "cat", "runs", "sleeps", "fast", "outside", "there", "is", "two"]


@pytest.fixture
def snli(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, found as Python finds it when it is run."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in ("snli", "pairs", "entailment"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import snli

    return snli


def write_pairs(path: Path, count: int) -> None:
    """Entailment if the hypothesis is the premise's beginning, contradiction if it is not."""
    rows = []
    for i in range(count):
        premise = [WORDS[(i * 3 + j * (1 + i % 3)) % 10] for j in range(3 + i % 5)]
        hypothesis = premise[:2] if i % 2 else [WORDS[(i + 5) % 10], WORDS[(i + 7) % 10]]
        label = "entailment" if i % 2 else "contradiction"
        rows.append(
            {"premise": " ".join(premise), "hypothesis": " ".join(hypothesis), "label": label}
        )
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def test_trains_writes_and_draws(snli, tmp_path, monkeypatch, capsys):
    write_pairs(tmp_path / "dev.jsonl.xz", 80)
    write_pairs(tmp_path / "test.jsonl.xz", 40)
    out = tmp_path / "out"
    command = f"snli.py --data {tmp_path} --out {out} --epochs 2 --pair 0 3"
    monkeypatch.setattr(sys, "argv", command.split())
    snli.main()
    assert capsys.readouterr().out.count("test accuracy") == 4
    result = json.loads((out / "snli.json").read_text(encoding="utf-8"))
    assert [run["attention"] for run in result["runs"]] == [
        "softmax",
        "matching",
        "monotone",
        "sequence",
    ]
    for run in result["runs"]:
        assert 0.0 <= run["test"]["accuracy"] <= 1.0
        assert run["test"]["converged"] == 1.0
        assert len(run["held_out"]) == 2
    dense, *sparse = result["runs"]
    assert dense["test"]["nonzero"] == 1.0
    assert all(run["test"]["nonzero"] < 1.0 for run in sparse)
    assert {"torch", "parsimax", "date", "processor"} <= set(result["machine"])
    page = Page((out / "figure-2.html").read_text(encoding="utf-8"))
    assert page.tags.count("svg") == 2 * 4


def test_held_out_premises_are_not_trained_on(snli, tmp_path):
    write_pairs(tmp_path / "dev.jsonl.xz", 60)
    pairs = snli.read_pairs(tmp_path / "dev.jsonl.xz")
    known, held = snli.split(pairs, 0.25)
    assert held
    assert len(known) + len(held) == len(pairs)
    assert not {p.premise for p in known} & {p.premise for p in held}


def test_batches_hold_every_pair_once(snli, tmp_path):
    write_pairs(tmp_path / "dev.jsonl.xz", 30)
    pairs = snli.read_pairs(tmp_path / "dev.jsonl.xz")
    words = snli.number_words(pairs, 1)
    names = {number: word for word, number in words.items()}

    def seen(generator) -> list[str]:
        found = []
        for batch in snli.batches(pairs, words, 8, generator):
            found += [
                " ".join(names[n] for n in row[mask].tolist())
                for row, mask in zip(batch.premise, batch.premise_mask, strict=True)
            ]
        return found

    everything = sorted(" ".join(pair.premise) for pair in pairs)
    import torch

    ordered, shuffled = seen(None), seen(torch.Generator().manual_seed(0))
    assert sorted(ordered) == sorted(shuffled) == everything
    assert ordered != shuffled


def test_a_folder_without_data_is_named(
    snli: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(sys, "argv", ["snli.py", "--data", str(tmp_path / "none")])
    with pytest.raises(SystemExit, match="2"):
        snli.main()
    said = capsys.readouterr().err
    assert "--data must be a folder" in said
    assert str(tmp_path / "none" / "dev.jsonl.xz") in said
