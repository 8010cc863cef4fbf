"""Training curves from lines of JSON."""

from __future__ import annotations

import pytest

from parsimax.viz.curves import Curve, Panel, curve, curves_figure


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
        Panel("on a log scale", (Curve("train", (1, 2), (10, 0.1)),), logarithmic=True),
        Panel("zero has no log", (Curve("train", (1, 2), (10, 0.0)),), logarithmic=True),
        Panel("right", (Curve("held-out", (1, 2), (0.5, 0.75)),), percent=True),
    ]
    svg = curves_figure(panels)
    for text in ("loss", "right", "train", "held-out", "%"):
        assert f">{text}<" in svg
    with pytest.raises(ValueError, match="at least one"):
        curves_figure([])
