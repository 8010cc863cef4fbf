"""One pass gives what each measure gives alone, typical examples, and plain tables."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from tests.analysis.heads.made import looks_at, record, uniform

import parsimax as px
from parsimax._core.records import AttentionRecord
from parsimax.analysis import heads

SENTENCES = [
    ("▁rules", "▁for", "▁bal", "lo", "ons", "▁and", "▁ki", "tes"),
    ("▁what", "▁is", "▁th", "is", "?"),
    ("▁I", "▁know", "▁what", "▁this", "▁is", "."),
    ("▁yes",),
    ("▁bal", "loon", "▁ki", "te", "."),
]


def made() -> list[AttentionRecord]:
    torch.manual_seed(0)
    records = []
    for tokens in SENTENCES:
        size = len(tokens)
        sparse = px.sparsemax(2 * torch.randn(size, size))
        records.append(record(looks_at(-1, size), sparse, tokens=tokens))
        across = px.softmax(torch.randn(3, size))
        records.append(
            record(across, across, tokens=tokens, module="context", queries=("x", "y", "z"))
        )
        past = uniform(size, causal=True)
        records.append(record(past, past, tokens=tokens, module="decoder", causal=True))
    return records


@pytest.fixture(scope="module")
def report() -> heads.HeadReport:
    alphas = {"encoder": torch.tensor([[1.9, 1.5]])}
    lines = [{"step": s, "alphas": {"encoder": [[1.5 + s / 100, 1.5]]}} for s in (10, 40)]
    return heads.analyse(
        iter(made()), name="hand", alphas=alphas, trajectories=heads.trajectories(lines)
    )


def test_the_same_numbers_as_each_measure_alone(report: heads.HeadReport) -> None:
    assert list(report.modules) == ["encoder", "context", "decoder"]
    assert report.sentences == len(SENTENCES)
    encoder = report.modules["encoder"]
    assert torch.equal(encoder.density.density, heads.density(made())["encoder"].density)
    assert torch.equal(encoder.diversity.diversity, heads.diversity(made())["encoder"].diversity)
    assert encoder.positional is not None
    assert encoder.positional.at(-1)[0, 0] == 1.0
    assert encoder.merging is not None
    assert torch.equal(encoder.merging.score, heads.merging(made())["encoder"].score)
    assert encoder.interrogation is not None
    assert encoder.interrogation.questions.queries == 1
    context = report.modules["context"]
    assert (context.positional, context.merging, context.interrogation) == (None, None, None)
    assert context.alphas is None


def test_examples_are_of_the_right_heads(report: heads.HeadReport) -> None:
    kinds = {(each.head.module, each.kind): each for each in report.examples}
    before = kinds["encoder", "before"]
    assert before.head == heads.Head("encoder", 0, 0)
    assert before.score == before.mean == 1.0
    assert torch.equal(before.weights, looks_at(-1, len(before.tokens)))
    assert kinds["encoder", "question"].tokens == SENTENCES[1]
    assert kinds["encoder", "statement"].tokens == SENTENCES[2]
    assert kinds["encoder", "merging"].tokens in (SENTENCES[0], SENTENCES[4])
    dense, sparse = kinds["encoder", "denser"], kinds["encoder", "sparser"]
    assert dense.head == sparse.head
    assert dense.score > sparse.score
    assert abs(len(dense.tokens) - len(sparse.tokens)) <= 1
    density = report.modules["encoder"].density.density
    for each in (dense, sparse):
        assert each.mean == density[each.head.layer, each.head.head].item()
        assert each.score == pytest.approx((each.weights > 0).double().mean().item())
    assert ("decoder", "after") not in kinds  # a decoder sees nothing ahead


def test_rows_and_files(report: heads.HeadReport, tmp_path: Path) -> None:
    rows = heads.head_rows(report)
    assert len(rows) == 6
    first = rows[0]
    assert (first["model"], first["module"], first["layer"], first["head"]) == (
        "hand", "encoder", 1, 1,
    )  # fmt: skip
    assert first["alpha"] == pytest.approx(1.9)
    assert (first["best_offset"], first["best_confidence"]) == (-1, 1.0)
    assert rows[2]["alpha"] is None
    assert rows[2]["best_offset"] is None
    heads.write_csv(tmp_path / "h.csv", rows)
    with (tmp_path / "h.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert read[0]["best_confidence"] == "1.0"
    assert read[2]["best_offset"] == ""
    layers = heads.layer_rows(report)
    assert [row["module"] for row in layers] == ["encoder", "context", "decoder"]
    assert layers[1]["density"] == 1.0
    agreements = heads.agreement([made(), made()])
    heads.write_json(tmp_path / "h.json", [report, report], agreements)
    saved = json.loads((tmp_path / "h.json").read_text())
    assert saved["models"][0]["heads"][0]["confidence_before"] == 1.0
    assert saved["models"][0]["trajectories"]["encoder"]["steps"] == [10, 40]
    assert saved["models"][0]["modules"]["encoder"]["words"]["of_several_pieces"] == 5
    assert saved["agreement"][0]["matched"] == pytest.approx(1.0)
    with pytest.raises(ValueError, match="at least one, got none"):
        heads.write_csv(tmp_path / "none.csv", [])


def test_alphas_must_fit() -> None:
    with pytest.raises(ValueError, match=r"alphas of encoder: expected \(1, 2\), .* \(2, 2\)"):
        heads.analyse(made(), alphas={"encoder": torch.ones(2, 2)})
    with pytest.raises(ValueError, match=r"expected modules among encoder, .* got other"):
        heads.analyse(made(), alphas={"other": torch.ones(1, 2)})


def test_a_module_is_of_one_kind() -> None:
    mixed = [record(uniform(2)), record(uniform(2), queries=("a", "b"))]
    with pytest.raises(ValueError, match="module 'encoder': expected self-attention or"):
        heads.analyse(mixed)


def test_one_head_one_token_one_sentence() -> None:
    report = heads.analyse([record(torch.ones(1, 1))])
    assert report.examples == ()
    row = heads.head_rows(report)[0]
    assert row["density"] == 1.0
    assert row["confidence_before"] is None
    assert heads.layer_rows(report)[0]["diversity"] is None
    json.dumps(heads.to_dict([report]), allow_nan=False)
