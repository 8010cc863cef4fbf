"""Options of classifiers: what is read, written again, and refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.classify.texts import options

from parsimax._runs.config_reader import ConfigError
from parsimax._runs.task import is_classifier, task_of
from parsimax.classify import config


def test_a_config_can_be_written_and_read_again(tmp_path: Path) -> None:
    first = config.from_dict(options(tmp_path, model={"encoder": {"kind": "transformer"}}))
    path = tmp_path / "config.yaml"
    path.write_text(first.to_yaml())
    assert config.load(path) == first
    assert is_classifier(tmp_path)
    changed = config.load(path, ["--model.attention.mapping", "entmax(alpha=1.3)"])
    assert changed.model.attention.mapping == "entmax(alpha=1.3)"


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {"encoder": {"kind": "gru"}}}, "model.encoder.kind: expected one of bilstm"),
        ({"model": {"attention": {"mapping": "sparsmax"}}}, "did you mean 'sparsemax'?"),
        ({"model": {"attention": {"maping": "softmax"}}}, "did you mean model.attention.mapping?"),
        ({"model": {"attention": {"kind": "dot", "query": "none"}}}, "dot attention compares"),
        (
            {"model": {"encoder": {"kind": "transformer"}, "attention": {"query": "final"}}},
            "of a transformer take mean",
        ),
        (
            {"model": {"encoder": {"kind": "transformer", "dim": 10}}},
            "model.encoder.dim: expected a multiple of model.encoder.heads = 4, got 10",
        ),
        ({"model": {"freeze_embedding": True}}, "set data.vectors"),
        ({"model": {"output": "budget(k=2)"}}, "model.output: expected a mapping whose"),
        ({"data": {"max_length": 2, "min_length": 3}}, "expected at least data.min_length = 3"),
        ({"training": {"batch_size": 3}}, "did you mean training.batch?"),
        ({"training": {"metric": "accurate"}}, "did you mean accuracy?"),
        ({"optimizer": {"lr": 0}}, "optimizer.lr: expected more than 0, got 0"),
    ],
)
def test_mistakes(tmp_path: Path, sections, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.from_dict(options(tmp_path, **sections))
    assert message in str(caught.value)


def test_the_task_of_a_config(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("seed: 1\n")
    assert task_of(path) is None
    assert task_of(path, ["--task", "classification"]) == "classification"
    assert not is_classifier(tmp_path)
    assert not is_classifier(tmp_path / "nothing")
    path.write_text("seed: 1\ntask: clasification\n")
    with pytest.raises(ConfigError, match=r"line 2: task: expected classification, or no task"):
        task_of(path)
