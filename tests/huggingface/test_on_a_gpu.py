"""Every family with more keys than one tile, by the kernels that skip blocks, beside the CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.huggingface.models import DECODERS, FAMILIES, PAIRS, batch, generated, labels, make

import parsimax as px

hf = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
LENGTH = 200  # keys; from 129 on the kernels that skip blocks take over


def on_gpu(family: str) -> tuple[Any, dict[str, torch.Tensor], torch.Tensor]:
    inputs, real = batch(family, LENGTH)
    moved = {name: x.cuda() for name, x in inputs.items()}
    return make(family, positions=256).cuda(), moved, real.cuda()


@pytest.fixture(autouse=True)
def _without_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


@pytest.mark.parametrize("family", FAMILIES)
def test_alpha_one_is_the_model_itself(family: str) -> None:
    model, inputs, real = on_gpu(family)
    without = {key: value for key, value in inputs.items() if "mask" not in key}
    with torch.no_grad():
        own, own_whole = model(**inputs).logits, model(**without).logits
        px.huggingface.enable(model, alpha=1.0)
        ours, ours_whole = model(**inputs).logits, model(**without).logits
    assert (ours - own)[real].abs().max() < 1e-4
    assert (ours_whole - own_whole).abs().max() < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_gradients_are_those_of_the_cpu(family: str) -> None:
    model, inputs, real = on_gpu(family)
    px.huggingface.enable(model, alpha=1.4, learn_alpha=True)
    exact = copy.deepcopy(model).cpu()
    logits = model(**inputs).logits
    wanted = exact(**{name: x.cpu() for name, x in inputs.items()}).logits
    assert (logits.cpu() - wanted)[real.cpu()].abs().max() < 1e-3 * wanted.abs().max()
    logits[real].square().mean().backward()
    wanted[real.cpu()].square().mean().backward()
    found = {name: x.grad for name, x in model.named_parameters()}
    for name, x in exact.named_parameters():
        if x.grad is not None:
            # A bias of keys moves all scores of a query alike: its gradient is 0, and what is there
            # are roundings of terms as large as those of its weight.
            of_keys = name.endswith(("key.bias", "k_proj.bias"))
            like = exact.get_parameter(name.replace("bias", "weight")) if of_keys else x
            off = (found[name].cpu() - x.grad).norm() / like.grad.norm().clamp_min(1e-8)
            assert off < 2e-3, name


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_in_half_precision_moves_every_alpha(family: str) -> None:
    model, inputs, _ = on_gpu(family)
    px.huggingface.enable(model, alpha=1.4, learn_alpha=True).train()
    before = px.huggingface.alphas(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(**inputs, labels=labels(inputs)).loss
    loss.backward()
    optimizer.step()
    for name, values in px.huggingface.alphas(model).items():
        assert (values != before[name]).all(), name


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("family", [*DECODERS, *PAIRS])
def test_generate_with_a_cache(family: str, cache: str) -> None:
    model, inputs, _ = on_gpu(family)
    px.huggingface.enable(model, alpha=1.5)
    plain, cached = generated(model, inputs, cache)
    assert torch.equal(plain.sequences, cached.sequences)
    difference = torch.stack(plain.scores) - torch.stack(cached.scores)
    assert difference.abs().max() < 1e-4
