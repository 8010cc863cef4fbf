"""The benchmark of the linear layer's loss: checked first, then timed and weighed."""

import json
import sys

import pytest
import torch
from torch.nn import functional as F

import parsimax as px
from parsimax.bench import loss, loss_contenders, loss_gate, memory
from parsimax.bench.loss_contenders import Sizes, layer, on_layer, on_logits

_SMALL = {"device": "cpu", "tokens": 9, "hidden": 4, "words": [30], "alphas": [1.5], "repeats": 1}


def test_results_are_stored_with_sizes_and_machine(tmp_path, capsys):
    out = tmp_path / "new" / "loss.json"
    assert loss.main(loss.plan(**_SMALL), out) == 0
    stored = json.loads(out.read_text(encoding="utf-8"))
    assert {"date", "processor", "torch", "parsimax"} <= stored.keys()
    assert (stored["tokens"], stored["hidden"]) == (9, 4)
    assert [row["words"] for row in stored["rows"]] == [30] * 3
    assert [row["contender"] for row in stored["rows"]] == [loss.OURS, loss.PLAIN, loss.PEER]
    assert all(row["ms"] > 0 for row in stored["rows"])
    assert 1 <= stored["rows"][0]["support"] < 30
    if sys.platform.startswith("linux"):
        assert all(row["peak_mib"] is not None for row in stored["rows"])
    assert "forward and backward" in capsys.readouterr().out


def test_memory_that_cannot_be_measured_is_not_claimed(monkeypatch):
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    assert memory.cpu_peak(loss.OURS, Sizes(4, 2, 5), 1.5, 1.0, "float32") is None
    row = loss.Row("linear", "float32", 5, 1.0, 1.5, loss.OURS, loss.PLAIN, ms=1.0)
    cells = [next(iter(column.cells)) for column in loss.table([row], loss.Plan()).columns]
    assert "not measured" in cells


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda x: F.cross_entropy(F.linear(x.hidden, x.weight), x.target), "off by"),
        (
            lambda x: px.entmax_loss(
                F.linear(x.hidden, x.weight.detach() + 0 * x.weight), x.target
            ),
            "gradient off by",
        ),
        (lambda x: x.nothing, "AttributeError"),
    ],
)
def test_a_wrong_loss_is_refused(wrong, words, monkeypatch, capsys):
    right = on_layer(1.5)
    small = layer(Sizes(9, 4, 30))
    want = loss_gate.exact(small, 1.5)
    assert loss_gate.refuse(wrong, small, want).startswith(words)
    assert loss_gate.refuse(right[loss.OURS], small, want) is None
    changed = {**right, loss.OURS: wrong}
    monkeypatch.setattr(loss_contenders, "on_layer", lambda *_, **__: changed)
    monkeypatch.setattr(memory, "cpu_peak", lambda *_: None)
    rows = loss.measure(30, 1.0, loss.plan(**_SMALL))
    assert [row.refused is None for row in rows] == [False, True, True]
    assert rows[0].ms is None
    assert loss.main(loss.plan(**_SMALL)) == 1
    assert "not timed" in capsys.readouterr().out


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0])
@pytest.mark.parametrize("rounded", [False, True])
def test_the_reference_is_the_loss_in_float64(alpha, rounded, monkeypatch):
    monkeypatch.setattr(loss_gate, "_CHUNK", 30 * 7)  # several chunks, the last one shorter
    small = layer(Sizes(40, 8, 30), 2.0, torch.bfloat16)
    want = loss_gate.exact(small, alpha, rounded=rounded)
    hidden, weight = (x.detach().double().requires_grad_() for x in small.leaves)
    z = F.linear(hidden, weight)
    if rounded:
        z = z + (small.logits().z.double() - z).detach()
    z.retain_grad()
    value = (
        F.cross_entropy(z, small.target) if alpha == 1 else px.entmax_loss(z, small.target, alpha)
    )
    value.backward()
    assert want.loss == pytest.approx(value.item(), rel=1e-12)
    torch.testing.assert_close(want.hidden_grad, hidden.grad)
    torch.testing.assert_close(want.weight_grad, weight.grad)
    torch.testing.assert_close(want.logits_grad, z.grad[want.rows])
    assert want.support == pytest.approx(float((px.entmax(z, alpha) > 0).sum()) / 40)


def test_alpha_one_is_checked_against_cross_entropy():
    inputs = layer(Sizes(200, 4, 30))
    want = loss_gate.exact(inputs, 1.0)
    for name in (loss.OURS, loss.PEER):
        assert loss_gate.refuse(on_layer(1.0)[name], inputs, want) is None
    assert torch.equal(inputs.hidden, layer(Sizes(200, 4, 30)).hidden)


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_losses_of_logits_and_peers_pass_the_gate(alpha):
    inputs = layer(Sizes(50, 8, 40))
    want = loss_gate.exact(inputs, alpha)
    losses = on_logits(alpha)
    assert list(losses)[:2] == [loss.OURS_ON_LOGITS, loss.PEER_ON_LOGITS]
    assert len(losses) == 3  # and the entmax package
    for name in (name for name in losses if name != loss.PEER_ON_LOGITS):
        assert loss_gate.refuse(losses[name], inputs.logits(), want) is None, name
    peers = on_layer(alpha, peers=True, half=True)
    assert len(peers) == 5
    for name in list(peers)[3:]:
        assert loss_gate.refuse(peers[name], inputs, want) is None, name


def test_half_precision_is_compared_with_what_its_logits_hold():
    inputs = layer(Sizes(100, 64, 50), 8.0, torch.bfloat16)
    right, rounded = loss._exact(inputs, 1.5)
    assert right.loss != rounded.loss
    assert loss_gate.refuse(on_layer(1.5)[loss.PLAIN], inputs, rounded) is None
    single = layer(Sizes(10, 8, 50))
    one, other = loss._exact(single, 1.5)
    assert one is other


def test_a_gpu_measures_both_tasks(monkeypatch):
    # A device that is a CPU with another name: who takes part, and how ratios are formed.
    monkeypatch.setattr(loss.timing, "times", _two_ms)
    monkeypatch.setattr(memory, "gpu_peak", lambda run, leaves: 8.0)
    monkeypatch.setattr(loss_contenders, "layer", lambda sizes, std, dtype, _: layer(sizes, std))
    todo = loss.Plan("cuda", "float32", 20, 8, (30,), (1.0,), (1.5,), 1)
    rows = loss.measure(30, 1.0, todo)
    assert [row.task for row in rows] == ["linear"] * 4 + ["logits"] * 3
    assert {row.base for row in rows} == {loss.PEER, loss.PEER_ON_LOGITS}
    assert all(row.refused is None and row.time_ratio == 1 for row in rows)
    cells = [list(column.cells) for column in loss.table(rows, todo).columns]
    assert cells[5][0] == "2.000 ms (3.000)"


def _two_ms(runs, *_):
    return {name: loss.timing.Time(2.0, 3.0, True) for name in runs}
