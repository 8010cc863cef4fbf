"""Learned alphas: their histogram, and their way through training."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from parsimax.analysis.heads import histogram, read_trajectories, trajectories


def test_histogram() -> None:
    counts, edges = histogram(torch.tensor([[1.0, 1.04], [1.5, 2.0]]), bins=10)
    assert counts.tolist() == [2, 0, 0, 0, 0, 1, 0, 0, 0, 1]
    assert edges[0] == 1.0
    assert edges[-1] == 2.0
    torch.manual_seed(0)
    values = 1 + torch.rand(50, dtype=torch.float64) ** 2
    expected = np.histogram(values.numpy(), bins=20, range=(1, 2))[0]
    assert histogram(values)[0].tolist() == expected.tolist()
    assert histogram(torch.tensor([3.0]), bins=2)[1].tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match=r"at least 1, got 0.5"):
        histogram(torch.tensor([0.5]))


def line(step: int, *values: float) -> dict[str, object]:
    return {"event": "validation", "step": step, "alphas": {"encoder": [list(values)]}}


def test_trajectories_are_in_order_and_the_later_line_counts() -> None:
    lines = [{"event": "train", "step": 1}, line(20, 1.5, 1.6), line(10, 1.1, 1.2), line(20, 2, 1)]
    found = trajectories(lines)["encoder"]
    assert found.steps.tolist() == [10, 20]
    assert found.alphas.tolist() == [[[1.1, 1.2]], [[2.0, 1.0]]]
    assert found.final.tolist() == [[2.0, 1.0]]
    with pytest.raises(ValueError, match=r"alphas of encoder at step 3: .* one size throughout"):
        trajectories([line(1, 1.5, 1.5), line(3, 1.5)])


def test_files(tmp_path: Path) -> None:
    assert read_trajectories(tmp_path / "none.jsonl") == {}
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(json.dumps(line(step, 1.5)) for step in (1, 2)) + "\n")
    assert read_trajectories(path)["encoder"].steps.tolist() == [1, 2]
    path.write_text('{"step": 1\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl:1: expected a line of JSON"):
        read_trajectories(path)
