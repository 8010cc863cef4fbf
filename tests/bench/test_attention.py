"""The benchmark of attention: empty blocks are what was asked for, and wrong results are seen."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from parsimax.bench import attention, attention_contenders, attention_gate
from parsimax.bench.attention_contenders import DENSE, LEARNED, OURS, SPLASH_2, Shape
from parsimax.cli import main


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("empty", [0.0, 0.5, 0.9])
def test_scores_leave_the_share_of_blocks_empty(empty, causal):
    shape = Shape(1, 4, 4096, 64, causal, empty)
    p = attention_contenders.problem(shape, torch.float32, "cpu")
    assert attention_gate.empty_share(p) == pytest.approx(empty, abs=0.015)


def test_a_wrong_result_and_a_wrong_gradient_are_refused():
    shape = Shape(1, 2, 200, 32, True, 0.5)
    right = attention_contenders.contenders(shape, "cpu")[OURS]
    assert attention_gate.refuse(OURS, right, shape, "float32", "cpu") is None
    p = attention_contenders.problem(shape, torch.float32, "cpu")
    assert attention_gate.refuse_rows(OURS, right, p, "float32") is None

    def off(p):
        return right(p) * 1.01

    def without_keys(p):
        return right(
            attention_contenders.Problem(p.q, p.k.detach() + 0 * p.k, p.v, p.alpha, p.g, True)
        )

    assert "output" in attention_gate.refuse(OURS, off, shape, "float32", "cpu").why
    assert "whole" in attention_gate.refuse_rows(OURS, off, p, "float32").why
    assert "of k" in attention_gate.refuse(OURS, without_keys, shape, "float32", "cpu").why


def test_what_float32_cannot_know_is_not_held_against_it():
    """At alpha = 1.9 the last digits of scores decide about gradients."""
    shape = Shape(1, 4, 512, 64, False, 0.75)
    right = attention_contenders.contenders(shape, "cpu")[LEARNED]
    assert attention_gate.refuse(LEARNED, right, shape, "float32", "cpu") is None

    def off(p):
        return right(replace(p, q=p.q * (1 + 1e-4)))

    assert "off by" in attention_gate.refuse(LEARNED, off, shape, "float32", "cpu").why


def test_the_command_writes_comparable_rows(tmp_path, capsys):
    out = tmp_path / "attention.json"
    arguments = ["--device", "cpu", "--tokens", "128", "--empty", "0", "--repeats", "1"]
    assert main(["bench", "attention", *arguments, "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert {row["causal"] for row in rows} == {False, True}
    assert all(row["refused"] is None and row["ms"] > 0 for row in rows)
    assert all(row["ratio"] == 1 for row in rows if row["contender"] == attention_contenders.DENSE)
    assert main(["bench", "attention", "--empty", "1.5"]) == 1
    assert "from 0 to below 1" in capsys.readouterr().err
    assert attention.plan(device="cpu", causal=True).shapes[0].causal


def test_a_run_that_was_cut_short_goes_on(tmp_path, capsys, monkeypatch):
    out = tmp_path / "attention.json"
    rest = ["--device", "cpu", "--empty", "0", "--causal", "--repeats", "1", "--out", str(out)]
    again = ["bench", "attention", "--tokens", "128", "96", *rest, "--resume"]
    assert main(["bench", "attention", "--tokens", "128", *rest]) == 0
    first = json.loads(out.read_text())["rows"]
    own, measured = attention.measure, []
    monkeypatch.setattr(attention, "measure", lambda s, *a: measured.append(s.tokens) or own(s, *a))
    assert main(again) == 0
    assert measured == [96]
    stored = json.loads(out.read_text())
    assert stored["rows"][: len(first)] == first
    assert {row["tokens"] for row in stored["rows"]} == {96, 128}
    capsys.readouterr()
    out.write_text(json.dumps(stored | {"code": "another"}))
    assert main(again) == 1
    assert "measured with code another, and here it is" in capsys.readouterr().err
    out.write_text(json.dumps(stored))
    assert main([*again, "--dtype", "float64"]) == 1
    assert "with dtype float32" in capsys.readouterr().err
    out.write_text("[]")
    assert main(again) == 1
    assert "holds no results" in capsys.readouterr().err
    assert main(["bench", "attention", "--device", "cpu", "--resume"]) == 1
    assert "names no file" in capsys.readouterr().err
    assert measured == [96]


def test_who_tries_out_tiles_does_so_on_fewer_heads(monkeypatch):
    seen = []
    shape = Shape(1, 8, 128, 16, True, 0.0)
    right = attention_contenders.contenders(shape, "cpu")

    def attend(p):
        seen.append(p.q.shape[1])
        return right[OURS](p)

    found = {name: attend if name == SPLASH_2 else right[DENSE] for name in (DENSE, SPLASH_2)}
    monkeypatch.setattr(attention_contenders, "contenders", lambda *_: found)
    monkeypatch.setattr(attention_contenders, "_FILLING", 256)
    rows = attention.measure(shape, attention.Plan("cpu", "float32", [shape], (), 1))
    assert [row.contender for row in rows if row.ms] == [DENSE, SPLASH_2]
    assert 8 in seen
    assert seen.index(2) < seen.index(8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "0"], "tokens: expected at least 1, got 0"),
        (["--sizes", "-1"], "sizes: expected at least 1, got -1"),
        (["--sizes", "8"], "sizes: blocks are made empty by 16 numbers of a head, got 8"),
        (
            ["--only", "nosuch"],
            "only: nobody has nosuch in the name; there are torch: softmax",
        ),
        (["--decode", "--only", "x y"], "only: nobody has x y in the name; there are torch: soft"),
    ],
)
def test_arguments_that_cannot_be_are_refused_by_name(arguments, message, capsys):
    assert main(["bench", "attention", "--device", "cpu", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_gradients_that_are_nothing_are_not_off():
    """Of one key, there is none in queries and keys."""
    shape = Shape(4, 2, 1, 32, True, 0.0)
    ours = attention_contenders.contenders(shape, "cpu")[OURS]
    assert attention_gate.refuse(OURS, ours, shape, "float32", "cpu") is None

    def off(p):
        return ours(p) + 0.1 * p.q.sum(-1, keepdim=True)

    assert "off by" in attention_gate.refuse(OURS, off, shape, "float32", "cpu").why
