"""The benchmark of SparseMAP: what did not converge is not timed."""

import json

import pytest
import torch
from tests.oracles import structures as all_of

import parsimax as px
from parsimax.bench import structured
from parsimax.bench.structured import Case, Plan, best_score, measured_gap, plan, problem

SMALL = Plan((Case("sequence", 5, 3, (1.0, 1.0)), Case("matching", 4, 4)), batch=2, repeats=1)


def test_results_are_stored(tmp_path, capsys):
    out = tmp_path / "structured.json"
    assert structured.main(SMALL, out) == 0
    stored = json.loads(out.read_text(encoding="utf-8"))
    assert stored["batch"] == 2
    first, second = stored["rows"]
    assert first["ratio"] == pytest.approx((first["forward_ms"] + first["backward_ms"]) / 2, 1e-3)
    assert second["ratio"] is None
    assert second["gap"] <= 1e-5
    assert "two threads" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["sequence", "matching", "arborescence", "projective"])
def test_the_gap_is_measured_apart(name):
    scores, structure = problem(Case(name, 5, 5), 3, torch.Generator().manual_seed(0))
    good = px.sparsemap(scores.double(), structure)
    assert measured_gap(good, scores, structure) < 1e-9
    with pytest.warns(px.structured.ConvergenceWarning):
        bad = px.sparsemap(scores.double(), structure, max_iter=2)
    assert measured_gap(bad, scores, structure) == pytest.approx(bad.gap.max().item())


def test_the_best_score_is_the_best_of_all():
    scores = torch.randn(3, 5, 5).double()
    every = torch.from_numpy(all_of.matchings(5, 5))
    want = torch.tensordot(scores, every, dims=([1, 2], [1, 2])).max(1).values
    torch.testing.assert_close(best_score(scores, px.structured.Matching()), want)


def test_what_did_not_converge_is_not_timed(monkeypatch, capsys):
    monkeypatch.setattr(structured, "measured_gap", lambda *_: 0.5)
    assert structured.main(SMALL) == 1
    text = capsys.readouterr().out
    assert "not timed: not converged, the gap is 0.5" in text
    assert "ours is wrong: sequence 5x3" in text


def test_cases_are_chosen_by_name():
    assert [case.n for case in plan(only=["projective"]).cases] == [50]
    assert len(plan().cases) == len(structured.CASES)
    with pytest.raises(ValueError, match="only: no case has tree in its name; there are sequence"):
        plan(only=["tree"])
