"""Every family: softmax at alpha = 1, sparse weights above, caches, gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.huggingface.models import DECODERS, FAMILIES, PAIRS, batch, generated, labels, make

import parsimax as px
from parsimax.attention import tiled

hf = pytest.importorskip("transformers")


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_alpha_one_is_the_model_itself(family: str, implementation: str) -> None:
    model = make(family)
    model.set_attn_implementation(implementation)
    inputs, real = batch(family)
    without = {key: value for key, value in inputs.items() if "mask" not in key}
    with torch.no_grad():
        own, own_whole = model(**inputs).logits, model(**without).logits
        px.huggingface.enable(model, alpha=1.0)
        ours, ours_whole = model(**inputs).logits, model(**without).logits
        px.huggingface.enable(model, alpha=2.0)
        sparse = model(**inputs).logits
    # float32 rounds at about 1e-6 here; the issue asks for 1e-4
    assert (ours - own)[real].abs().max() < 2e-5
    assert (ours_whole - own_whole).abs().max() < 2e-5
    assert (sparse - own)[real].abs().max() > 0.05


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_changes_nothing(family: str) -> None:
    """A text alone, and the same in a batch where it is padded."""
    model = px.huggingface.enable(make(family), alpha=1.6)
    inputs, real = batch(family)
    source = inputs["attention_mask"].bool()
    with torch.no_grad():
        together = model(**inputs).logits
        for row in range(3):
            alone = {"input_ids": inputs["input_ids"][row, source[row]][None]}
            if family in PAIRS:
                alone["decoder_input_ids"] = inputs["decoder_input_ids"][row, real[row]][None]
            if family == "gpt2":  # counts padding as places unless it is told
                alone["position_ids"] = source[row].nonzero().T
            elif family in ("bart", "marian", "bert", "modernbert") and row != 1:
                continue  # places count from the left, padding included
            elif family in PAIRS and not real[row, 0]:
                continue
            single = model(**alone).logits[0]
            assert (together[row, real[row]] - single).abs().max() < 2e-5


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("family", [*DECODERS, *PAIRS])
def test_generate_with_a_cache(family: str, cache: str) -> None:
    model = px.huggingface.enable(make(family), alpha=1.5)
    inputs, _ = batch(family)
    plain, cached = generated(model, inputs, cache)
    assert torch.equal(plain.sequences, cached.sequences)
    difference = torch.stack(plain.scores) - torch.stack(cached.scores)
    assert difference.abs().max() < 2e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_moves_every_alpha(family: str) -> None:
    model = px.huggingface.enable(make(family), alpha=1.4, learn_alpha=True).train()
    inputs, _ = batch(family)
    before = px.huggingface.alphas(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(**inputs, labels=labels(inputs)).loss.backward()
    optimizer.step()
    after = px.huggingface.alphas(model)
    assert len(after) == (6 if family in PAIRS else 2)
    for name, values in after.items():
        assert torch.allclose(before[name], torch.tensor(1.4))
        assert (values != before[name]).all(), name
        assert ((values > 1) & (values < 2)).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_at_alpha_one_are_those_of_the_model(family: str) -> None:
    """Those of T5's position bias, too."""
    model = make(family)
    inputs, real = batch(family)
    found: list[dict[str, torch.Tensor]] = []
    for _ in range(2):
        model.zero_grad()
        model(**inputs).logits[real].square().mean().backward()
        found.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
        px.huggingface.enable(model, alpha=1.0)
    own, ours = found
    assert list(ours) == list(own)
    for name, expected in own.items():
        assert torch.allclose(ours[name], expected, rtol=1e-3, atol=1e-5), name


