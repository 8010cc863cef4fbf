"""Runs to compare a run with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.classify.texts import config, rows, write

from parsimax._runs.errors import TrainingError
from parsimax.classify import controls
from parsimax.classify.auditing import auditable
from parsimax.classify.training import train

TOKENS = torch.tensor([[3, 4, 5, 6, 7], [7, 2, 9, 0, 0]])
MASK = TOKENS != 0


def weights_and_probabilities(functions):
    h = functions.encode(functions.embed(TOKENS), MASK)
    a = functions.attend(h, MASK)
    return a, functions.decode(h, a, MASK)


def test_seeds_and_uniform_attention(tmp_path: Path) -> None:
    run = train(config(tmp_path), tmp_path / "run", quiet=True).run
    mine, _ = weights_and_probabilities(auditable(run))
    same, _ = weights_and_probabilities(controls.seeds(run, tmp_path / "c")(1))
    other, _ = weights_and_probabilities(controls.seeds(run, tmp_path / "c")(2))
    assert torch.equal(mine, same)
    assert not torch.allclose(mine, other, atol=1e-4)
    written = (tmp_path / "c/seed-2/checkpoints/best.ckpt").stat().st_mtime_ns
    again, _ = weights_and_probabilities(controls.seeds(run, tmp_path / "c")(2))
    assert torch.equal(other, again)
    assert (tmp_path / "c/seed-2/checkpoints/best.ckpt").stat().st_mtime_ns == written

    even, p = weights_and_probabilities(controls.uniform(run, tmp_path / "c")(None))
    torch.testing.assert_close(even, MASK / MASK.sum(1, keepdim=True))
    torch.testing.assert_close(p.sum(1), torch.ones(2))


class Elsewhere:
    """Predict as the base does, and attend to the last word only."""

    lam = 0.5

    def __init__(self, base) -> None:
        self.base, self.calls = base, 0

    def __call__(self, tokens, mask, prediction, attention):
        self.calls += 1
        h = self.base.encode(self.base.embed(tokens), mask)
        wanted = self.base.decode(h, self.base.attend(h, mask), mask)
        last = attention.gather(1, mask.sum(1, keepdim=True) - 1)
        return (prediction - wanted).abs().sum(1).mean() - self.lam * last.mean()


def test_an_adversary_decides_alike_and_attends_elsewhere(tmp_path: Path) -> None:
    run = train(config(tmp_path), tmp_path / "run", quiet=True).run
    base = auditable(run)
    criterion = Elsewhere(base)
    adversary = controls.adversaries(run, tmp_path / "c")(criterion)
    assert criterion.calls == 4 * 8
    assert (tmp_path / "c/adversarial-0.5").is_dir()
    a, p = weights_and_probabilities(base)
    b, q = weights_and_probabilities(adversary)
    last = MASK.sum(1, keepdim=True) - 1
    assert (b.gather(1, last) > a.gather(1, last) + 0.3).all()
    assert (p - q).abs().max() < 0.25


def test_a_control_of_something_else_is_not_taken(tmp_path: Path) -> None:
    short = {"max_epochs": 1, "device": "cpu"}
    run = train(config(tmp_path, training=short), tmp_path / "run", quiet=True).run
    controls.seeds(run, tmp_path / "c")(2)
    criterion = Elsewhere(auditable(run))
    controls.adversaries(run, tmp_path / "c")(criterion)
    controls.adversaries(run, tmp_path / "c")(criterion)  # the same again is welcome

    # a run of other options
    faster = replace(run.config, optimizer=replace(run.config.optimizer, lr=0.5))
    with pytest.raises(TrainingError, match=r"seed-2 holds a control .* optimizer\.lr \(0\.02"):
        controls.seeds(replace(run, config=faster), tmp_path / "c")(2)
    # other weights of the run that the adversary is to imitate
    with torch.no_grad():
        run.model.out.weight.add_(0.01)
    with pytest.raises(TrainingError, match="beside other weights than the run has now"):
        controls.adversaries(run, tmp_path / "c")(criterion)
    # data that are not those of the run
    write(tmp_path / "train.jsonl", rows(90, 8))
    with pytest.raises(TrainingError, match="not those that the run it is compared with"):
        controls.seeds(run, tmp_path / "c")(3)
