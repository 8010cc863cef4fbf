"""What is compiled before anything is timed, and by whom."""

from __future__ import annotations

import os

import pytest
import torch

from parsimax.bench import attention, attention_contenders, session
from parsimax.bench.ahead import Ahead
from parsimax.bench.attention_contenders import DENSE, LEARNED, OURS, SPLASH_2
from parsimax.cli import main


def _work(folder, name, ends=""):
    (folder / f"{name}-{os.getpid()}").touch()
    if ends == "raise":
        raise ArithmeticError("no such kernel")
    if ends == "die":
        os._exit(3)


def test_others_do_the_work_and_say_what_went_wrong(tmp_path):
    found = list(Ahead(_work, [(tmp_path, "a"), (tmp_path, "b", "raise")]).results())
    assert sorted(found, key=str) == ["ArithmeticError: no such kernel", None]
    assert {path.name[0] for path in tmp_path.iterdir()} == {"a", "b"}
    assert not list(tmp_path.glob(f"*-{os.getpid()}"))
    assert list(Ahead(_work, []).results()) == []


def test_a_run_goes_on_if_compiling_kills_a_process(tmp_path, capsys):
    def table(rows):
        return attention.table([])

    dying = Ahead(_work, [(tmp_path, "a", "die")])
    cases = {"one": lambda note: []}
    assert session.run("attention", "cpu", cases, table, {}, None, None, lambda _: dying) == 0
    assert "1 of 1 were not compiled ahead: BrokenProcessPool" in capsys.readouterr().out


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """What a plan for a GPU lets others compile, with nobody who would measure."""
    seen = []
    monkeypatch.setattr(session, "choose", lambda _: "cuda")
    monkeypatch.setattr(session, "run", lambda *arguments: seen.append(arguments) or 0)
    monkeypatch.setattr(attention_contenders, "contenders", _contenders)
    return seen


def _contenders(shape, device):
    own = dict.fromkeys((OURS, LEARNED))
    return {attention_contenders.CUDNN: None, **own, SPLASH_2: None}


def test_each_kind_of_problem_is_compiled_once(as_on_a_gpu):
    arguments = ["--tokens", "4096", "16384", "--sizes", "64", "--causal"]
    assert main(["bench", "attention", *arguments]) == 0
    cases, ahead = as_on_a_gpu[0][2], as_on_a_gpu[0][-1]
    assert len(cases) == 8
    items = ahead(list(cases)).items
    assert [(shape.tokens, name) for todo, shape, name in items] == [
        (tokens, name) for tokens in (16384, 4096) for name in (OURS, LEARNED, SPLASH_2)
    ]
    left = ahead([name for name in cases if "16384" in name and "90%" in name]).items
    assert [shape.tokens for _, shape, _ in left] == [16384] * 3
    assert ahead([]).items == []


def test_who_takes_no_part_compiles_nothing(as_on_a_gpu):
    assert main(["bench", "attention", "--tokens", "4096", "--only", "learned"]) == 0
    cases, ahead = as_on_a_gpu[0][2], as_on_a_gpu[0][-1]
    assert {name for _, _, name in ahead(list(cases)).items} == {LEARNED}


def test_a_contender_goes_through_all_that_is_measured(monkeypatch):
    shape = attention_contenders.Shape(1, 2, 96, 16, True, 0.0)
    todo = attention.Plan("cpu", "float32", [shape], (), 1)
    right = attention_contenders.contenders(shape, "cpu")[OURS]
    seen = []

    def attend(p):
        seen.append((p.q.shape[2], torch.is_grad_enabled()))
        return right(p)

    monkeypatch.setattr(
        attention_contenders, "contenders", lambda *_: {DENSE: right, SPLASH_2: attend}
    )
    attention.compile_kernels(todo, shape, SPLASH_2)
    assert {(96, True), (96, False)} <= set(seen)
