"""What is measured on the CPU is measured there, whatever torch's default device is."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.analysis.audit.models import model, texts
from tests.analysis.heads.made import looks_at, record, uniform
from torch import Tensor

import parsimax as px
from parsimax.analysis import audit, heads
from parsimax.analysis.audit.sweep import TABLE_2_KEY, Point, Sweep
from parsimax.classify import auditing
from parsimax.classify.config import BiLSTMSettings, ModelSettings, TransformerSettings
from parsimax.classify.model import Classifier

DATA = texts([2, 3, 5, 8, 8, 13, 1, 0], vocabulary=20)
BASE, OTHER = model(mapping="sparsemax").auditable(), model(seed=1).auditable()
SENTENCES = [("▁bal", "loon", "▁ki", "te", "."), ("▁what", "▁is", "?"), ("▁I", "▁know", "▁what")]
LINES = [{"step": s, "alphas": {"encoder": [[1.5 + s / 100, 1.5]]}} for s in (10, 40)]
ALPHAS = {"encoder": torch.tensor([[1.9, 1.5]])}
WEIGHTS = uniform(4, causal=True).expand(2, 3, 4, 4)
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])


def _records() -> list[heads.AttentionRecord]:
    torch.manual_seed(0)
    found = []
    for tokens in SENTENCES:
        size = len(tokens)
        sparse = px.sparsemax(2 * torch.randn(size, size))
        found.append(record(looks_at(-1, size), sparse, tokens=tokens))
        past = uniform(size, causal=True)
        found.append(record(past, past, tokens=tokens, module="decoder", causal=True))
    return found


RECORDS = _records()


def _all_of_heads() -> object:
    lines = heads.trajectories(LINES)
    report = heads.analyse(iter(RECORDS), name="hand", alphas=ALPHAS, trajectories=lines)
    return heads.to_dict([report, report], heads.agreement([RECORDS, RECORDS]))


def _from_outputs(mask: Tensor | None) -> object:
    tokens = [list("abcd"), list("efgh") if mask is None else list("ef  ")]
    found = heads.from_outputs(SimpleNamespace(attentions=[WEIGHTS, WEIGHTS]), tokens, mask)
    return [each.overall() for each in heads.density(found).values()]


def _whole_audit() -> object:
    searches = (audit.Search(steps=5), audit.Search(steps=5, mapping="sparsemax", on_support=True))
    controls = audit.seed_control(BASE, DATA, lambda _: OTHER, [1])
    found = audit.audit(
        BASE,
        DATA,
        searches=searches,
        controls=controls,
        permutations=5,
        resamples=100,
        states_per_text=4,
    ).as_dict()
    return {key: value for key, value in found.items() if key != "seconds"}


def _importance(method: Any, target: str = "prediction", **options: Any) -> object:
    found = audit.importance(BASE, DATA[:-2], method, target=target, **options)
    return [each.tolist() for each in found]


def _on_the_way_back(encoder: BiLSTMSettings | TransformerSettings) -> object:
    """By the encoder's own gradients of hidden states."""
    torch.manual_seed(0)
    settings = ModelSettings(encoder=encoder, embedding=5)
    with torch.device("cpu"):
        functions = auditing.auditable(Classifier(settings, 20, 2), dtype=torch.float64)
    assert functions.pull is not None
    return [each.tolist() for each in audit.importance(functions, DATA[:-2], target="hidden")]


def _sweep() -> object:
    points = []
    for seed, lam in ((1, -8.0), (2, -8.0), (1, 0.0), (2, 0.0), (1, 0.5), (2, 0.9)):
        column = {"values": [0.1 * seed - lam, None, lam * seed, 0.3]}
        facts = {"config": "sst-bilstm-tanh", "data": "sst", "encoder": "bilstm", "seed": seed}
        facts |= {"mapping": f"sparsegen(lam={lam})", "accuracy": 0.8, "auc": 0.9}
        read = {"texts": 5, "kept": [0, 1, 2, 4], "columns": {TABLE_2_KEY: column}}
        points.append(Point.read(read, **facts))
    return Sweep(tuple(points)).as_dict()


KEPT = audit.LeaveOneOut("zero", "renormalised")
REPLACED = audit.LeaveOneOut("replace", replacement=3)
CASES: dict[str, Callable[[], object]] = {
    "heads": _all_of_heads,
    "agreement of any heads": lambda: [
        each.pairs for each in heads.agreement([RECORDS, RECORDS], "module")
    ],
    "histogram": lambda: [x.tolist() for x in heads.histogram(ALPHAS["encoder"])],
    "search": lambda: [each.ranking() for each in heads.search(RECORDS, ".".__eq__).values()],
    "best offset": lambda: [x.tolist() for x in heads.positional(RECORDS)["encoder"].best()],
    "outputs with padding": lambda: _from_outputs(MASK),
    "outputs without padding": lambda: _from_outputs(None),
    "audit": _whole_audit,
    "leave-one-out of inputs": lambda: _importance(KEPT),
    "leave-one-out by another token": lambda: _importance(REPLACED),
    "leave-one-out of hidden states": lambda: _importance(KEPT, source="hidden"),
    "leave-one-out to hidden states": lambda: _importance("leave_one_out", "hidden"),
    "integrated gradients": lambda: _importance("integrated_gradients"),
    "states of an LSTM": lambda: _on_the_way_back(BiLSTMSettings(hidden=3, layers=2)),
    "states of a Transformer": lambda: _on_the_way_back(
        TransformerSettings(dim=6, heads=2, layers=2, feedforward=7)
    ),
    "kendall_tau": lambda: [audit.kendall_tau([WEIGHTS[0, 0, 2]], [WEIGHTS[0, 0, 1]]).tau.tolist()],
    "sweep": _sweep,
}


@pytest.mark.parametrize("case", CASES)
def test_results_are_the_same(case: str) -> None:
    expected = CASES[case]()
    with torch.device("meta"):
        found = CASES[case]()
    assert repr(found) == repr(expected)  # numbers may be NaN
