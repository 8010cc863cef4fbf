"""Training curves from lines of JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from parsimax.viz.curves import Curve, Panel, curve, curves_figure, read_metrics


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 2.0}\n\n{"step": 2, "loss": 1.0}\n{"step": 3, "lo')
    assert [r["step"] for r in read_metrics(path)] == [1, 2]


@pytest.mark.parametrize("line", ["{", "3"])
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n{{"step": 2}}\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl:2: expected a JSON object"):
        read_metrics(path)


def test_curve_takes_what_has_both_and_is_finite() -> None:
    records = [
        {"step": 2, "loss": 1.0},
        {"step": 1, "loss": 2.0},
        {"step": 3},
        {"step": 4, "loss": float("nan")},
        {"loss": 9.0},
    ]
    assert curve(records, "loss", label="train") == Curve("train", (1.0, 2.0), (2.0, 1.0))
    assert curve(records, "accuracy", label="x") is None


def test_figure_names_its_panels() -> None:
    panels = [
        Panel("loss", (Curve("train", (1, 2), (2, 1)), Curve("held-out", (1, 2), (3, 2)))),
        Panel("right", (Curve("held-out", (1, 2), (0.5, 0.75)),), percent=True),
    ]
    svg = curves_figure(panels)
    for text in ("loss", "right", "train", "held-out", "%"):
        assert f">{text}<" in svg
    with pytest.raises(ValueError, match="at least one"):
        curves_figure([])
