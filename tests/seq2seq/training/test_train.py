"""Training in one process: what a step is, when a run ends, what it leaves, what stops it."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tests.seq2seq.training.runs import metrics, small_config, write_pairs

from parsimax._runs import checkpoint
from parsimax.seq2seq import config as configs
from parsimax.seq2seq import run as runs
from parsimax.seq2seq.data.batch import Batch
from parsimax.seq2seq.training import TrainingError, average, train
from parsimax.seq2seq.training.fit import Outcome
from parsimax.seq2seq.training.module import TrainingModule

EXACT = ("--model.dropout", "0", "--optimizer.schedule.kind", "constant")


def fit(folder: Path, *overrides: str, run: str = "run", **how: Any) -> Outcome:
    how = {"resume": False, **how}
    return train(small_config(folder, *overrides), folder / run, quiet=True, **how)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with three kept checkpoints."""
    folder = tmp_path_factory.mktemp("trained")
    fit(folder, "--training.keep", "2", "--training.keep_last", "2", "--training.average", "2")
    return folder / "run"


def weights(run: Path, name: str = "last") -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = checkpoint.read(run / "checkpoints" / f"{name}.ckpt")["model"]
    return state


# --- what a run leaves ----------------------------------------------------------------------------


def test_the_folder_of_a_run(trained: Path) -> None:
    assert {p.name for p in trained.iterdir()} == {
        *("config.yaml", "versions.json", "metrics.jsonl", "sources.json"),
        *("codec", "data", "checkpoints", "tensorboard"),
    }
    versions = json.loads((trained / "versions.json").read_text())
    assert versions["torch"] == torch.__version__
    options = yaml.safe_load((trained / "config.yaml").read_text())
    assert options["seed"] == 1
    assert options["optimizer"]["betas"] == [0.9, 0.999]  # also what has its default
    steps = [m["step"] for m in metrics(trained)]
    assert steps == [8, 16, 24]  # 60 examples in batches of 8
    for line in metrics(trained):
        assert line["sentences"] == 17
        assert line["tokens"] == sum(
            len(pair.split("\t")[1]) + 1
            for pair in (trained.parent / "validation.tsv").read_text().splitlines()
        )
        assert 0 <= line["accuracy"] <= 1
        assert 0 < line["attention_density"] <= 1
    assert {"loss", "gradient_norm", "lr", "tokens_per_second"} <= set(metrics(trained, "train")[0])


def test_a_run_is_loaded_with_its_best_model(trained: Path) -> None:
    run = runs.load(trained)
    best = max(metrics(trained), key=lambda m: (m["accuracy"], -m["loss"]))
    assert run.step == best["step"]
    assert run.validated["loss"] == best["loss"]
    assert not run.model.training
    assert run.config.seed == 1
    source = run.codec.encode_source("abc")
    with torch.no_grad():
        state = run.model.start(torch.tensor([source]), torch.tensor([len(source)]))
        p, _ = run.model.step(state, torch.tensor([1]))
    assert float(p.sum()) == pytest.approx(1.0, abs=1e-5)


def test_averages(trained: Path) -> None:
    ranked = sorted(metrics(trained), key=lambda m: (-m["accuracy"], m["loss"]))
    several = [weights(trained, f"step-{m['step']:08d}") for m in ranked[:2]]
    for name, value in weights(trained, "average").items():  # training.average made it
        torch.testing.assert_close(value, (several[0][name] + several[1][name]) / 2)
    path = average(trained, 2, "last")
    assert runs.load(trained, "average").checkpoint == path
    several = [weights(trained, f"step-{step:08d}") for step in (16, 24)]
    for name, value in weights(trained, "average").items():
        torch.testing.assert_close(value, (several[0][name] + several[1][name]) / 2)
    with pytest.raises(TrainingError, match=r"has 2 of its best .* 3 are .*training\.keep says"):
        average(trained, 3)


def test_a_checkpoint_of_another_vocabulary(trained: Path, tmp_path: Path) -> None:
    config = small_config(tmp_path)
    write_pairs(tmp_path / "train.tsv", 60, 1)
    text = (tmp_path / "train.tsv").read_text().replace("a", "x")
    (tmp_path / "train.tsv").write_text(text)  # as many symbols, one of them another
    train(config, tmp_path / "run", quiet=True)
    other = str(tmp_path / "run" / "checkpoints" / "best.ckpt")
    with pytest.raises(TrainingError, match=r"trained with another vocabulary.*take a checkpoint"):
        runs.load(trained, other)


