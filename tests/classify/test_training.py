"""Training: what is learned, kept, written down, resumed and refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.classify.texts import SIGNS, config, options, rows, write

from parsimax._runs.bad_rows import DataError
from parsimax._runs.errors import TrainingError
from parsimax._runs.metrics_file import read_metrics
from parsimax.classify import run as runs
from parsimax.classify.batches import encode
from parsimax.classify.config import from_dict
from parsimax.classify.evaluation import evaluate, predict
from parsimax.classify.model import Classifier
from parsimax.classify.training import make_optimizer, train


def same(first: Classifier, second: Classifier) -> bool:
    one, two = first.state_dict(), second.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"attention": {"kind": "dot", "mapping": "sparsegen(lam=0.5)"}, "boundaries": True},
        {"encoder": {"kind": "transformer", "dim": 16, "heads": 2, "layers": 1, "dropout": 0}},
        {"attention": {"query": "final", "hidden": 8}, "output": "entmax(alpha=1.5)"},
    ],
)
def test_what_can_be_learned_is_learned(tmp_path: Path, model: dict) -> None:
    # by loss: the AUC is 1 before the threshold is right
    settings = config(tmp_path, model=model, training={"max_epochs": 4, "metric": "loss"})
    outcome = train(settings, tmp_path / "run", quiet=True)
    assert outcome.test is not None
    assert outcome.test.accuracy > 0.9
    assert outcome.test.auc > 0.95
    assert outcome.epochs == 4
    assert outcome.stopped == "training.max_epochs = 4 reached"


def test_attention_finds_the_word_that_says_it(tmp_path: Path) -> None:
    sections = {"model": {"attention": {"mapping": "sparsemax", "hidden": 8}}}
    outcome = train(config(tmp_path, **sections), tmp_path / "run", quiet=True)
    found = outcome.run.read([tmp_path / "test.jsonl"])
    said = predict(outcome.run.model, encode(found.examples, outcome.run.vocabulary))
    signs = {word for words in SIGNS.values() for word in words}
    on_signs = [
        sum(a for a, word in zip(weights.tolist(), example.words, strict=True) if word in signs)
        for weights, example in zip(said.weights, found, strict=True)
    ]
    by_chance = np.mean([1 / len(example.words) for example in found])
    assert np.mean(on_signs) > 2 * by_chance
    assert any((weights == 0).any() for weights in said.weights)


def test_a_run_folder(tmp_path: Path) -> None:
    options = config(tmp_path)
    outcome = train(options, tmp_path / "run", quiet=True)
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert names == {
        "config.yaml", "vocabulary.json", "versions.json", "metrics.jsonl", "checkpoints",
    }  # fmt: skip
    assert {p.name for p in (tmp_path / "run/checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    versions = json.loads((tmp_path / "run/versions.json").read_text())
    assert torch.__version__.startswith(versions["torch"])  # which may say nothing of CUDA

    lines = read_metrics(tmp_path / "run/metrics.jsonl")
    assert [line["event"] for line in lines] == ["validation"] * 4 + ["test"]
    assert [line["epoch"] for line in lines[:4]] == [1, 2, 3, 4]
    best = max(line["auc"] for line in lines[:4])
    first = next(line for line in lines if line["auc"] == best)
    assert outcome.best == (first["epoch"], outcome.run.validated)
    assert outcome.run.validated["auc"] == best
    assert lines[4]["accuracy"] == outcome.test.accuracy

    loaded = runs.load(tmp_path / "run")
    assert same(loaded.model, outcome.run.model)
    assert loaded.vocabulary == outcome.run.vocabulary
    assert loaded.config == options
    assert loaded.epoch == outcome.best[0]
    assert not loaded.model.training
    dev = encode(loaded.read([tmp_path / "dev.jsonl"]).examples, loaded.vocabulary)
    scores, _ = evaluate(loaded.model, dev, loaded.vocabulary.labels)
    assert scores.auc == best
    assert scores.to_dict() == loaded.validated


def test_seeds(tmp_path: Path) -> None:
    first, again, other = (
        train(config(tmp_path, seed=seed), tmp_path / name, quiet=True).run.model
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert same(first, again)
    assert not same(first, other)


def test_a_resumed_run_is_one_that_was_never_stopped(tmp_path: Path) -> None:
    sections = {"model": {"embedding": 8, "dropout": 0.3, "encoder": {"hidden": 8}}}
    whole = train(config(tmp_path, **sections), tmp_path / "whole", quiet=True)
    short = {"max_epochs": 2, "batch": 16, "device": "cpu"}
    part = tmp_path / "part"
    train(config(tmp_path, training=short, **sections), part, quiet=True)
    (part / "checkpoints/best.ckpt.part").write_text("left by a run that was killed")
    resumed = train(config(tmp_path, **sections), part, resume=True, quiet=True)
    assert resumed.epochs == 4
    assert same(runs.load(part, "last").model, runs.load(tmp_path / "whole", "last").model)
    assert same(resumed.run.model, whole.run.model)
    assert [line["epoch"] for line in read_metrics(part / "metrics.jsonl")[:2]] == [1, 2]
    assert not list(part.rglob("*.part"))


def test_what_may_not_change_when_a_run_is_resumed(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="there is no such folder; run the same"):
        train(config(tmp_path), tmp_path / "run", resume=True, quiet=True)
    train(config(tmp_path, training={"max_epochs": 1}), tmp_path / "run", quiet=True)
    with pytest.raises(TrainingError, match="holds a run already; go on with it by --resume"):
        train(config(tmp_path), tmp_path / "run", quiet=True)
    with pytest.raises(TrainingError, match=r"other values of seed \(1, now 2\)"):
        train(config(tmp_path, seed=2), tmp_path / "run", resume=True, quiet=True)
    write(tmp_path / "train.jsonl", rows(100, seed=9))
    changed = options(tmp_path)
    write(tmp_path / "train.jsonl", [{"text": "other words", "label": n % 2} for n in range(9)])
    with pytest.raises(TrainingError, match="the training data are not those of this run"):
        train(from_dict(changed), tmp_path / "run", resume=True, quiet=True)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/thesis.tex").write_text("x")
    with pytest.raises(TrainingError, match=r"not the folder of a run \(it holds thesis\.tex\)"):
        train(config(tmp_path), tmp_path / "home", quiet=True)


def test_patience_and_minutes(tmp_path: Path) -> None:
    patient = {"max_epochs": 50, "patience": 2, "metric": "accuracy", "device": "cpu"}
    outcome = train(config(tmp_path, training=patient), tmp_path / "a", quiet=True)
    assert outcome.epochs == outcome.best[0] + 2
    assert outcome.stopped == "accuracy was not better for 2 epochs"
    short = {"max_minutes": 1e-9, "device": "cpu"}
    outcome = train(config(tmp_path, training=short), tmp_path / "b", quiet=True)
    assert (outcome.epochs, outcome.stopped) == (1, "training.max_minutes = 1e-09 reached")


def test_attention_has_no_weight_decay(tmp_path: Path) -> None:
    settings = config(tmp_path, optimizer={"weight_decay": 0.1, "amsgrad": True})
    model = Classifier(settings.model, 10, 2)
    decay, none = make_optimizer(settings, model).param_groups
    assert (decay["weight_decay"], none["weight_decay"], decay["amsgrad"]) == (0.1, 0.0, True)
    ids = {id(p) for p in none["params"]}
    assert ids == {id(p) for p in model.attention.parameters()}
    assert {id(p) for p in decay["params"]} == {id(p) for p in model.parameters()} - ids


def test_frozen_vectors_stay_and_padding_is_zero(tmp_path: Path) -> None:
    words = sorted({word for row in rows(60) for word in row["text"].split()})
    table = np.random.default_rng(0).normal(size=(len(words), 5)).astype(np.float32)
    np.savez(tmp_path / "v.npz", words=np.array(words), vectors=table)
    data = {**options(tmp_path)["data"], "vectors": str(tmp_path / "v.npz")}
    model = {"embedding": None, "freeze_embedding": True, "encoder": {"hidden": 8}}
    run = train(config(tmp_path, data=data, model=model), tmp_path / "a", quiet=True).run
    for word, vector in zip(words, table, strict=True):
        number = run.vocabulary.index[word]
        np.testing.assert_array_equal(run.model.embedding.weight[number].numpy(), vector)
    assert same(runs.load(tmp_path / "a").model, run.model)
    model = {"embedding": None, "encoder": {"hidden": 8}}
    run = train(config(tmp_path, data=data, model=model), tmp_path / "b", quiet=True).run
    number = run.vocabulary.index[words[0]]
    assert not np.allclose(run.model.embedding.weight[number].detach().numpy(), table[0])
    assert not run.model.embedding.weight[0].any()
    with pytest.raises(TrainingError, match="has vectors of size 5, got 8; leave it out"):
        train(config(tmp_path, data=data), tmp_path / "c", quiet=True)


def test_an_objective_takes_the_place_of_the_loss(tmp_path: Path) -> None:
    calls = []

    def objective(model, found, batch):
        calls.append(len(batch.rows))
        assert found.weights.shape == batch.tokens.shape
        return model.loss(found.scores, 1 - batch.labels)

    outcome = train(config(tmp_path), tmp_path / "run", quiet=True, objective=objective)
    assert sum(calls) == 4 * 120
    last = runs.load(tmp_path / "run", "last").validated
    assert last["accuracy"] < 0.1  # it learned the opposite
    assert outcome.epochs == 4


def test_class_weights_and_sums(tmp_path: Path) -> None:
    few = [row for row in rows(200, 5) if row["label"] == 0][:80]
    few += [row for row in rows(200, 6) if row["label"] == 1][:8]
    seen: list[float] = []
    for number, training in enumerate(
        ({"class_weights": "equal"}, {"class_weights": "balanced"}, {"loss": "sum"})
    ):
        settings = options(tmp_path, training={**training, "max_epochs": 1, "device": "cpu"})
        settings["data"]["train"] = [str(write(tmp_path / "few.jsonl", few))]
        settings["optimizer"] = {"lr": 1e-12}  # the model stays as it began
        train(from_dict(settings), tmp_path / str(number), quiet=True)
        seen.append(read_metrics(tmp_path / str(number) / "metrics.jsonl")[0]["train_loss"])
    equal, balanced, summed = seen
    assert summed == pytest.approx(equal, rel=1e-5)
    model = runs.load(tmp_path / "0", "last")
    data = encode(model.read([tmp_path / "few.jsonl"]).examples, model.vocabulary)
    p = predict(model.model, data).probabilities.double()
    losses = -p[torch.arange(88), data.labels].log()
    assert equal == pytest.approx(float(losses.mean()), rel=1e-4)
    weight = torch.where(data.labels == 1, 88 / (2 * 8), 88 / (2 * 80))
    assert balanced == pytest.approx(float((weight * losses).mean()), rel=1e-4)


def with_data(folder: Path, name: str, found: list[dict]) -> dict:
    settings = options(folder)
    settings["data"][name] = [str(write(folder / f"{name}-other.jsonl", found))]
    return settings


@pytest.mark.parametrize(
    ("name", "found", "error", "message"),
    [
        ("train", [{"text": "a", "label": 1}] * 3, TrainingError, "has one label, '1', in all 3"),
        ("train", [], DataError, "data.train has no text left: the files are empty"),
        ("validation", [{"text": "a", "label": 1}] * 3, TrainingError, "take accuracy, f1 or loss"),
        ("validation", [{"text": "a", "label": 7}] * 3, DataError, "label '7' is none of"),
        ("test", [{"text": "a"}], DataError, "the text has no label"),
    ],
)
def test_data_that_cannot_be_learned_from(
    tmp_path: Path, name: str, found: list[dict], error: type[Exception], message: str
) -> None:
    settings = from_dict(with_data(tmp_path, name, found))
    with pytest.raises(error) as caught:
        train(settings, tmp_path / "run", quiet=True)
    assert message in str(caught.value)


def test_one_class_can_be_validated_by_accuracy(tmp_path: Path) -> None:
    settings = with_data(tmp_path, "validation", [{"text": "a fine film", "label": 1}] * 3)
    settings["training"] |= {"metric": "accuracy", "max_epochs": 1}
    outcome = train(from_dict(settings), tmp_path / "run", quiet=True)
    assert outcome.best[1]["auc"] is None


def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path) -> None:
    def objective(model, found, batch):
        return model.loss(found.scores, batch.labels) * torch.nan

    with pytest.raises(TrainingError, match="the loss is nan at step 1"):
        train(config(tmp_path), tmp_path / "run", quiet=True, objective=objective)


def test_runs_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="there is no such folder"):
        runs.load(tmp_path / "nothing")
    train(config(tmp_path, training={"max_epochs": 1}), tmp_path / "run", quiet=True)
    with pytest.raises(TrainingError, match=r"no checkpoint .*there are best, last"):
        runs.load(tmp_path / "run", "first")
    path = tmp_path / "run/vocabulary.json"
    whole = path.read_text()
    path.write_text(whole.replace("film", "movie"))
    with pytest.raises(TrainingError, match="was trained with another vocabulary"):
        runs.load(tmp_path / "run")
    path.write_text(whole)
    config_path = tmp_path / "run/config.yaml"
    config_path.write_text(config_path.read_text().replace("hidden: 8", "hidden: 9"))
    with pytest.raises(TrainingError, match="does not fit the model"):
        runs.load(tmp_path / "run")


def test_predictions_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    run = train(config(tmp_path), tmp_path / "run", quiet=True).run
    data = encode(run.read([tmp_path / "dev.jsonl"]).examples, run.vocabulary)
    done: list[int] = []
    one = predict(run.model, data, batch=1, progress=done.append)
    all_at_once = predict(run.model, data, batch=1000)
    torch.testing.assert_close(one.probabilities, all_at_once.probabilities, rtol=0, atol=1e-6)
    assert done == list(range(1, 41))
    for weights, text in zip(one.weights, data.texts, strict=True):
        assert weights.shape == text.shape
        assert float(weights.sum()) == pytest.approx(1, abs=1e-5)


def test_a_refused_resume_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    settings = config(tmp_path, training={"max_epochs": 1})
    run = tmp_path / "run"
    train(settings, run, quiet=True)
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    longer = config(tmp_path, training={"max_epochs": 3})
    changed = rows(120, 1)
    write(tmp_path / "train.jsonl", [{"text": "zebra yak yak", "label": 1}, *changed, *changed])
    with pytest.raises(TrainingError, match="training data are not those of this run any more"):
        train(longer, run, resume=True, quiet=True)
    # the same words in the same order, and another label: the vocabulary does not tell
    changed[5] = {**changed[5], "label": 1 - changed[5]["label"]}
    write(tmp_path / "train.jsonl", changed)
    with pytest.raises(TrainingError, match="training data are not those of this run any more"):
        train(longer, run, resume=True, quiet=True)
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before
    assert runs.load(run).epoch == 1


def test_a_run_that_has_ended_takes_no_other_options(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(config(tmp_path, training={"max_epochs": 2}), run, quiet=True)
    before = (run / "config.yaml").read_bytes()
    other = config(tmp_path, training={"max_epochs": 2}, optimizer={"lr": 0.5})
    with pytest.raises(
        TrainingError, match=r"has ended after 2 .* optimizer\.lr \(0\.02, now 0\.5"
    ):
        train(other, run, resume=True, quiet=True)
    with pytest.raises(TrainingError, match=r"training\.max_epochs \(2, now 1\)"):
        train(config(tmp_path, training={"max_epochs": 1}), run, resume=True, quiet=True)
    assert (run / "config.yaml").read_bytes() == before
    same_end = config(tmp_path, training={"max_epochs": 2})
    assert train(same_end, run, resume=True, quiet=True).epochs == 2
