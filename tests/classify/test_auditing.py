"""A run as an audit reads it: exact pieces, gradients in evaluation mode, texts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.classify.texts import config, rows, write

from parsimax._runs.bad_rows import DataError
from parsimax.classify import auditing
from parsimax.classify.model import Classifier
from parsimax.classify.run import Run
from parsimax.classify.vocabulary import Vocabulary

TOKENS = torch.tensor([[3, 4, 5, 6], [7, 2, 0, 0]])
MASK = TOKENS != 0


def make_run(folder: Path, **sections) -> Run:
    options = config(folder, **sections)
    words = {word: None for row in rows(60) for word in row["text"].split()}
    vocabulary = Vocabulary(tuple(words), ("0", "1"))
    return Run(Classifier(options.model, len(vocabulary), 2).eval(), vocabulary, options)


@pytest.mark.parametrize("kind", ["bilstm", "transformer"])
@pytest.mark.parametrize("mapping", ["softmax", "sparsegen(lam=0.9)"])
def test_the_four_functions_are_the_model(tmp_path: Path, kind: str, mapping: str) -> None:
    encoder = {"kind": kind, **({"dim": 8} if kind == "transformer" else {"hidden": 8})}
    run = make_run(tmp_path, model={"encoder": encoder, "attention": {"mapping": mapping}})
    functions = auditing.auditable(run)
    x = functions.embed(TOKENS)
    h = functions.encode(x, MASK)
    a = functions.attend(h, MASK)
    assert not a[~MASK].any()
    found = functions.decode(h, a, MASK)
    assert torch.equal(found, run.model.probabilities(TOKENS, MASK))
    assert (x.requires_grad, functions.pad) == (False, 0)


def test_gradients_reach_inputs_and_states_and_nothing_else(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    functions = auditing.auditable(run, dtype=torch.float64)
    x = functions.embed(TOKENS).requires_grad_()
    h = functions.encode(x, MASK)
    prediction = functions.decode(h, functions.attend(h, MASK), MASK)[:, 1]
    to_x, to_h = torch.autograd.grad(prediction.sum(), (x, h))
    assert (to_x[MASK].abs().sum(-1) > 0).all()
    assert (to_h[MASK].abs().sum(-1) > 0).all()
    assert not to_x[~MASK].any()

    def whole(x: torch.Tensor) -> torch.Tensor:
        h = functions.encode(x, MASK)
        return functions.decode(h, functions.attend(h, MASK), MASK)

    assert torch.autograd.gradcheck(whole, (x,))


def test_the_audited_model_is_a_copy(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    functions = auditing.auditable(run)
    before = functions.embed(TOKENS).clone()
    with torch.no_grad():
        run.model.embedding.weight.add_(1.0)
    assert torch.equal(functions.embed(TOKENS), before)
    assert all(p.requires_grad for p in run.model.parameters())
    training = auditing.auditable(run.model.train())
    h = training.encode(training.embed(TOKENS), MASK)
    assert torch.equal(training.attend(h, MASK), training.attend(h, MASK))
    assert run.model.training


def test_texts(tmp_path: Path) -> None:
    run = make_run(tmp_path, data={"min_length": 2})
    path = write(
        tmp_path / "x.jsonl",
        [{"text": "the film nobody", "label": 1}, {"text": "a", "label": 0}, {"text": "was fine"}],
    )
    first, second = auditing.texts(run, path)
    assert first.words == ("the", "film", "nobody")
    assert list(first.tokens) == [*run.vocabulary.encode(("the", "film")), 1]
    assert (first.label, second.label) == (1, None)
    assert auditing.texts(run, [path])[0] == first


def test_texts_that_cannot_be_audited(tmp_path: Path) -> None:
    run = make_run(tmp_path, data={"min_length": 3})
    path = write(tmp_path / "x.jsonl", [{"text": "a b", "label": 1}])
    with pytest.raises(DataError, match="has no text left: 1 too short"):
        auditing.texts(run, path)
    path = write(tmp_path / "y.jsonl", [{"text": "a b c", "label": "maybe"}])
    with pytest.raises(ValueError, match=r"y\.jsonl:1: label 'maybe' is none of the model's"):
        auditing.texts(run, path)
