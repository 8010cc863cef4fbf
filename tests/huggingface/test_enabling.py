"""What is changed, what is refused, and that it can be undone."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.huggingface.models import FAMILIES, SIZE, batch, make
from torch import nn

import parsimax as px

hf = pytest.importorskip("transformers")


@pytest.mark.parametrize("family", FAMILIES)
def test_undone(family: str) -> None:
    model = make(family)
    inputs, _ = batch(family)
    hooks = _hooks(model)
    with torch.no_grad():
        own = model(**inputs).logits
        keys, config = list(model.state_dict()), model.config.to_dict()
        twin = copy.deepcopy(px.huggingface.enable(model, learn_alpha=True))
        assert len(model.state_dict()) > len(keys)
        for each in (model, twin):
            assert px.huggingface.disable(each) is each
            assert list(each.state_dict()) == keys
            assert each.config.to_dict() == config
            assert _hooks(each) == hooks
            assert torch.equal(each(**inputs).logits, own)
    assert px.huggingface.disable(model) is model  # a second time


def _hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_a_second_model_of_the_same_config_is_left_alone() -> None:
    config = hf.BertConfig(**SIZE)
    one, two = hf.BertModel(config).eval(), hf.BertModel(config).eval()
    ids = batch("bert")[0]["input_ids"]
    own = one(ids).last_hidden_state
    px.huggingface.enable(two, alpha=2.0)
    assert torch.equal(one(ids).last_hidden_state, own)
    assert config._attn_implementation == "sdpa"
    assert not hasattr(config, "parsimax")


def test_copies_and_pickles() -> None:
    model = px.huggingface.enable(make("mistral"), alpha=None, learn_alpha=True)
    inputs, _ = batch("mistral")
    expected = model(**inputs).logits
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(**inputs).logits, expected)
        with torch.no_grad():
            other.model.layers[0].self_attn.parsimax_alpha.a += 3
        assert not torch.equal(other(**inputs).logits, expected)
    assert torch.equal(model(**inputs).logits, expected)


def test_enabled_again_with_other_settings() -> None:
    model = px.huggingface.enable(make("opt"), learn_alpha=True)
    px.huggingface.enable(model, alpha=1.25, restore=False)
    assert not any("parsimax" in name for name, _ in model.named_parameters())
    assert {tuple(v.tolist()) for v in px.huggingface.alphas(model).values()} == {(1.25,) * 4}
    assert _hooks(model) == _hooks(px.huggingface.enable(make("opt")))
    px.huggingface.disable(model)
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(ValueError, match=r"expected one that px\.huggingface\.enable"):
        px.huggingface.alphas(model)


def test_models_inside_others() -> None:
    encoder = hf.BertModel(hf.BertConfig(**SIZE))
    decoder = hf.BertLMHeadModel(hf.BertConfig(**SIZE, is_decoder=True, add_cross_attention=True))
    model = hf.EncoderDecoderModel(encoder=encoder, decoder=decoder).eval()
    ids = batch("bert")[0]["input_ids"]
    own = model(input_ids=ids, decoder_input_ids=ids).logits
    holder = nn.ModuleDict({"inner": model})
    px.huggingface.enable(holder, alpha=1.0)
    ours = model(input_ids=ids, decoder_input_ids=ids).logits
    assert (ours - own).abs().max() < 2e-5
    assert len(px.huggingface.alphas(holder)) == 6


# --- what would be missed -------------------------------------------------------------------------


class _Own(nn.Module):
    def forward(self, hidden_states: Any, **kwargs: Any) -> Any:
        return hidden_states, None


def _replaced() -> Any:
    model = make("llama")
    model.model.layers[1].self_attn = _Own()
    return model


def _other_block() -> Any:
    model = make("t5")
    model.decoder.block[1] = _Own()
    return model


def _other_blocks() -> Any:
    model = make("t5")
    model.decoder.block = nn.ModuleList([_Own(), _Own()])
    return model


def _own_forward() -> Any:
    model = make("bart")
    model.model.decoder.layers[0].encoder_attn.forward = lambda *args, **kwargs: (None, None)
    return model


def _extended() -> Any:
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

    class Mine(GPT2Attention):  # type: ignore[misc]
        def forward(self, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
            return torch.softmax(hidden_states, -1), None

    model = make("gpt2")
    model.transformer.h[1].attn = Mine(model.config, layer_idx=1)
    return model


def _one_more() -> Any:
    model = make("bert")
    model.pool = nn.MultiheadAttention(16, 4)
    return model


class _Pool(nn.Module):
    """Attends, and does not say so in its name."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(states, states, states)


