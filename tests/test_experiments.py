"""Every config in experiments/ can be read, and says what its name says."""

from __future__ import annotations

from pathlib import Path

import pytest

from parsimax._runs.task import task_of
from parsimax.classify import config as classifiers
from parsimax.seq2seq import config

FOLDER = Path(__file__).parents[1] / "experiments"
CONFIGS = sorted(FOLDER.rglob("*.yaml"))
OUTPUTS = {"1": "softmax", "1.5": "entmax(alpha=1.5)", "2": "sparsemax"}


def test_there_are_some():
    assert len(CONFIGS) > 40


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.relative_to(FOLDER).as_posix())
def test_a_config(path):
    if task_of(path) is not None:
        model = classifiers.load(path).model
        _, encoder, attention = path.stem.split("-")
        assert model.encoder.kind == encoder
        assert {"additive": "tanh", "dot": "dot"}[model.attention.kind] == attention
        return
    read = config.load(path)
    if path.parent.name.startswith("table-1-"):
        output, attention = path.stem.split("-")
        assert (read.model.output, read.model.attention) == (OUTPUTS[output], OUTPUTS[attention])
    if path.parent.name == "table-2":
        assert read.model.output == read.model.attention == OUTPUTS[path.stem.split("-")[-1]]
