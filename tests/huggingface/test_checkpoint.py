"""Alphas survive being saved and loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.huggingface.models import FAMILIES, SIZE, batch, make

import parsimax as px

hf = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    hf.logging.disable_progress_bar()
    hf.logging.set_verbosity_error()


def saved(family: str, folder: Path, **kwargs: Any) -> Any:
    torch.manual_seed(3)
    model = px.huggingface.enable(make(family), alpha=None, learn_alpha=True)
    model.save_pretrained(folder, **kwargs)
    return model


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return list(one) == list(two) and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_and_loaded(family: str, tmp_path: Path) -> None:
    model = saved(family, tmp_path)
    loaded = px.huggingface.load(type(model), tmp_path).eval()
    by_hand = type(model).from_pretrained(tmp_path).eval()
    px.huggingface.enable(by_hand, learn_alpha=True)
    inputs, _ = batch(family)
    expected = model(**inputs).logits
    for other in (loaded, by_hand):
        assert same(px.huggingface.alphas(other), px.huggingface.alphas(model))
        assert torch.equal(other(**inputs).logits, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_state_dict(family: str) -> None:
    torch.manual_seed(3)
    model = px.huggingface.enable(make(family), alpha=None, learn_alpha=True)
    other = px.huggingface.enable(make(family), learn_alpha=True)
    assert not same(px.huggingface.alphas(other), px.huggingface.alphas(model))
    other.load_state_dict(model.state_dict())
    assert same(px.huggingface.alphas(other), px.huggingface.alphas(model))


def test_in_many_files_and_by_an_auto_class(tmp_path: Path) -> None:
    model = saved("llama", tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    loaded = px.huggingface.load(hf.AutoModelForCausalLM, tmp_path)
    assert same(px.huggingface.alphas(loaded), px.huggingface.alphas(model))


def test_the_model_inside_another(tmp_path: Path) -> None:
    """Saved with a head and loaded without, and the other way round."""
    model = saved("bert", tmp_path / "whole")
    base = px.huggingface.load(hf.BertModel, tmp_path / "whole")
    found = list(px.huggingface.alphas(base).values())
    expected = list(px.huggingface.alphas(model).values())
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    base.save_pretrained(tmp_path / "base")
    again = px.huggingface.load(hf.BertForSequenceClassification, tmp_path / "base")
    assert same(px.huggingface.alphas(again), px.huggingface.alphas(model))


def test_settings_are_in_the_config(tmp_path: Path) -> None:
    px.huggingface.enable(make("opt"), alpha=1.25).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert written["parsimax"] == {"alpha": 1.25, "learn_alpha": False}
    loaded = px.huggingface.load(hf.OPTForCausalLM, tmp_path)
    assert {tuple(v.tolist()) for v in px.huggingface.alphas(loaded).values()} == {(1.25,) * 4}


def parameters(model: Any) -> dict[str, torch.nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if "parsimax" in name}


def test_enabled_again_after_training_does_not_go_back(tmp_path: Path) -> None:
    """Neither to the files nor to the start; an optimizer made before has the same parameters."""
    saved("gpt2", tmp_path)
    model = px.huggingface.load(hf.GPT2LMHeadModel, tmp_path)
    before = parameters(model)
    with torch.no_grad():
        for parameter in before.values():
            parameter += 1
    trained = px.huggingface.alphas(model)
    for how in ({}, {"alpha": 1.5}):
        px.huggingface.enable(model, learn_alpha=True, **how)
        assert same(px.huggingface.alphas(model), trained)
        assert all(p is before[name] for name, p in parameters(model).items())
    model.save_pretrained(tmp_path / "again")
    again = px.huggingface.load(hf.GPT2LMHeadModel, tmp_path / "again")
    assert same(px.huggingface.alphas(again), trained)


def test_learned_alphas_are_kept_or_it_raises() -> None:
    torch.manual_seed(3)
    model = px.huggingface.enable(make("gpt2"), alpha=None, learn_alpha=True)
    learned = px.huggingface.alphas(model)
    with pytest.raises(
        ValueError, match=r"transformer\.h\.0\.attn has learned.*restore=False to d"
    ):
        px.huggingface.enable(model, alpha=1.3)
    for start in (1.3, None):
        with pytest.raises(ValueError, match=r"would not start at .*restore=False to start anew"):
            px.huggingface.enable(model, alpha=start, learn_alpha=True)
    assert same(px.huggingface.alphas(model), learned)
    px.huggingface.enable(model, alpha=1.25, learn_alpha=True, restore=False)
    assert all(torch.allclose(x, torch.tensor(1.25)) for x in px.huggingface.alphas(model).values())
    px.huggingface.enable(px.huggingface.disable(model), alpha=1.75)
    assert not parameters(model)


@pytest.mark.parametrize("order", [["encoder", ""], ["", "decoder"]])
def test_learned_alphas_of_parts_are_kept(order: list[str]) -> None:
    model = make("t5")
    first, second = (model.get_submodule(name) for name in order)
    torch.manual_seed(3)
    px.huggingface.enable(first, alpha=None, learn_alpha=True)
    learned, before = px.huggingface.alphas(model), parameters(model)
    px.huggingface.enable(second, learn_alpha=True)
    now = px.huggingface.alphas(model)
    assert same({name: now[name] for name in learned}, learned)
    assert all(parameters(model)[name] is p for name, p in before.items())
    assert all(torch.allclose(now[name], torch.tensor(1.5)) for name in set(now) - set(learned))


def test_a_layer_of_two_blocks_keeps_its_alphas() -> None:
    model = make("llama")
    model.model.layers[1].self_attn = model.model.layers[0].self_attn
    torch.manual_seed(3)
    px.huggingface.enable(model, alpha=None, learn_alpha=True)
    learned, before = px.huggingface.alphas(model), parameters(model)
    px.huggingface.enable(model, learn_alpha=True)
    assert same(px.huggingface.alphas(model), learned)
    assert all(p is before[name] for name, p in parameters(model).items())
    assert model(**batch("llama")[0]).logits.isfinite().all()


def values(model: Any) -> set[float]:
    return {x for each in px.huggingface.alphas(model).values() for x in each.tolist()}


def test_a_fixed_alpha_is_taken_up(tmp_path: Path) -> None:
    px.huggingface.enable(make("opt"), alpha=1.75).save_pretrained(tmp_path)
    found = {}
    for key, how in {
        "nothing": {},
        "given": {"alpha": 1.5},
        "anew": {"restore": False},
        "learned": {"learn_alpha": True},
        "learned anew": {"learn_alpha": True, "restore": False},
    }.items():
        model = hf.OPTForCausalLM.from_pretrained(tmp_path)
        px.huggingface.enable(model, **how)  # type: ignore[arg-type]
        found[key] = values(model)
        assert model.config.parsimax["alpha"] == next(iter(found[key]))
    one = {"nothing": {1.75}, "given": {1.5}, "anew": {1.5}, "learned": {1.75}}
    assert found == one | {"learned anew": {1.5}}
    part = hf.OPTForCausalLM.from_pretrained(tmp_path)
    px.huggingface.enable(part.model.decoder)
    assert values(part) == {1.75}


def test_a_fixed_alpha_that_cannot_be_taken_up(tmp_path: Path) -> None:
    model = px.huggingface.enable(make("t5"), alpha=2.0)
    model.save_pretrained(tmp_path / "one")
    fresh = hf.T5ForConditionalGeneration.from_pretrained(tmp_path / "one")
    with pytest.raises(ValueError, match=r"saved with alpha=2\.0, where no learned .*pass alpha"):
        px.huggingface.enable(fresh, learn_alpha=True)
    assert values(px.huggingface.enable(fresh)) == {2.0}  # a second try, without learning
    px.huggingface.enable(model.encoder, alpha=1.25)
    model.save_pretrained(tmp_path / "two")
    fresh = hf.T5ForConditionalGeneration.from_pretrained(tmp_path / "two")
    with pytest.raises(ValueError, match=r"settings of their own for its parts; load it with"):
        px.huggingface.enable(fresh)
    assert values(px.huggingface.enable(fresh, alpha=1.75)) == {1.75}


def test_halves_that_were_saved_with_other_alphas(tmp_path: Path) -> None:
    expected: dict[str, float] = {"encoder": 1.25, "decoder": 1.75}
    for name, alpha in expected.items():
        more = {"is_decoder": True, "add_cross_attention": True} if name == "decoder" else {}
        kind = hf.BertLMHeadModel if more else hf.BertModel
        px.huggingface.enable(kind(hf.BertConfig(**SIZE, **more)), alpha).save_pretrained(
            tmp_path / name
        )
    folders = [tmp_path / name for name in expected]
    pair = hf.EncoderDecoderModel.from_encoder_decoder_pretrained(*folders)
    px.huggingface.enable(pair).save_pretrained(tmp_path / "pair")
    loaded = px.huggingface.load(hf.EncoderDecoderModel, tmp_path / "pair")
    for model in (pair, loaded):
        for name, found in px.huggingface.alphas(model).items():
            assert set(found.tolist()) == {expected[name.partition(".")[0]]}


# --- settings of what is not enabled --------------------------------------------------------------


def test_disabled_before_it_was_enabled(tmp_path: Path) -> None:
    """What a file says is over, and the attention that is saved is softmax."""
    px.huggingface.enable(make("opt"), alpha=1.75).save_pretrained(tmp_path / "one")
    model = hf.OPTForCausalLM.from_pretrained(tmp_path / "one")
    other = hf.OPTForCausalLM(model.config)
    px.huggingface.disable(model).save_pretrained(tmp_path / "two")
    assert "parsimax" not in (tmp_path / "two" / "config.json").read_text(encoding="utf-8")
    assert other.config.parsimax == {"alpha": 1.75, "learn_alpha": False}  # shared before
    with pytest.raises(ValueError, match="was not saved with sparse attention"):
        px.huggingface.load(hf.OPTForCausalLM, tmp_path / "two")
    assert values(px.huggingface.enable(model)) == {1.5}


def test_a_model_of_the_config_of_an_enabled_one(tmp_path: Path) -> None:
    enabled = px.huggingface.enable(make("opt"))
    model = px.huggingface.disable(hf.OPTForCausalLM(enabled.config))
    model.set_attn_implementation("sdpa")
    model.save_pretrained(tmp_path)
    assert "parsimax" not in (tmp_path / "config.json").read_text(encoding="utf-8")
    assert enabled.config.parsimax["alpha"] == 1.5
    assert enabled.config._attn_implementation == "parsimax"


def test_learned_alphas_are_not_lost_in_silence(tmp_path: Path) -> None:
    saved("gpt2", tmp_path)
    model = hf.GPT2LMHeadModel.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="pass learn_alpha=True to take them up"):
        px.huggingface.enable(model)
    fixed = px.huggingface.enable(model, alpha=1.75, restore=False)
    assert set(px.huggingface.alphas(fixed)["transformer.h.0.attn"].tolist()) == {1.75}


def test_layers_that_no_file_has(tmp_path: Path) -> None:
    """Cross-attention that a decoder gets when it is put after an encoder starts anew."""
    whole = {half: saved(half, tmp_path / half) for half in ("bert", "gpt2")}
    paths = [str(tmp_path / half) for half in whole]
    model = hf.EncoderDecoderModel.from_encoder_decoder_pretrained(*paths)
    px.huggingface.enable(model, learn_alpha=True)
    found = px.huggingface.alphas(model)
    for half, prefix in (("bert", "encoder."), ("gpt2", "decoder.")):
        for name, alpha in px.huggingface.alphas(whole[half]).items():
            assert torch.equal(found.pop(prefix + name.removeprefix("bert.")), alpha)
    assert [name.rpartition(".")[2] for name in found] == ["crossattention"] * 2
    assert all(set(alpha.tolist()) == {1.5} for alpha in found.values())


def test_layers_that_may_be_in_the_file_by_another_name(tmp_path: Path) -> None:
    """transformers does not find them either; their alphas are not dropped in silence."""
    config = hf.LlamaConfig(**SIZE)
    model = px.huggingface.enable(hf.LlamaForQuestionAnswering(config), learn_alpha=True)
    model.save_pretrained(tmp_path)
    other = hf.LlamaForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"model\.layers\.0\.self_attn: found no saved alphas"):
        px.huggingface.enable(other, learn_alpha=True)


def test_files_that_are_gone(tmp_path: Path) -> None:
    saved("gpt2", tmp_path / "folder")
    model = hf.GPT2LMHeadModel.from_pretrained(tmp_path / "folder")
    (tmp_path / "folder" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"transformer\.h\.0\.attn: found no saved alphas"):
        px.huggingface.enable(model, learn_alpha=True)
    (tmp_path / "folder").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"is no folder here.*px\.huggingface\.load"):
        px.huggingface.enable(model, learn_alpha=True)


def test_a_model_saved_without(tmp_path: Path) -> None:
    make("opt").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="was not saved with sparse attention"):
        px.huggingface.load(hf.OPTForCausalLM, tmp_path)


def test_parts_that_were_saved_alone(tmp_path: Path) -> None:
    torch.manual_seed(3)
    both = {"encoder": {}, "decoder": {"is_decoder": True, "add_cross_attention": True}}
    expected: dict[str, torch.Tensor] = {}
    for name, more in both.items():
        part = hf.BertLMHeadModel if more else hf.BertModel
        model = part(hf.BertConfig(**SIZE, **more))
        px.huggingface.enable(model, alpha=None, learn_alpha=True).save_pretrained(tmp_path / name)
        expected |= {f"{name}.{k}": v for k, v in px.huggingface.alphas(model).items()}
    folders = [tmp_path / name for name in both]
    pair = hf.EncoderDecoderModel.from_encoder_decoder_pretrained(*folders)
    with pytest.raises(ValueError, match=r"encoder' was saved with learned alphas"):
        px.huggingface.enable(pair)
    px.huggingface.enable(pair, learn_alpha=True)
    assert same(px.huggingface.alphas(pair), expected)
    for part in (pair, pair.decoder):  # a second time goes back neither to files nor to the start
        with torch.no_grad():
            pair.encoder.encoder.layer[0].attention.self.parsimax_alpha.a += 1
        expected = px.huggingface.alphas(pair)
        px.huggingface.enable(part, learn_alpha=True)
        assert same(px.huggingface.alphas(pair), expected)
    pair.save_pretrained(tmp_path / "pair")
    again = px.huggingface.load(hf.EncoderDecoderModel, tmp_path / "pair")
    assert same(px.huggingface.alphas(again), px.huggingface.alphas(pair))


def test_loading_info_is_passed_on(tmp_path: Path) -> None:
    model = saved("bert", tmp_path)
    loaded, info = px.huggingface.load(hf.BertForMaskedLM, tmp_path, output_loading_info=True)
    assert same(px.huggingface.alphas(loaded), px.huggingface.alphas(model))
    assert not info["missing_keys"]


def test_what_load_cannot_find(tmp_path: Path) -> None:
    saved("gpt2", tmp_path / "one")
    hf.GPT2LMHeadModel.from_pretrained(tmp_path / "one").save_pretrained(tmp_path / "two")
    with pytest.raises(ValueError, match=r"no saved alphas.*use from_pretrained and enable"):
        px.huggingface.load(hf.GPT2LMHeadModel, tmp_path / "two")


def test_a_config_without_settings_is_given(tmp_path: Path) -> None:
    px.huggingface.enable(make("opt"), alpha=1.75).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="config: the config that was given has no settings"):
        px.huggingface.load(hf.OPTForCausalLM, tmp_path, config=make("opt").config)
    config = hf.AutoConfig.from_pretrained(tmp_path)
    assert values(px.huggingface.load(hf.OPTForCausalLM, tmp_path, config=config)) == {1.75}


def test_load_needs_a_class() -> None:
    with pytest.raises(TypeError, match=r"model_class must be a class .* got 'BertModel'"):
        px.huggingface.load("BertModel", "folder")
