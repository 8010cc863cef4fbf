"""One model, called by several threads, by autograd's, by a compiler and by a tracer."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from tests.huggingface.models import batch, make

import parsimax as px
from parsimax.huggingface.interface import STATE, Layer, Mine, Owner

pytest.importorskip("transformers")


@pytest.fixture
def _impatient() -> Iterator[None]:
    """Threads take turns all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def in_a_thread(function: Callable[[], object]) -> object:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    assert found, "the function raised"
    return found[0]


@pytest.mark.usefixtures("_impatient")
def test_several_threads_call_one_model() -> None:
    """Half of them ask for weights; before, some calls raised and some missed weights."""
    model = px.huggingface.enable(make("llama"))
    ids = batch("llama")[0]["input_ids"]
    with torch.no_grad():
        expected = model(ids).logits
    wrong: list[object] = []

    def call(weights: bool) -> None:
        for _ in range(60):
            try:
                with torch.no_grad():
                    made = model(ids, use_cache=False, output_attentions=weights)
                assert torch.allclose(made.logits, expected, atol=1e-5)
                assert not weights or all(each is not None for each in made.attentions)
            except (AssertionError, RuntimeError) as error:
                wrong.append(error)

    threads = [threading.Thread(target=call, args=(i % 2 == 0,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_computed_again_in_another_thread() -> None:
    """As on a GPU, where autograd has a thread of its own, in which no model is called.

    torch compares what a checkpoint keeps the second time: weights must be computed again, too.
    """
    model = px.huggingface.enable(make("llama"), learn_alpha=True).train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    ids = batch("llama")[0]["input_ids"]
    model(ids, use_cache=False)
    made = model(ids, labels=ids, use_cache=False, output_attentions=True)
    assert in_a_thread(lambda: made.loss.backward() or True)
    assert all(p.grad is not None for n, p in model.named_parameters() if "parsimax" in n)


def test_what_a_thread_asked() -> None:
    owner = Owner()
    owner.ask(True)
    in_a_thread(lambda: owner.ask(False) or True)
    assert owner.asked() is True
    assert in_a_thread(owner.asked) is False  # has asked for nothing: what was asked last
    for other in (copy.deepcopy(owner), pickle.loads(pickle.dumps(owner))):
        assert other.asked() is False
        assert other.mine is not owner.mine


def test_replicas_have_the_state_of_their_model() -> None:
    layer = px.huggingface.enable(make("llama")).model.layers[0].self_attn
    assert vars(layer._replicate_for_data_parallel())[STATE] is vars(layer)[STATE]


def test_state_that_was_pickled_before_threads_had_their_own() -> None:
    owner, layer = Owner.__new__(Owner), Layer.__new__(Layer)
    owner.__setstate__({"wants_weights": True})
    state = {"name": "x", "heads": 2, "alpha": 1.5, "called": True, "ran": True}
    layer.__setstate__({**state, "owner": owner})
    assert owner.asked() is True
    assert isinstance(layer.mine, Mine)
    assert not layer.mine.called


def test_compiled_and_not_in_turn() -> None:
    model = px.huggingface.enable(make("bert"))
    ids = batch("bert")[0]["input_ids"]
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        expected = model(ids, output_attentions=True)
        compiled(ids)
        with torch.compiler.set_stance("fail_on_recompile"):
            assert model(ids).attentions is None
            assert torch.allclose(compiled(ids).logits, expected.logits, atol=1e-5)
            model(ids, output_attentions=True)
            compiled(ids)
            assert model(ids).attentions is None
        made = compiled(ids, output_attentions=True)
    for own, weights in zip(expected.attentions, made.attentions, strict=True):
        assert torch.allclose(own, weights, atol=1e-5)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_traced_and_exported() -> None:
    """What is traced would go without the kernels, and return what memory happens to have."""
    model = px.huggingface.enable(make("bert"))
    ids = batch("bert")[0]["input_ids"]
    with pytest.raises(RuntimeError, match=r"layer\.0\.attention\.self: torch\.jit\.trace cannot"):
        torch.jit.trace(model, (ids,), strict=False)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        exported = torch.export.export(model, (ids,)).module()
        assert torch.allclose(exported(ids).logits, model(ids).logits, atol=1e-5)