class _AttentivePool(nn.Module):
    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return torch.softmax(states @ states.mT, -1) @ states


def _beside(pool: type[nn.Module]) -> Any:
    model = make("bert")
    model.after = nn.Sequential(nn.Linear(16, 16), pool())
    return model


def _unknown() -> Any:
    return hf.BloomForCausalLM(hf.BloomConfig(vocab_size=9, hidden_size=8, n_layer=1, n_head=2))


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (_replaced, "model.layers.1.self_attn"),
        (_other_block, "decoder.block.1"),
        (_other_blocks, "decoder.block.0"),
        (_own_forward, "model.decoder.layers.0.encoder_attn"),
        (_extended, "transformer.h.1.attn"),
        (_one_more, "pool"),
        (lambda: _beside(_Pool), "after.1"),
        (lambda: _beside(_AttentivePool), "after.1"),
        (_unknown, "transformer.h.0.self_attention"),
    ],
)
def test_a_layer_that_would_be_missed_is_named(build: Any, name: str) -> None:
    model = build()
    with pytest.raises(ValueError, match=f"layer '{name}' would keep its own attention"):
        px.huggingface.enable(model, learn_alpha=True)
    assert model.config._attn_implementation != "parsimax"
    assert not any("parsimax" in key for key in model.state_dict())


@pytest.mark.parametrize("wrapped", [[1], [0, 1]])
def test_blocks_that_are_wrapped(wrapped: list[int]) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = make("llama")
    inputs, real = batch("llama")
    own = model(**inputs).logits
    for place in wrapped:
        model.model.layers[place] = checkpoint_wrapper(model.model.layers[place])
    px.huggingface.enable(model, alpha=1.0)
    assert (model(**inputs).logits - own)[real].abs().max() < 2e-5
    assert len(px.huggingface.alphas(px.huggingface.enable(model, learn_alpha=True))) == 2
    model(**inputs, labels=inputs["input_ids"]).loss.backward()
    grads = [p.grad for name, p in model.named_parameters() if "parsimax_alpha" in name]
    assert all(grad is not None and grad.abs().min() > 0 for grad in grads)


def test_what_does_not_attend_may_stand_beside() -> None:
    model = make("bert")
    model.after = nn.Sequential(nn.Linear(16, 2), nn.Softmax(-1), nn.LSTM(2, 2))
    assert len(px.huggingface.alphas(px.huggingface.enable(model))) == 2


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_enabled_where_no_gradients_are_wanted(mode: Any) -> None:
    model = make("llama")
    with mode():
        px.huggingface.enable(model, learn_alpha=True)
    inputs, _ = batch("llama")
    model(**inputs, labels=inputs["input_ids"]).loss.backward()
    grads = [p.grad for name, p in model.named_parameters() if "parsimax_alpha" in name]
    assert all(grad is not None and grad.abs().min() > 0 for grad in grads)


def test_a_layer_that_leaves_the_work_to_its_base() -> None:
    from transformers.models.llama.modeling_llama import LlamaAttention

    class Mine(LlamaAttention):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

    model = make("llama")
    model.model.layers[1].self_attn = Mine(model.config, layer_idx=1).eval()
    px.huggingface.enable(model)
    assert model(**batch("llama")[0]).logits.isfinite().all()


