"""Schedules, streams of work, keeping, records, checkpoint files, gradients: one by one."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from parsimax._runs import checkpoint
from parsimax._runs.errors import TrainingError
from parsimax._runs.metrics_file import keep_until, read_metrics
from parsimax.attention import AdaptiveAlpha
from parsimax.seq2seq.config import OptimizerSettings, ScheduleSettings
from parsimax.seq2seq.data.batch import Batch
from parsimax.seq2seq.training import gathering
from parsimax.seq2seq.training.keeping import Keeper
from parsimax.seq2seq.training.optimizing import apply_settings, make_optimizer, rescale
from parsimax.seq2seq.training.record import Recorder
from parsimax.seq2seq.training.schedule import Schedule
from parsimax.seq2seq.training.stream import Stream, Work

# --- schedules ------------------------------------------------------------------------------------


def schedule(**how: object) -> Schedule:
    return Schedule(OptimizerSettings(lr=2.0, schedule=ScheduleSettings(**how)))  # type: ignore[arg-type]


def test_halving_compares_with_the_previous_validation_and_not_with_the_best() -> None:
    halved = schedule(kind="halve_on_worse")
    rates = []
    for loss in (3.0, 1.0, 2.0, 1.5, 1.6, 1.6):  # 1.5 is worse than the best, not than the last
        halved.validated(loss)
        rates.append(halved.rate(100))
    assert rates == [2.0, 2.0, 1.0, 1.0, 0.5, 0.5]


def test_halving_stops_at_the_floor() -> None:
    halved = schedule(kind="halve_on_worse", floor=0.3)
    for loss in range(10):
        halved.validated(loss)
    assert halved.rate(0) == pytest.approx(0.3)


def test_a_floor_above_the_rate_does_not_raise_it() -> None:
    halved = schedule(kind="halve_on_worse", floor=3.0)  # and lr is 2
    halved.validated(1.0)
    halved.validated(2.0)
    assert halved.rate(0) == 2.0


def test_inverse_sqrt_grows_to_lr_and_then_falls() -> None:
    inverse = schedule(kind="inverse_sqrt", warmup=4)
    # steps are counted from 1 in lr min(t / w, sqrt(w / t)), Vaswani et al. (2017), eq. 3
    expected = [2.0 * min(t / 4, (4 / t) ** 0.5) for t in range(1, 20)]
    assert [inverse.rate(step) for step in range(19)] == pytest.approx(expected)


def test_a_constant_rate_ignores_validation() -> None:
    constant = schedule(warmup=2)
    for loss in (1.0, 2.0):
        constant.validated(loss)
    assert [constant.rate(step) for step in range(4)] == [1.0, 2.0, 2.0, 2.0]


def test_a_changed_rate_applies_to_a_restored_schedule() -> None:
    halved = schedule(kind="halve_on_worse")
    for loss in (1.0, 2.0):
        halved.validated(loss)
    other = Schedule(OptimizerSettings(lr=10.0, schedule=ScheduleSettings("halve_on_worse")))
    other.restore(halved.state())
    assert other.rate(0) == 5.0
    other.validated(3.0)  # worse than the one before it was stored
    assert other.rate(0) == 2.5


# --- streams --------------------------------------------------------------------------------------


def batches_of(epoch: int, consumed: int) -> Iterable[Batch]:
    """Epochs of 5, 6, 7, ... batches of one sentence each, told apart by their index."""
    for number in range(consumed, 5 + epoch):
        target = torch.tensor([[4] * number + [2], [0] * (number + 1)])  # the second is nobody's
        index = torch.tensor([100 * epoch + number, -1])
        yield Batch(torch.ones(2, 1), torch.ones(2), target, index)


def seen(work: Iterable[Work]) -> list[list[int]]:
    return [[int(i[0]) for i in w.indices] for w in work]


@given(st.integers(1, 9), st.integers(0, 40))
def test_a_stream_goes_on_from_any_work(accumulate: int, stop: int) -> None:
    whole = list(Stream(batches_of, accumulate, epochs=3))
    before = whole[: min(stop, len(whole) - 1)]
    position = {"epoch": 0, "consumed": 0}
    for work in before:
        position = {"epoch": work.epoch, "consumed": work.consumed}
        if work.ends_epoch:
            position = {"epoch": work.epoch + 1, "consumed": 0}
    after = list(Stream(batches_of, accumulate, epochs=3, **position))
    assert seen(before) + seen(after) == seen(whole)
    assert [n for w in seen(whole) for n in w] == [
        100 * e + n for e in range(3) for n in range(5 + e)
    ]
    assert [w.ends_epoch for w in whole].count(True) == 3


def test_work_counts_what_is_said() -> None:
    first = next(iter(Stream(batches_of, 3)))
    assert (first.sentences, first.tokens) == (3, 1 + 2 + 3)


def test_no_data_is_an_error() -> None:
    with pytest.raises(TrainingError, match="no training data"):
        next(iter(Stream(lambda epoch, consumed: [], 1)))


# --- keeping --------------------------------------------------------------------------------------


def test_the_best_and_the_latest_stay() -> None:
    keeper = Keeper("accuracy", best=2, latest=1)
    better = [keeper.add(step, value, 1.0) for step, value in enumerate((0.1, 0.5, 0.3, 0.5, 0.2))]
    assert better == [True, True, False, False, False]
    assert [k.step for k in keeper.ranked] == [1, 3]  # of equals the first
    assert keeper.names() == {"step-00000001", "step-00000003", "step-00000004"}
    assert keeper.since_best == 3
    other = Keeper("accuracy", best=1, latest=0)
    other.restore(keeper.state())
    assert other.names() == {"step-00000001"}
    assert other.since_best == 3


def test_of_equally_accurate_models_the_one_with_less_loss_is_better() -> None:
    keeper = Keeper("accuracy", best=4, latest=0)
    seen = [(0.5, 3.0), (0.5, 2.0), (0.5, 2.5), (0.4, 0.1), (0.5, 2.0)]
    better = [keeper.add(step, value, loss) for step, (value, loss) in enumerate(seen)]
    assert better == [True, True, False, False, False]
    assert [k.step for k in keeper.ranked] == [1, 4, 2, 0]
    assert keeper.since_best == 3
    older = Keeper("accuracy", best=2, latest=0)
    older.restore({"ranked": [[3, 0.5]], "recent": [], "since_best": 0})  # without losses
    assert older.add(4, 0.5, 9.0)


def test_less_loss_is_better() -> None:
    keeper = Keeper("loss", best=1, latest=0)
    assert [keeper.add(step, value, value) for step, value in enumerate((3.0, 2.0, 2.5))] == [
        True,
        True,
        False,
    ]
    assert keeper.ranked[0].value == 2.0


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_what_is_no_number_is_never_the_best(metric: Literal["accuracy", "loss"]) -> None:
    keeper = Keeper(metric, best=3, latest=2)
    values = (math.nan, 0.5, math.nan, 0.2, math.inf, -math.inf, 0.9, 0.4)
    better = [keeper.add(step, value, 1.0) for step, value in enumerate(values)]
    assert not any(b for b, v in zip(better, values, strict=True) if not math.isfinite(v))
    expected = sorted((0.5, 0.2, 0.9, 0.4), reverse=metric == "accuracy")[:3]
    assert [k.value for k in keeper.ranked] == expected
    assert [k.value for k in keeper.recent] == [0.4, 0.9]


# --- records --------------------------------------------------------------------------------------


def test_lines_after_the_checkpoint_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"event": "train", "step": step}) for step in (2, 4, 6)]
    path.write_text("\n".join([*lines, '{"event": "tra']))
    assert [m["step"] for m in read_metrics(path)] == [2, 4, 6]
    keep_until(path, 4)
    assert path.read_text().splitlines() == lines[:2]


def test_records_go_to_json_lines_and_tensorboard(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "metrics.jsonl", tmp_path / "tensorboard", 0)
    recorder.write(
        "validation", 3, {"loss": 0.5, "alphas": {"context": [[1.5, 1.2]]}, "best": True}
    )
    recorder.write("validation", 4, {"loss": float("inf")})
    recorder.close()
    first, second = read_metrics(tmp_path / "metrics.jsonl")
    assert first["alphas"] == {"context": [[1.5, 1.2]]}
    assert second["loss"] == "inf"
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    tags = events.Tags()["scalars"]
    assert set(tags) == {
        "validation/loss",
        "validation/alphas/context.0.0",
        "validation/alphas/context.0.1",
    }
    assert events.Scalars("validation/alphas/context.0.1")[0].value == pytest.approx(1.2)


# --- checkpoint files -----------------------------------------------------------------------------


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last.ckpt"
    checkpoint.write(path, {"model": {"w": torch.ones(2)}})

    def fail(state: object, file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", fail)
        with pytest.raises(OSError, match="no space"):
            checkpoint.write(path, {"model": {}})
    assert torch.equal(checkpoint.read(path)["model"]["w"], torch.ones(2))
    checkpoint.remove_parts(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["last.ckpt"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is damaged, cut off or no checkpoint"),
        (b"not a file of torch", "is damaged, cut off or no checkpoint"),
        ({"weights": 1}, "is no checkpoint of parsimax"),
        ({"format": 99, "model": {}}, "has checkpoint format 99"),
    ],
)
def test_what_is_no_checkpoint(tmp_path: Path, content: object, message: str) -> None:
    path = tmp_path / "x.ckpt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(TrainingError, match=message):
        checkpoint.read(path)


def test_a_cut_off_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    checkpoint.write(path, {"model": {"w": torch.ones(2000)}})
    path.write_bytes(path.read_bytes()[:4000])
    with pytest.raises(TrainingError, match=r"x\.ckpt is damaged, cut off"):
        checkpoint.read(path)


def test_a_missing_checkpoint_names_those_there_are(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "last.ckpt", {"model": {}})
    with pytest.raises(TrainingError, match=r"no checkpoint .*best\.ckpt; there are last"):
        checkpoint.read(tmp_path / "best.ckpt")


def test_random_states_go_through_a_file(tmp_path: Path) -> None:
    device = torch.device("cpu")

    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002

    checkpoint.seed_everything(5, 0)
    draw()
    checkpoint.write(tmp_path / "x.ckpt", {"model": {}, "r": checkpoint.random_state(device)})
    expected = draw()
    assert draw() != expected
    checkpoint.set_random_state(checkpoint.read(tmp_path / "x.ckpt")["r"], device)
    assert draw() == expected
    checkpoint.seed_everything(5, 1)
    draw()
    assert draw() != expected


# --- gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [None, 0.1, 1e9])
@pytest.mark.parametrize("scale", [0.25, torch.tensor(0.25)])
def test_gradients_are_scaled_before_they_are_clipped(
    scale: float | torch.Tensor, clip: float | None
) -> None:
    parameters = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2, 2))]
    unused = nn.Parameter(torch.zeros(1))
    for p in parameters:
        p.grad = torch.randn_like(p)
    gradients = [p.grad * 0.25 for p in parameters if p.grad is not None]
    expected = torch.cat([g.flatten() for g in gradients]).norm()
    norm = rescale([*parameters, unused], scale, clip)
    torch.testing.assert_close(norm, expected)
    shrink = 1.0 if clip is None else min(1.0, clip / float(expected))
    for p, g in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(p.grad, g * shrink, rtol=1e-4, atol=0)


# --- optimisers -----------------------------------------------------------------------------------


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.alpha = nn.Linear(3, 3), nn.LayerNorm(3), AdaptiveAlpha(3)
        self.embedding, self.lstm = nn.Embedding(4, 3, padding_idx=0), nn.LSTM(3, 3)


def decayed(kind: str) -> set[str]:
    """The parameters that change in a step whose gradients are zero."""
    model = Parts()
    settings = OptimizerSettings(kind=kind, weight_decay=0.5, lr=0.1)  # type: ignore[arg-type]
    optimizer = make_optimizer(model.parameters(), settings)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    return {name for name, p in model.named_parameters() if not torch.equal(before[name], p)}


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
def test_only_matrices_decay(kind: str) -> None:
    assert decayed(kind) == {
        *("linear.weight", "embedding.weight", "lstm.weight_ih_l0", "lstm.weight_hh_l0")
    }


def test_changed_decay_is_for_matrices_and_moments_go_into_any_groups() -> None:
    model = Parts()
    settings = OptimizerSettings(weight_decay=0.5)
    old = torch.optim.Adam(model.parameters())  # one group, as checkpoints had before
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    old.step()
    for saved in (old, make_optimizer(model.parameters(), settings)):
        state = gathering.optimizer_state(model, saved)
        optimizer = make_optimizer(model.parameters(), settings)
        gathering.set_optimizer_state(model, optimizer, state)
        apply_settings(optimizer, OptimizerSettings(weight_decay=0.25, eps=1e-3))
        assert [g["weight_decay"] for g in optimizer.param_groups] == [0.25, 0.0]
        assert all(g["eps"] == 1e-3 for g in optimizer.param_groups)
        for p, moments in saved.state.items():
            assert torch.equal(optimizer.state[p]["exp_avg"], moments["exp_avg"])
            assert float(optimizer.state[p]["step"]) == 1


def test_pointing_again_at_the_same_file_leaves_nothing_behind(tmp_path: Path) -> None:
    target, best = tmp_path / "step-1.ckpt", tmp_path / "best.ckpt"
    target.write_bytes(b"x")
    for _ in range(2):
        checkpoint.point(best, target)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["best.ckpt", "step-1.ckpt"]
    other = tmp_path / "step-2.ckpt"
    other.write_bytes(b"y")
    checkpoint.point(best, other)
    assert best.read_bytes() == b"y"
