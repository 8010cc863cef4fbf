"""The benchmark of the linear layer's loss: checked first, then timed and weighed."""

import json
import sys

import pytest
import torch
from torch.nn import functional as F

import parsimax as px
from parsimax.bench import loss


def test_results_are_stored_with_sizes_and_machine(tmp_path, capsys):
    out = tmp_path / "new" / "loss.json"
    status = loss.main(tokens=9, hidden=4, words=30, alphas=[1.5], repeats=1, out=out)
    assert status == 0
    stored = json.loads(out.read_text(encoding="utf-8"))
    assert {"date", "processor", "torch", "parsimax"} <= stored.keys()
    assert (stored["tokens"], stored["hidden"], stored["words"]) == (9, 4, 30)
    assert [row["contender"] for row in stored["rows"]] == [loss.OURS, loss.PLAIN, loss.PEER]
    assert all(row["ms"] > 0 for row in stored["rows"])
    if sys.platform.startswith("linux"):
        assert all(row["peak_mib"] is not None for row in stored["rows"])
    assert "forward and backward" in capsys.readouterr().out


def test_memory_that_cannot_be_measured_is_not_claimed(monkeypatch):
    monkeypatch.setattr(loss.sys, "platform", "darwin")
    assert loss.peak(loss.OURS, (4, 2, 5), 1.5) is None
    row = loss.Row(1.5, loss.OURS, None, 1.0, 1.0, None, None)
    cells = [next(iter(column.cells)) for column in loss.table([row], (4, 2, 5)).columns]
    assert "not measured" in cells


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda h, w, t: F.cross_entropy(F.linear(h, w), t), "off by"),
        (lambda h, w, t: px.entmax_loss(F.linear(h, w.detach() + 0 * w), t), "gradient off by"),
    ],
)
def test_a_wrong_loss_is_refused(wrong, words, monkeypatch, capsys):
    right = loss.contenders(1.5)
    monkeypatch.setattr(loss, "contenders", lambda alpha: {**right, loss.OURS: wrong})
    monkeypatch.setattr(loss, "peak", lambda *_: None)
    assert loss.refuse(wrong, loss.layer(9, 4, 30), 1.5).startswith(words)
    assert loss.refuse(right[loss.OURS], loss.layer(9, 4, 30), 1.5) is None
    rows = loss.measure((9, 4, 30), 1.5, 1)
    assert [row.refused is None for row in rows] == [False, True, True]
    assert rows[0].ms is None
    assert loss.main(tokens=9, hidden=4, words=30, alphas=[1.5], repeats=1, out=None) == 1
    assert "not timed" in capsys.readouterr().out


def test_alpha_one_is_checked_against_cross_entropy():
    inputs = loss.layer(200, 4, 30)
    assert loss.refuse(loss.contenders(1.0)[loss.OURS], inputs, 1.0) is None
    assert torch.equal(inputs[0], loss.layer(200, 4, 30)[0])
