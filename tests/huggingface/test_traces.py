"""What would be missed is found while torch.compile traces, too, and nothing else is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.huggingface.models import batch, make

import parsimax as px

hf = pytest.importorskip("transformers")
llama = hf.models.llama.modeling_llama
bart = hf.models.bart.modeling_bart
IDS = batch("llama")[0]["input_ids"]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def by_itself(layer: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    q = layer.q_proj(hidden_states)
    return layer.o_proj(torch.softmax(q @ q.mT, -1) @ q)  # type: ignore[no-any-return]


class _Block(llama.LlamaDecoderLayer):
    def forward(self, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
        return hidden_states + by_itself(self.self_attn, hidden_states)


class _Layer(llama.LlamaAttention):
    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if hidden_states.shape[1] > 4:
            return by_itself(self, hidden_states), None
        return super().forward(hidden_states, *args, **kwargs)


class _Cross(bart.BartDecoderLayer):
    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Any = None,
        encoder_hidden_states: Any = None,
        encoder_attention_mask: Any = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        made = super().forward(hidden_states, attention_mask, None, None, **kwargs)
        layer = self.encoder_attn
        weights = torch.softmax(layer.q_proj(made) @ layer.k_proj(encoder_hidden_states).mT, -1)
        return made + layer.v_proj(weights @ encoder_hidden_states)  # type: ignore[no-any-return]


def changed(block: Any = None, layer: Any = None) -> Any:
    """An enabled model whose second block, or the layer in it, is of another class."""
    model = make("llama")
    if block is not None:
        model.model.layers[1] = block(model.config, 1).eval()
    if layer is not None:
        model.model.layers[1].self_attn = layer(model.config, layer_idx=1).eval()
    return px.huggingface.enable(model)


def run(model: Any) -> None:
    model(IDS, use_cache=False)


def compiled(model: Any) -> None:
    torch.compile(model, backend="eager")(IDS, use_cache=False)


def checkpointed(model: Any) -> None:
    model.train().gradient_checkpointing_enable({"use_reentrant": False})
    torch.compile(model, backend="eager", fullgraph=True)(IDS, use_cache=False)


def exported(model: Any) -> None:
    torch.export.export(model, (IDS,), {"use_cache": False})


def each_block_compiled(model: Any) -> None:
    for block in model.model.layers:
        block.compile(backend="eager")
    run(model)


HOW = [run, compiled, checkpointed, exported]


@pytest.mark.parametrize("how", HOW)
def test_a_block_that_attends_by_itself(how: Callable[[Any], None]) -> None:
    with pytest.raises(RuntimeError, match=r"'model\.layers\.1' ran without .*layers\.1\.self_att"):
        how(changed(block=_Block))


@pytest.mark.parametrize("how", [*HOW, each_block_compiled])
def test_a_layer_that_attends_by_itself(how: Callable[[Any], None]) -> None:
    """But for short texts. Its config says nothing wrong, and neither does the message."""
    model = changed(layer=_Layer)
    model(IDS[:, :4])
    with pytest.raises(RuntimeError, match=r"'model\.layers\.1\.self_attn' ran without sp") as met:
        how(model)
    assert "the forward of _Layer did not call the attention function" in str(met.value)
    assert "expected" not in str(met.value)


@pytest.mark.parametrize("with_compile", [False, True])
def test_a_block_that_attends_to_the_encoder_by_itself(with_compile: bool) -> None:
    model = make("bart")
    model.model.decoder.layers[1] = _Cross(model.config, layer_idx=1).eval()
    px.huggingface.enable(model)
    call = torch.compile(model, backend="eager") if with_compile else model
    with pytest.raises(RuntimeError, match=r"decoder\.layers\.1' .*layers\.1\.encoder_attn' was"):
        call(IDS, decoder_input_ids=IDS, use_cache=False)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_decoder_without_an_encoder(family: str) -> None:
    """Its layers for cross-attention do not run, unless it is given something."""
    model = make(family)
    more = {"add_cross_attention": True} | ({"is_decoder": True} if family == "bert" else {})
    kind = hf.BertLMHeadModel if family == "bert" else hf.GPT2LMHeadModel
    config = model.config.to_dict() | more
    model = px.huggingface.enable(kind(type(model.config).from_dict(config)).eval())
    model(IDS)
    model(IDS, encoder_hidden_states=torch.randn(3, 5, 16))


# --- what is no mistake ---------------------------------------------------------------------------


def _module_compiled(model: Any) -> None:
    for block in model.model.layers:
        block.self_attn.compile(backend="eager")


def _module_wrapped(model: Any) -> None:
    for block in model.model.layers:
        block.self_attn = torch.compile(block.self_attn, backend="eager")


def _forward_wrapped(model: Any) -> None:
    for block in model.model.layers:
        block.self_attn.forward = torch.compile(block.self_attn.forward, backend="eager")


def _block_compiled(model: Any) -> None:
    for block in model.model.layers:
        block.compile(backend="eager")


@pytest.mark.parametrize(
    ("change", "before"),
    [
        (_module_compiled, False),
        (_module_compiled, True),
        (_module_wrapped, False),
        (_module_wrapped, True),
        (_forward_wrapped, False),
        (_block_compiled, False),
    ],
)
def test_parts_are_compiled(change: Callable[[Any], None], before: bool) -> None:
    model = make("llama")
    expected = px.huggingface.enable(make("llama"))(IDS, use_cache=False).logits
    if before:
        change(model)
    px.huggingface.enable(model)
    if not before:
        change(model)
    assert torch.allclose(model(IDS, use_cache=False).logits, expected, atol=1e-5)
    with torch.compiler.set_stance("fail_on_recompile"):
        assert torch.allclose(model(IDS, use_cache=False).logits, expected, atol=1e-5)


@pytest.mark.parametrize("change", [_module_compiled, _block_compiled])
def test_layers_share_compiled_code(change: Callable[[Any], None]) -> None:
    model = px.huggingface.enable(make("llama"))
    counted = torch._dynamo.utils.counters["stats"]
    change(model)
    before = counted["unique_graphs"]
    run(model)
    assert counted["unique_graphs"] == before + 1


@pytest.mark.parametrize("checkpoint", [None, False, True])
def test_trained_by_several_threads(checkpoint: bool | None) -> None:
    model = px.huggingface.enable(make("llama"), learn_alpha=True).train()
    given = {"input_ids": IDS, "labels": IDS, "use_cache": False}
    model(**given).loss.backward()
    learned = [p for name, p in model.named_parameters() if "parsimax" in name]
    expected = [p.grad.clone() for p in learned]
    if checkpoint is not None:
        model.gradient_checkpointing_enable({"use_reentrant": checkpoint})
    call = torch.compile(model, backend="aot_eager", fullgraph=checkpoint is not True)
    model.zero_grad()
    call(**given).loss.backward()
    for parameter, grad in zip(learned, expected, strict=True):
        assert torch.allclose(parameter.grad, grad, atol=1e-5)
    wrong: list[Exception] = []

    def go() -> None:
        try:
            call(**given).loss.backward()
        except (AssertionError, RuntimeError) as error:
            wrong.append(error)

    with torch.compiler.set_stance("fail_on_recompile"):
        threads = [threading.Thread(target=go) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


class _Broken(llama.LlamaAttention):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        torch._dynamo.graph_break()
        made = super().forward(*args, **kwargs)
        torch._dynamo.graph_break()
        return made


class _BrokenBlock(llama.LlamaDecoderLayer):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        torch._dynamo.graph_break()
        made = super().forward(*args, **kwargs)
        torch._dynamo.graph_break()
        return made


@pytest.mark.parametrize("kinds", [{"layer": _Broken}, {"block": _BrokenBlock}])
def test_graphs_that_break(kinds: Any) -> None:
    model = changed(**kinds)
    call = torch.compile(model, backend="eager")
    with torch.no_grad():
        for length in (12, 6, 9):
            ids = IDS[:, :length]
            assert torch.allclose(call(ids).logits, model(ids).logits, atol=1e-5)


class _Region(llama.LlamaDecoderLayer):
    forward = torch.compiler.nested_compile_region(llama.LlamaDecoderLayer.forward)


def test_blocks_that_are_traced_once() -> None:
    sizes = make("llama").config.to_dict() | {"num_hidden_layers": 5}
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**sizes)).eval()
    for place in range(5):
        model.model.layers[place] = _Region(model.config, place).eval()
    run(px.huggingface.enable(model))
    compiled(model)
