"""The benchmark of decoding: empty blocks are what was asked for, and wrong results are seen."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from parsimax.bench import decoding
from parsimax.bench import decoding_contenders as contenders
from parsimax.bench.decoding_contenders import BOUNDS, HEADS_BOUNDS, MINE, OURS, PAGES, Shape
from parsimax.cli import main


@pytest.mark.parametrize("shared", [2, 4])
@pytest.mark.parametrize("empty", [0.5, 0.9])
def test_scores_leave_the_share_of_blocks_empty(shared, empty):
    p = contenders.problem(Shape(1, 4, shared, 16000, 16, empty), torch.float32, "cpu")
    assert decoding.empty_share(p, 1.5) == pytest.approx(empty, abs=0.03)


def test_a_wrong_result_is_refused():
    shape = Shape(2, 4, 2, 300, 16, 0.0)
    p = contenders.problem(shape, torch.float32, "cpu")
    found = contenders.contenders(shape, p, "cpu")
    for name, attend in found.items():
        assert decoding.refuse(name, attend, p, "float32") is None, name
    assert "off by" in decoding.refuse(OURS, lambda p: found[OURS](p) * 1.01, p, "float32")
    assert "off by" in decoding.refuse(OURS, lambda p: found[OURS](p) * torch.nan, p, "float32")
    shuffled = replace(p, table=p.table.roll(1, 1))
    assert "off by" in decoding.refuse(PAGES, lambda _: found[PAGES](shuffled), p, "float32")
    assert "IndexError" in decoding.refuse(OURS, lambda p: p.q[9], p, "float32")


def test_the_command_writes_comparable_rows(tmp_path, capsys):
    out = tmp_path / "decoding.json"
    arguments = ["--device", "cpu", "--tokens", "256", "--empty", "0.5", "--repeats", "1"]
    assert main(["bench", "attention", "--decode", *arguments, "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert all(row["refused"] is None and row["ms"] > 0 for row in rows)
    there = {row["contender"] for row in rows}
    assert there > MINE - {BOUNDS, HEADS_BOUNDS}  # which are for GPUs
    assert not there & {BOUNDS, HEADS_BOUNDS}
    assert min(row["ratio"] for row in rows if row["contender"] not in MINE) == 1
    assert main(["bench", "attention", "--decode", "--causal"]) == 1
    assert "leave it out" in capsys.readouterr().err
