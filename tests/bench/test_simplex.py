"""The benchmark of fusedmax, oscarmax and the constrained mappings: checked first, then timed."""

import json

import numpy as np
import pytest
import torch
from tests.oracles import rows

import parsimax as px
from parsimax.bench import simplex, simplex_gate

every_mapping = pytest.mark.parametrize("mapping", simplex.MAPPINGS)


def test_results_are_stored_with_recorded_figures(tmp_path, capsys):
    out = tmp_path / "simplex.json"
    assert simplex.main(simplex.Plan(rows=64, columns=(50, 13), repeats=1), out) == 0
    stored = json.loads(out.read_text(encoding="utf-8"))
    assert (stored["clock"], stored["threads"]) == ("process", 1)
    assert [row["mapping"] for row in stored["rows"]] == [m for m in simplex.MAPPINGS for _ in "12"]
    for row in stored["rows"]:
        assert row["refused"] is None
        assert row["backward_ms"] > 0
        known = simplex.RECORDED[row["mapping"]].get(row["shape"][1])
        assert row["recorded_forward_ms"] == (known[0] if known else None)
    assert "recorded" in capsys.readouterr().out


@every_mapping
def test_what_is_wrong_is_not_timed(mapping, monkeypatch, tmp_path, capsys):
    right = getattr(px, mapping)
    monkeypatch.setattr(px, mapping, lambda *given: right(*given).roll(1, -1), raising=False)
    todo = simplex.Plan([mapping], 4, (20,), 1)
    assert simplex.main(todo, tmp_path / "x.json") == 1
    assert f"ours is wrong: {mapping} 4x20: off by" in capsys.readouterr().out
    monkeypatch.setattr(px, mapping, lambda z, *u: right(z, *u) + (z - z.detach()), raising=False)
    assert "a gradient is off by" in simplex.check(mapping, simplex.draw(4, 20))


@every_mapping
def test_the_gate_is_the_definition(mapping):
    inputs = simplex.draw(3, 40)
    found = simplex_gate.expect(mapping, inputs.z.detach(), inputs.upper.detach())
    for z, upper, p in zip(inputs.z.detach(), inputs.upper.detach(), found, strict=True):
        bounds = {"upper": upper.double().numpy()} if mapping.startswith("constrained") else {}
        strength = {} if bounds else {"lam": 0.1 if mapping == "fusedmax" else 0.01}
        expected = getattr(rows, mapping)(z.double().numpy(), **bounds, **strength)
        assert np.abs(p.numpy() - expected).max() < 1e-12
    assert torch.equal(simplex.draw(3, 40).z, inputs.z)
