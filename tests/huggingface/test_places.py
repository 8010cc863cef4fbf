"""Where learned alphas go if a layer has no parameters, or has them elsewhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.huggingface.models import batch, make
from torch import nn

import parsimax as px

pytest.importorskip("transformers")


def places(model: nn.Module) -> set[tuple[str, torch.dtype]]:
    named = model.named_parameters()
    return {(str(x.device), x.dtype) for name, x in named if "parsimax" in name}


class _OfBuffers(nn.Module):
    """As layers of 4 bits are: what they compute with is no parameter."""

    def __init__(self, linear: nn.Linear, kept: dict[str, torch.dtype]) -> None:
        super().__init__()
        self.out = [linear]  # not registered
        for name, dtype in kept.items():
            self.register_buffer(name, torch.zeros(3, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.out[0](x)
        return made


@pytest.mark.parametrize(
    ("kept", "dtype"),
    [
        ({}, torch.float64),  # nothing: that of the model
        ({"packed": torch.int32}, torch.float32),
        ({"packed": torch.int32, "scales": torch.float16}, torch.float32),
        ({"packed": torch.int32, "scales": torch.float64}, torch.float64),
    ],
)
def test_a_layer_without_parameters(kept: dict[str, torch.dtype], dtype: torch.dtype) -> None:
    model = make("bert").double()
    for layer in model.bert.encoder.layer:
        own = layer.attention.self
        for name in ("query", "key", "value"):
            setattr(own, name, _OfBuffers(getattr(own, name), kept))
        assert next(own.parameters(), None) is None
    px.huggingface.enable(model, learn_alpha=True)
    assert places(model) == {("cpu", dtype)}
    model(**batch("bert")[0]).logits.sum().backward()
    assert all(p.grad is not None for n, p in model.named_parameters() if "parsimax" in n)


def _offloaded(model: Any, hook: Any) -> Any:
    """Its parameters are brought only while a layer runs, as accelerate does."""
    for layer in model.model.layers:
        layer.self_attn.to("meta")
        layer.self_attn.q_proj._hf_hook = hook
    return model


@pytest.mark.parametrize("several", [False, True])
def test_a_layer_that_is_offloaded(several: bool) -> None:
    hook = SimpleNamespace(execution_device="cpu")
    model = _offloaded(make("llama"), SimpleNamespace(hooks=[hook]) if several else hook)
    px.huggingface.enable(model, learn_alpha=True)
    assert places(model) == {("cpu", torch.float32)}


def test_a_layer_that_does_not_say_where_it_runs() -> None:
    model = px.huggingface.enable(_offloaded(make("llama"), None), alpha=1.25)
    with pytest.raises(ValueError, match=r"'model\.layers\.0\.self_attn' are on the meta device"):
        px.huggingface.enable(model, learn_alpha=True)
    assert px.huggingface.alphas(model)["model.layers.0.self_attn"][0] == 1.25  # as it was


def test_a_model_that_is_nowhere_yet() -> None:
    model = px.huggingface.enable(make("llama").to("meta"), learn_alpha=True)
    assert places(model) == {("meta", torch.float32)}


def test_really_offloaded() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = accelerate.cpu_offload(make("llama"), execution_device=torch.device("cpu"))
    px.huggingface.enable(model, learn_alpha=True)
    inputs, _ = batch("llama")
    expected = px.huggingface.enable(make("llama"), alpha=1.5)(**inputs).logits
    assert torch.allclose(model(**inputs).logits, expected, atol=1e-5)