@pytest.mark.parametrize("family", ["gpt2", "bart"])  # which compute in float64 throughout
def test_the_gradient_of_alpha(family: str) -> None:
    model = px.huggingface.enable(make(family).double(), alpha=1.5, learn_alpha=True)
    inputs, real = batch(family)
    model(**inputs).logits[real].square().mean().backward()
    name, step = next(n for n in model.state_dict() if n.endswith("parsimax_alpha.a")), 1e-6
    values = []
    for sign in (1, -1):
        other = copy.deepcopy(model)
        with torch.no_grad():
            other.get_parameter(name)[1] += sign * step
            values.append(other(**inputs).logits[real].square().mean().item())
    expected = (values[0] - values[1]) / (2 * step)
    assert abs(expected) > 1e-4
    assert model.get_parameter(name).grad[1].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_when_asked_for(family: str) -> None:
    model = make(family)
    model.set_attn_implementation("eager")
    inputs, real = batch(family)
    with torch.no_grad():
        own = model(**inputs, output_attentions=True)
        px.huggingface.enable(model, alpha=1.0)
        ours = model(**inputs, output_attentions=True)
        px.huggingface.enable(model, alpha=2.0)
        sparse = model(**inputs, output_attentions=True)
        again = model(**inputs)
    names = [name for name in own if "attentions" in name and own[name]]
    assert len(names) == (3 if family in PAIRS else 1)
    for name in names:
        rows = inputs["attention_mask"].bool() if name == "encoder_attentions" else real
        assert len(ours[name]) == len(own[name]) == 2
        for mine, theirs, few in zip(ours[name], own[name], sparse[name], strict=True):
            assert (mine - theirs).mT[
                rows.nonzero()[:, 0], :, :, rows.nonzero()[:, 1]
            ].abs().max() < 1e-5
            visible = theirs > 1e-30
            assert (few[visible] == 0).any()
            assert not few[~visible & rows[:, None, :, None]].any()
    assert (sparse.logits - again.logits)[real].abs().max() < 2e-5


def test_weights_of_every_layer_that_is_not_told() -> None:
    """GPT-2 passes the wish for weights to none of its layers."""
    sizes = {"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 48}
    model = hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, add_cross_attention=True)).eval()
    px.huggingface.enable(model)
    ids, memory = torch.arange(3, 9)[None], torch.randn(1, 5, 16)
    outputs = model(ids, encoder_hidden_states=memory, output_attentions=True)
    assert [weights.shape for weights in outputs.attentions] == [(1, 4, 6, 6)] * 2
    assert [weights.shape for weights in outputs.cross_attentions] == [(1, 4, 6, 5)] * 2
    assert model(ids, encoder_hidden_states=memory).attentions is None


def test_a_window_alone_needs_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers.masking_utils as masks

    model = px.huggingface.enable(make("mistral"), alpha=1.3)
    ids = batch("mistral")[0]["input_ids"][:1]
    with torch.no_grad():
        by_mask = model(ids, attention_mask=_band(12, 5)).logits

        def unwanted(*args: Any, **kwargs: Any) -> None:
            raise AssertionError("a mask was made")

        monkeypatch.setattr(masks, "sdpa_mask", unwanted)
        by_window = model(ids, use_cache=False).logits
    assert (by_mask - by_window).abs().max() < 1e-5


def _band(length: int, window: int) -> torch.Tensor:
    place = torch.arange(length)
    distance = place[:, None] - place
    return ((distance >= 0) & (distance < window))[None, None]


def test_packed_texts_do_not_see_each_other() -> None:
    model = px.huggingface.enable(make("llama"), alpha=1.5)
    ids = batch("llama")[0]["input_ids"][:1]
    places = torch.cat([torch.arange(5), torch.arange(7)])[None]
    with torch.no_grad():
        packed = model(ids, position_ids=places, use_cache=False).logits
        second = model(ids[:, 5:]).logits
    assert (packed[:, 5:] - second).abs().max() < 1e-5


def test_half_precision_keeps_alpha_in_float32() -> None:
    model = px.huggingface.enable(make("llama").to(torch.bfloat16), learn_alpha=True)
    assert model.model.layers[0].self_attn.parsimax_alpha.a.dtype == torch.float32
    assert model(**batch("llama")[0]).logits.dtype == torch.bfloat16