def test_what_is_no_run(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="there is no such folder; parsimax train writes one"):
        runs.load(tmp_path / "nothing")
    with pytest.raises(TrainingError, match=r"it has no config\.yaml"):
        runs.load(tmp_path)
    with pytest.raises(TrainingError, match=r"no checkpoint .*; there are .*best.*last"):
        runs.load(trained, "worst")


# --- what a step is -------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize", ["sentences", "tokens"])
def test_accumulated_batches_are_one_batch(tmp_path: Path, normalize: str) -> None:
    how = (*EXACT, "--training.max_epochs", "1", "--training.normalize", normalize)
    how += ("--optimizer.clip", "0.5", "--optimizer.kind", "sgd")
    # Unsorted, so that the batches of 3 are the thirds of those of 9; 60 = 6 * 9 + 6.
    fit(tmp_path, *how, "--training.batch.size", "9", run="whole", module=Unsorted)
    fit(
        tmp_path,
        *(*how, "--training.batch.size", "3", "--training.accumulate", "3"),
        run="parts",
        module=Unsorted,
    )
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    for name, value in whole.items():
        # float32 sums in another order, over 7 steps
        torch.testing.assert_close(parts[name], value, rtol=0, atol=1e-6)
    start = torch.load(tmp_path / "whole" / "checkpoints" / "last.ckpt", weights_only=True)
    assert start["progress"]["step"] == 7


class Unsorted(TrainingModule):
    def _sampler(self, corpus: Any, size: int, shuffle: bool) -> Any:
        return super()._sampler(corpus, size, shuffle=False)


def test_the_loss_is_divided_by_sentences_or_tokens(tmp_path: Path) -> None:
    how = (*EXACT, "--training.max_steps", "1", "--training.log_every", "1")
    fit(tmp_path, *how, run="sentences")
    fit(tmp_path, *how, "--training.normalize", "tokens", run="tokens")
    by_sentence, by_token = (metrics(tmp_path / r, "train")[0] for r in ("sentences", "tokens"))
    assert by_token["objective"] == pytest.approx(by_token["loss"])
    ratio = by_sentence["objective"] / by_token["objective"]  # tokens a sentence
    assert ratio > 1
    assert by_sentence["gradient_norm"] == pytest.approx(ratio * by_token["gradient_norm"])


def test_workers_change_nothing(tmp_path: Path) -> None:
    fit(tmp_path, "--training.max_epochs", "2", run="none")
    fit(tmp_path, "--training.max_epochs", "2", "--training.workers", "2", run="two")
    for name, value in weights(tmp_path / "none").items():
        assert torch.equal(weights(tmp_path / "two")[name], value)


def test_bf16_trains_close_to_float32(tmp_path: Path) -> None:
    fit(tmp_path, *EXACT, run="float32")
    fit(tmp_path, *EXACT, "--training.precision", "bf16-mixed", run="bf16")
    exact, rounded = (metrics(tmp_path / r)[-1]["loss"] for r in ("float32", "bf16"))
    assert exact != rounded
    assert rounded == pytest.approx(exact, rel=0.03)  # bf16 has 8 bits
    assert all(w.dtype == torch.float32 for w in weights(tmp_path / "bf16").values())


def test_float64_trains_and_agrees_with_float32(tmp_path: Path) -> None:
    limits = (*EXACT, "--training.max_steps", "2", "--training.log_every", "1")
    fit(tmp_path, *limits, run="float32")
    fit(tmp_path, *limits, "--training.precision", "64-true", run="float64")
    assert all(w.dtype == torch.float64 for w in weights(tmp_path / "float64").values())
    single, double = (metrics(tmp_path / r)[-1]["loss"] for r in ("float32", "float64"))
    assert single != double
    assert math.isfinite(double)
    assert double == pytest.approx(single, rel=0.2)  # other random weights to begin with
    more = ("--training.max_steps", "3", "--training.precision", "64-true")
    assert fit(tmp_path, *limits, *more, run="float64", resume=True).step == 3
    assert runs.load(tmp_path / "float64").step in (2, 3)