def test_a_layer_that_goes_another_way_later() -> None:
    model = px.huggingface.enable(make("roberta"))
    inputs, _ = batch("roberta")
    model(**inputs)
    model.set_attn_implementation("sdpa")
    with pytest.raises(RuntimeError, match=r"roberta\.encoder\.layer\.0\.attention\.self.*sdpa"):
        model(**inputs)


def test_a_model_without_attention() -> None:
    model = hf.MambaModel(hf.MambaConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1))
    with pytest.raises(ValueError, match="found no attention layer to change in MambaModel"):
        px.huggingface.enable(model)


def test_a_name_without_alphas() -> None:
    px.huggingface.enable(make("llama"))
    model = make("llama")
    model.set_attn_implementation("parsimax")
    with pytest.raises(RuntimeError, match=r"call px\.huggingface\.enable"):
        model(**batch("llama")[0])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"alpha": 0.5}, ValueError, "alpha must be at least 1"),
        ({"alpha": float("inf")}, ValueError, "alpha must be at least 1 and finite"),
        ({"alpha": "high"}, TypeError, "alpha must be a number"),
        ({"alpha": None}, TypeError, "alpha must be a number, got None, .* learn_alpha=True"),
        ({"alpha": torch.ones(4)}, TypeError, r"alpha must be a number, .*shape \(4,\)"),
        ({"alpha": torch.tensor(1.5)}, TypeError, r"alpha must be a number, .*shape \(\)"),
        ({"alpha": [1.5] * 2}, TypeError, r"alpha must be a number, .*got \[1\.5, 1\.5\]"),
        ({"alpha": True}, TypeError, "alpha must be a number, .*got True"),
        ({"alpha": "1.5", "learn_alpha": True}, TypeError, "alpha must be a number, .*got '1.5'"),
        ({"alpha": 2.0, "learn_alpha": True}, ValueError, "strictly between 1 and 2"),
        ({"learn_alpha": "yes"}, TypeError, "learn_alpha must be True or False"),
        ({"restore": "yes"}, TypeError, "restore must be True or False"),
    ],
)
def test_bad_settings(arguments: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        px.huggingface.enable(make("bert"), **arguments)


@pytest.mark.parametrize(("family", "name"), [("llama", "LlamaForCausalLM"), ("t5", "decoder")])
def test_a_config_that_asks_for_weights(family: str, name: str, tmp_path: Path) -> None:
    """Refused at once: transformers would refuse to save the model, after it was trained."""
    model = make(family)
    model.set_attn_implementation("eager")
    part = model.decoder if family == "t5" else model
    part.config.output_attentions = True
    inputs, _ = batch(family)
    with pytest.raises(ValueError, match=rf"config of '{name}' has output_attentions=True.*calls"):
        px.huggingface.enable(model)
    assert model.config._attn_implementation == "eager"
    part.config.output_attentions = False
    px.huggingface.enable(model)
    made = model(**inputs, output_attentions=True)
    assert all(x is not None for x in made.get("attentions", made.get("decoder_attentions")))
    model.save_pretrained(tmp_path)


@pytest.mark.parametrize("model", ["bert-base", nn.Linear(2, 2)])
def test_no_model_of_transformers(model: Any) -> None:
    with pytest.raises(TypeError, match=r"model must be .* of transformers"):
        px.huggingface.enable(model)


@pytest.mark.parametrize("function", [px.huggingface.disable, px.huggingface.alphas])
def test_no_module(function: Any) -> None:
    with pytest.raises(TypeError, match="model must be a model of transformers, got str"):
        function("bert-base")


# --- parts of models ------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["part", "whole"])
@pytest.mark.parametrize("second", ["part", "whole"])
def test_a_part_and_the_whole(first: str, second: str) -> None:
    model = make("llama")
    inputs, real = batch("llama")
    own, hooks, keys = model(**inputs).logits, _hooks(model), list(model.state_dict())
    which = {"part": model.model, "whole": model}
    px.huggingface.enable(which[first], learn_alpha=True)
    px.huggingface.enable(which[second], alpha=1.0, restore=False)
    assert list(model.state_dict()) == keys
    assert (model(**inputs).logits - own)[real].abs().max() < 2e-5
    px.huggingface.disable(which[second])
    px.huggingface.disable(model)
    assert _hooks(model) == hooks
    assert model.model.layers[0].self_attn.config._attn_implementation == "sdpa"
    assert torch.equal(model(**inputs).logits, own)


def test_two_models_of_one_holder() -> None:
    holder = nn.ModuleDict({"one": make("bert"), "two": make("bert")})
    px.huggingface.enable(holder["one"], alpha=1.25)
    px.huggingface.enable(holder["two"], alpha=1.75)
    found = {name: values[0].item() for name, values in px.huggingface.alphas(holder).items()}
    place = "bert.encoder.layer.{}.attention.self".format
    expected = {f"one.{place(i)}": 1.25 for i in range(2)}
    assert found == expected | {f"two.{place(i)}": 1.75 for i in range(2)}


def test_a_layer_beside_the_model() -> None:
    from transformers.models.bert.modeling_bert import BertLayer

    holder = nn.ModuleDict({"model": make("bert")})
    holder["more"] = BertLayer(holder["model"].config).eval()
    hidden = torch.randn(2, 5, 16)
    own = holder["more"](hidden)
    px.huggingface.enable(holder, alpha=1.0)
    assert len(px.huggingface.alphas(holder)) == 3
    assert torch.allclose(holder["more"](hidden), own, atol=1e-5)


def test_unpickled_in_another_process(tmp_path: Path) -> None:
    model = px.huggingface.enable(make("llama"), alpha=None, learn_alpha=True)
    ids = batch("llama")[0]["input_ids"]
    torch.save((model, ids, model(ids).logits.detach()), tmp_path / "model.pt")
    code = (
        "import sys, torch\n"
        "model, ids, expected = torch.load(sys.argv[1], weights_only=False)\n"
        "assert torch.allclose(model(ids).logits, expected, atol=1e-5)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "model.pt")], check=True)


def test_a_compiled_model_that_goes_another_way() -> None:
    model = px.huggingface.enable(make("llama"))
    model.set_attn_implementation("sdpa")
    torch.compiler.reset()
    with pytest.raises(RuntimeError, match=r"model\.layers\.0\.self_attn.*sdpa"):
        torch.compile(model, backend="eager")(batch("llama")[0]["input_ids"], use_cache=False)


class _AttendsItself(hf.models.llama.modeling_llama.LlamaDecoderLayer):
    def forward(self, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
        q = self.self_attn.q_proj(hidden_states)
        return hidden_states + torch.softmax(q @ q.mT, -1) @ q


class _AddsToIt(hf.models.llama.modeling_llama.LlamaDecoderLayer):
    def forward(self, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return super().forward(hidden_states, **kwargs) + 1.0


def test_a_block_that_attends_by_itself() -> None:
    inputs, _ = batch("llama")
    model = make("llama")
    model.model.layers[1] = _AddsToIt(model.config, 1).eval()
    px.huggingface.enable(model)
    model(**inputs)
    model = make("llama")
    model.model.layers[1] = _AttendsItself(model.config, 1).eval()
    px.huggingface.enable(model)
    with pytest.raises(RuntimeError, match=r"'model.layers.1' ran without .*'model.layers.1.self_"):
        model(**inputs)
    px.huggingface.disable(model)
    model(**inputs)


@pytest.mark.parametrize("family", ["bert", "t5", "llama"])
def test_a_layer_that_was_replaced_later(family: str) -> None:
    inputs, _ = batch(family)
    model, other = px.huggingface.enable(make(family)), make(family)
    name, layer = next((n, m) for n, m in other.named_modules() if n.endswith(_OWN[family]))
    at, _, key = name.rpartition(".")
    setattr(model.get_submodule(at), key, layer)
    with pytest.raises(RuntimeError, match=r"call it, and px.huggingface.enable must be"):
        model(**{key: x for key, x in inputs.items() if "mask" not in key})


_OWN = {"bert": "attention.self", "t5": "layer.0.SelfAttention", "llama": "self_attn"}
