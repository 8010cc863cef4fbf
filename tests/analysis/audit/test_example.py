"""The documented example runs, and finds what was put into its texts."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "experiments" / "audits" / "own_model.py"


def test_own_model(tmp_path, monkeypatch, capsys):
    arguments = ["--out", str(tmp_path), "--texts", "60", "--epochs", "12", "--steps", "20"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    printed = capsys.readouterr().out
    assert "Do predictions depend on the weights at all?" in printed
    result = json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))
    assert result["quality"]["accuracy"] > 0.8
    assert [control["kind"] for control in result["controls"]] == ["seed", "seed"]
    means = {(r["measure"], r["subject"], r["reference"]): r["mean"] for r in result["table"]}
    # words that decide are what leave-one-out finds, and removing them undoes the decision
    found = means["comprehensiveness", "leave_one_out:inputs", ""]
    assert found > means["comprehensiveness", "random", ""] + 0.1
    assert (tmp_path / "texts.csv").read_text(encoding="utf-8").count("\n") == 61