# --- when a run ends ------------------------------------------------------------------------------


def test_limits(tmp_path: Path) -> None:
    assert fit(tmp_path, "--training.max_steps", "5", run="a").stopped.startswith(
        "training.max_steps = 5"
    )
    assert metrics(tmp_path / "a")[-1]["step"] == 5  # validated and saved where it ended
    assert runs.load(tmp_path / "a", "last").step == 5
    outcome = fit(tmp_path, "--training.max_minutes", "1e-9", run="b")
    assert outcome.step == 1
    assert "max_minutes" in outcome.stopped


def test_processes_do_not_ask_their_own_clocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process that believes to be of two: only where all agree may its clock end the run."""
    agreed: list[int] = []

    class OneOfTwo(TrainingModule):
        def on_train_batch_end(self, outputs: Any, work: Any, batch_idx: int) -> None:
            with monkeypatch.context() as patch:
                patch.setattr(type(self.trainer), "world_size", 2)
                super().on_train_batch_end(outputs, work, batch_idx)

        def _agree(self, reason: str) -> str:
            agreed.append(self.progress.step)
            return reason

    outcome = fit(
        tmp_path,
        *("--training.max_minutes", "1e-9", "--training.log_every", "3"),
        *("--training.validation.unit", "steps", "--training.validation.every", "2"),
        module=OneOfTwo,
    )
    assert "max_minutes" in outcome.stopped
    assert (outcome.step, agreed) == (3, [0, 3])  # and not at the validation of step 2


class Worsening(TrainingModule):
    """Steps do nothing after the first: accuracy stays what it is."""

    def training_step(self, work: Any, batch_idx: int) -> None:
        if self.progress.step >= 8:
            self.config.optimizer.__dict__["lr"] = 1e-30
        super().training_step(work, batch_idx)


def test_patience(tmp_path: Path) -> None:
    outcome = fit(
        tmp_path,
        *("--training.validation.patience", "2", "--training.validation.every", "4"),
        *("--training.validation.unit", "steps", "--training.max_epochs", "9", *EXACT),
        module=Worsening,
    )
    assert outcome.stopped == "no better accuracy in 2 validations"
    assert outcome.step < 72
    seen = [(m["accuracy"], -m["loss"]) for m in metrics(tmp_path / "run")]
    assert outcome.best is not None
    assert outcome.best[1] == max(seen)[0]
    assert seen.index(max(seen)) == len(seen) - 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_saved(tmp_path: Path, number: signal.Signals) -> None:
    class Interrupted(TrainingModule):
        def training_step(self, work: Any, batch_idx: int) -> None:
            if self.progress.step == 4:
                os.kill(os.getpid(), number)
            super().training_step(work, batch_idx)

    before = signal.getsignal(number)
    outcome = fit(tmp_path, module=Interrupted)
    assert signal.getsignal(number) is before
    assert outcome.interrupted
    assert (outcome.step, runs.load(tmp_path / "run", "last").step) == (5, 5)
    fit(tmp_path, run="run", resume=True)
    fit(tmp_path, run="whole")
    for name, value in weights(tmp_path / "whole").items():
        assert torch.equal(weights(tmp_path / "run")[name], value)


@pytest.mark.parametrize(
    ("world", "said"), [(1, "stopping after this step;"), (2, "stopping after step 6, where")]
)
def test_when_an_interrupted_run_stops_is_said_as_it_is(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    world: int,
    said: str,
) -> None:
    class Interrupted(TrainingModule):
        def on_train_batch_end(self, outputs: Any, work: Any, batch_idx: int) -> None:
            with monkeypatch.context() as patch:
                patch.setattr(type(self.trainer), "world_size", world)
                if self.progress.step == 3:
                    self.on_signal(signal.SIGINT, None)
                super().on_train_batch_end(outputs, work, batch_idx)

    config = small_config(tmp_path, "--training.log_every", "3")
    outcome = train(config, tmp_path / "run", module=Interrupted)
    assert said in capsys.readouterr().err
    assert outcome.step == (4 if world == 1 else 6)


# --- resuming -------------------------------------------------------------------------------------


def test_a_finished_run_goes_on_with_a_higher_limit(tmp_path: Path) -> None:
    fit(tmp_path, "--training.max_epochs", "1")
    same = fit(tmp_path, "--training.max_epochs", "1", resume=True)
    assert same.step == 8
    assert "max_epochs = 1" in same.stopped
    fit(tmp_path, "--training.max_epochs", "2", resume=True)
    fit(tmp_path, "--training.max_epochs", "2", run="whole")
    for name, value in weights(tmp_path / "whole").items():
        assert torch.equal(weights(tmp_path / "run")[name], value)
    assert yaml.safe_load((tmp_path / "run/config.yaml").read_text())["training"]["max_epochs"] == 2
    assert [m["step"] for m in metrics(tmp_path / "run")] == [8, 16]


def test_changed_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(tmp_path, "--training.max_steps", "2")
    with pytest.raises(TrainingError) as caught:
        fit(tmp_path, "--model.hidden", "10", "--seed", "3", "--optimizer.lr", "1", resume=True)
    message = str(caught.value)
    assert "model.hidden: 8 -> 10" in message
    assert "seed: 1 -> 3" in message
    assert "optimizer.lr" not in message  # that one could apply
    assert "--out" in message
    # nothing of a refused change is left behind
    assert yaml.safe_load((tmp_path / "run/config.yaml").read_text())["model"]["hidden"] == 8
    config = small_config(tmp_path, "--training.max_steps", "4", "--optimizer.lr", "0.5")
    train(config, tmp_path / "run", resume=True)
    said = capsys.readouterr().err
    assert "optimizer.lr: 0.01 -> 0.5" in said
    assert "training.max_steps: 2 -> 4" in said
    assert metrics(tmp_path / "run", "train")[-1]["lr"] == 0.5


def test_folders_that_cannot_be_taken(tmp_path: Path) -> None:
    with pytest.raises(
        TrainingError, match="no such folder; run the same command without --resume"
    ):
        fit(tmp_path, resume=True)
    fit(tmp_path, "--training.max_steps", "1")
    with pytest.raises(TrainingError, match=r"holds a run already; .*--resume, .*--out"):
        fit(tmp_path)
    (tmp_path / "run/checkpoints/last.ckpt").unlink()
    with pytest.raises(TrainingError, match=r"last\.ckpt is missing; put it back"):
        fit(tmp_path, resume=True)
    with pytest.raises(TrainingError, match=r"checkpoints of a run already \(best\.ckpt, step-"):
        fit(tmp_path)
    for trained in (tmp_path / "run/checkpoints").iterdir():
        trained.unlink()
    with pytest.raises(TrainingError, match="nothing was trained there yet"):
        fit(tmp_path, resume=True)
    fit(tmp_path, "--training.max_steps", "1")  # nothing was lost: it begins again
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter.tex").write_text("")
    with pytest.raises(TrainingError, match=r"not the folder of a run \(it holds chapter\.tex\)"):
        fit(tmp_path, run="thesis")


def contents(folder: Path) -> dict[str, str]:
    files = (p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): p.read_text() for p in files}


@pytest.mark.parametrize(
    "files",
    [
        ("config.yaml", "checkpoints/model.pt"),
        ("data/words.txt", "checkpoints/epoch=3.ckpt"),
        ("config.yaml", "checkpoints/last.ckpt"),
        ("config.yaml", "versions.json", "metrics.jsonl"),
        ("checkpoints/step.part",),
        ("tensorboard/events.out.tfevents.1",),
        ("metrics.jsonl",),
    ],
)
@pytest.mark.parametrize("resume", [False, True])
def test_files_of_somebody_stay(tmp_path: Path, files: tuple[str, ...], resume: bool) -> None:
    config = small_config(tmp_path / "elsewhere")
    mine = tmp_path / "mine"
    for name in files:
        (mine / name).parent.mkdir(parents=True, exist_ok=True)
        text = {"config.yaml": config.to_yaml() + "# mine\n", "versions.json": '{"torch": "1"}'}
        (mine / name).write_text(text.get(name, "mine"))
    before = contents(mine)
    with pytest.raises(TrainingError):
        train(config, mine, quiet=True, resume=resume)
    assert contents(mine) == before


def test_a_run_that_begins_again_keeps_what_it_did_not_write(tmp_path: Path) -> None:
    config = small_config(tmp_path, "--training.max_steps", "1")
    good = (tmp_path / "train.tsv").read_text()
    (tmp_path / "train.tsv").write_text("three\tcolumns\there\n")
    run = tmp_path / "run"
    with pytest.raises(ValueError, match=r"train\.tsv:1"):
        train(config, run, quiet=True)
    (tmp_path / "train.tsv").write_text(good)
    written = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(written + "# a remark\n")
    with pytest.raises(TrainingError, match=r"config\.yaml is not as the run wrote it.*move it"):
        train(config, run, quiet=True)
    assert (run / "config.yaml").read_text().endswith("# a remark\n")
    (run / "config.yaml").write_text(written)
    (run / "notes.txt").write_text("mine")
    (run / "checkpoints/model.pt").write_text("mine")
    assert train(config, run, quiet=True).step == 1
    assert (run / "notes.txt").read_text() == (run / "checkpoints/model.pt").read_text() == "mine"


def test_a_bad_row_can_be_mended(tmp_path: Path) -> None:
    config = small_config(tmp_path, "--training.max_steps", "1")
    good = (tmp_path / "train.tsv").read_text()
    (tmp_path / "train.tsv").write_text(good + "three\tcolumns\there\n")
    with pytest.raises(ValueError, match=r"train\.tsv:61"):
        train(config, tmp_path / "run", quiet=True)
    (tmp_path / "train.tsv").write_text(good)
    assert train(config, tmp_path / "run", quiet=True).step == 1


def test_another_codec_or_other_data_under_a_checkpoint(tmp_path: Path) -> None:
    fit(tmp_path, "--training.max_steps", "1")
    other = tmp_path / "other"
    config = small_config(other, train=61)
    train(config, other / "run", quiet=True)
    mine = tmp_path / "run"
    (mine / "data").rename(mine / "data_before")
    (other / "run" / "data").rename(mine / "data")
    with pytest.raises(TrainingError, match="is not what the last checkpoint was trained on"):
        fit(tmp_path, "--training.max_steps", "2", resume=True)


@pytest.mark.parametrize("lost", ["steps", "steps and best"])
def test_a_run_that_was_copied_without_some_checkpoints(tmp_path: Path, lost: str) -> None:
    keep = ("--training.keep", "3", "--training.keep_last", "2", "--training.average", "3")
    fit(tmp_path, *keep, "--training.max_epochs", "2")
    folder = tmp_path / "run/checkpoints"
    best = runs.load(tmp_path / "run").step
    for path in [*folder.glob("step-*.ckpt"), folder / "average.ckpt"]:
        path.unlink()
    if lost != "steps":
        (folder / "best.ckpt").unlink()
    same = fit(tmp_path, *keep, "--training.max_epochs", "2", resume=True)
    assert (same.best is None) == (lost != "steps")
    if lost == "steps":
        assert runs.load(tmp_path / "run").step == best
        assert (folder / f"step-{best:08d}.ckpt").exists()
    outcome = fit(tmp_path, *keep, resume=True)
    assert outcome.step == 24
    assert outcome.best is not None
    assert runs.load(tmp_path / "run").step == outcome.best[0]


def test_changed_source_files(tmp_path: Path) -> None:
    config = small_config(tmp_path, "--training.max_steps", "1")
    train(config, tmp_path / "run", quiet=True)
    more = configs.load(tmp_path / "small.yaml", ["--training.max_steps", "2"])
    for name, key in (("train.tsv", "train"), ("validation.tsv", "validation")):
        before = (tmp_path / name).read_text()
        (tmp_path / name).write_text(before + "new\twen\n")
        with pytest.raises(
            TrainingError, match=rf"data\.{key}: .*/{name} is not what it was.*--out"
        ):
            train(more, tmp_path / "run", quiet=True, resume=True)
        (tmp_path / name).write_text(before)
    (tmp_path / "train.tsv").unlink()  # what was encoded is still there
    assert train(more, tmp_path / "run", quiet=True, resume=True).step == 2


def test_a_source_file_that_was_added(tmp_path: Path) -> None:
    small_config(tmp_path)
    how = ["--data.train", str(tmp_path / "train*.tsv"), "--training.max_steps", "1"]
    config = configs.load(tmp_path / "small.yaml", how)
    train(config, tmp_path / "run", quiet=True)
    write_pairs(tmp_path / "train-more.tsv", 5, 3)
    with pytest.raises(TrainingError, match=r"data\.train: .*train-more\.tsv was not there when"):
        train(config, tmp_path / "run", quiet=True, resume=True)


# --- what stops a run -----------------------------------------------------------------------------


class Failing(TrainingModule):
    error: Exception = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    def accumulate(self, batch: Batch) -> torch.Tensor:
        if self.progress.step == 2:
            raise self.error
        return super().accumulate(batch)


def test_out_of_memory_names_the_batch_and_the_settings(tmp_path: Path) -> None:
    with pytest.raises(TrainingError) as caught:
        fit(tmp_path, module=Failing)
    message = str(caught.value)
    assert "out of memory at step 3, in a batch of 8 sentences" in message
    assert "training.batch.size (now 8 sentences)" in message
    assert "training.accumulate (now 1)" in message
    assert runs.load(tmp_path / "run", "last").step == 0  # and the run can be resumed
    assert fit(tmp_path, "--training.max_steps", "3", resume=True).step == 3


def test_other_errors_keep_their_name(tmp_path: Path) -> None:
    class Mistaken(Failing):
        error = RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        fit(tmp_path, module=Mistaken)


def test_no_number_stops_the_run_and_is_not_saved(tmp_path: Path) -> None:
    class Infinite(TrainingModule):
        def accumulate(self, batch: Batch) -> torch.Tensor:
            loss = super().accumulate(batch)
            return loss * math.nan if self.progress.step == 2 else loss

    with pytest.raises(TrainingError) as caught:
        fit(tmp_path, "--training.log_every", "5", module=Infinite)
    message = str(caught.value)
    assert "the loss is nan at step 3, for the training examples" in message
    assert "optimizer.lr (now 0.01)" in message
    assert runs.load(tmp_path / "run", "last").step == 0


def test_no_number_in_the_gradient(tmp_path: Path) -> None:
    class Steep(TrainingModule):
        def accumulate(self, batch: Batch) -> torch.Tensor:
            loss = super().accumulate(batch)
            assert self.model is not None
            next(p for p in self.model.parameters() if p.grad is not None).grad.fill_(math.inf)  # type: ignore[union-attr]
            return loss

    with pytest.raises(TrainingError, match=r"the gradient's norm is (inf|nan) at step 1"):
        fit(tmp_path, module=Steep)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_diverged_model_is_neither_last_nor_best(tmp_path: Path, value: float) -> None:
    """Losses and gradients are numbers up to the step before a validation; the weights are not."""

    class Diverging(TrainingModule):
        def training_step(self, work: Any, batch_idx: int) -> None:
            super().training_step(work, batch_idx)
            if self.progress.step == 15:  # the last of the second epoch
                assert self.model is not None
                with torch.no_grad():
                    for parameter in self.model.parameters():
                        parameter.fill_(value)

    with pytest.raises(TrainingError) as caught:
        fit(tmp_path, module=Diverging)
    message = str(caught.value)
    assert "the validation loss is nan after step 16" in message
    assert "Lower optimizer.lr (now 0.01)" in message
    run = tmp_path / "run"
    assert runs.load(run, "last").step == runs.load(run, "best").step == 8
    outcome = fit(tmp_path, "--optimizer.lr", "1e-3", resume=True)
    assert outcome.step == 24
    assert all(math.isfinite(m["loss"]) for m in metrics(run))


def test_weights_that_are_no_numbers_are_not_saved_between_validations(tmp_path: Path) -> None:
    class Diverging(TrainingModule):
        def training_step(self, work: Any, batch_idx: int) -> None:
            super().training_step(work, batch_idx)
            if self.progress.step == 3:
                assert self.model is not None
                next(self.model.parameters()).data[-1] = math.inf

    with pytest.raises(TrainingError, match=r"have values that are no numbers after step 4.*lr"):
        fit(tmp_path, "--training.save_every", "2", module=Diverging)
    assert runs.load(tmp_path / "run", "last").step == 2