def test_compiled_training() -> None:
    model = px.huggingface.enable(make("llama"), learn_alpha=True).train()
    inputs, _ = batch("llama")
    given = {"input_ids": inputs["input_ids"], "labels": labels(inputs), "use_cache": False}
    plain = model(**given).loss
    plain.backward()
    parameter = model.model.layers[1].self_attn.parsimax_alpha.a
    expected, parameter.grad = parameter.grad, None
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)(**given).loss
    compiled.backward()
    assert compiled.item() == pytest.approx(plain.item(), abs=1e-6)
    assert torch.allclose(parameter.grad, expected, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_needs_no_matrix(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No mask has as many numbers as there are scores; T5 has its position bias."""
    model = px.huggingface.enable(make(family), alpha=1.5)
    inputs, real = batch(family)
    with torch.no_grad():
        expected = model(**inputs).logits
    seen = []

    def watched(q: Any, k: Any, v: Any, mask: Any, *rest: Any, **options: Any) -> torch.Tensor:
        assert mask is not None
        seen.append(mask.dtype == torch.bool and mask.stride(-2) != 0 and mask.shape[-2] > 1)
        return px.attention(q, k, v, mask, *rest, **options)

    monkeypatch.setattr("parsimax.huggingface.interface.attention", watched)
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits[real], expected[real])
    assert len(seen) == (6 if family in PAIRS else 2)
    assert not any(seen)


def test_a_mask_of_bytes_is_not_taken_for_padding() -> None:
    model = px.huggingface.enable(make("llama"))
    inputs, _ = batch("llama")
    own = torch.ones(3, 1, 12, 12, dtype=torch.uint8)
    with pytest.raises(TypeError, match=r"attention_mask must be bool.*uint8; use .bool\(\)"):
        model(inputs["input_ids"], attention_mask=own)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing_of_a_long_text(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tiled._LARGE, "cpu", -1)  # every text is long
    model = px.huggingface.enable(make(family), learn_alpha=True).train()
    inputs, _ = batch(family)
    found = []
    for _ in range(2):
        model.zero_grad()
        torch.manual_seed(0)
        model(**inputs, labels=labels(inputs)).loss.backward()
        grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        found.append({name: grad.clone() for name, grad in grads.items()})
        model.gradient_checkpointing_enable()
    expected, ours = found
    assert list(ours) == list(expected)
    for name, grad in expected.items():
        assert torch.allclose(ours[name], grad, rtol=1e-3, atol=1e-5), name


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("family", DECODERS)
def test_a_decoder_that_looks_both_ways(family: str, padded: bool) -> None:
    """Mistral counts a window of two sides in another way than one of one side."""
    model = make(family)
    inputs, real = batch(family)
    if not padded:
        inputs, real = {"input_ids": inputs["input_ids"]}, torch.ones_like(real)
    with torch.no_grad():
        own = model(**inputs, is_causal=False).logits
        one_way = model(**inputs).logits
        px.huggingface.enable(model, alpha=1.0)
        ours = model(**inputs, is_causal=False).logits
    assert (ours - own)[real].abs().max() < 2e-5
    assert (one_way - own)[real].abs().max() > 0.05


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
def test_an_encoder_that_is_told_to_look_back(family: str, padded: bool) -> None:
    """What transformers leaves to the mask, and to layers without one."""
    model = make(family)
    inputs, real = batch(family)
    if not padded:
        inputs, real = {"input_ids": inputs["input_ids"]}, torch.ones_like(real)
    with torch.no_grad():
        own = model(**inputs, is_causal=True).logits
        px.huggingface.enable(model, alpha=1.0)
        ours = model(**inputs, is_causal=True).logits
    assert (ours - own)[real].abs().max() < 2e-5


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_a_mask_of_whole_numbers_is_not_added_to_scores(family: str) -> None:
    model = px.huggingface.enable(make(family))
    inputs, _ = batch(family)
    ids = labels(inputs)
    name = "decoder_attention_mask" if family == "t5" else "attention_mask"
    length = ids.shape[1]
    inputs[name] = torch.ones(length, length).tril().long().expand(3, 1, -1, -1)
    with pytest.raises(TypeError, match=r"attention_mask must be bool.*int64; use .bool\(\)"):
        model(**inputs)


@pytest.mark.parametrize("family", ["bert", "llama", "mistral", "t5", "bart"])
def test_a_mask_of_three_dimensions_is_not_left_out(family: str) -> None:
    model = px.huggingface.enable(make(family))
    inputs, _ = batch(family)
    ids = labels(inputs)
    name = "decoder_attention_mask" if family in PAIRS else "attention_mask"
    length = ids.shape[1]
    inputs[name] = torch.ones(length, length).tril().bool().expand(3, -1, -1)
    shape = rf"\(3, {length}, {length}\)"
    with pytest.raises(ValueError, match=rf"attention_mask must have .*{shape}; .*mask\[:, None\]"):
        model(**inputs)


@pytest.mark.parametrize("length", [11, 14])
@pytest.mark.parametrize("family", ["bert", "modernbert", "bart"])
def test_a_mask_of_other_keys(family: str, length: int) -> None:
    """Of an encoder; the cache of a decoder says how many there are."""
    model = px.huggingface.enable(make(family))
    inputs, _ = batch(family)
    inputs["attention_mask"] = torch.ones(3, length, dtype=torch.long)
    inputs["attention_mask"][0, -1] = 0
    with pytest.raises(ValueError, match=f"layer.*places for {length} keys, and there are 12"):
        model(**inputs)
