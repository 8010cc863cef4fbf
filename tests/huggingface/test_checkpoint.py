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


def test_enabled_again_after_training_does_not_go_back(tmp_path: Path) -> None:
    saved("gpt2", tmp_path)
    model = px.huggingface.load(hf.GPT2LMHeadModel, tmp_path)
    px.huggingface.enable(model, alpha=1.5, learn_alpha=True)
    assert torch.allclose(next(iter(px.huggingface.alphas(model).values())), torch.tensor(1.5))


def test_learned_alphas_are_not_lost_in_silence(tmp_path: Path) -> None:
    saved("gpt2", tmp_path)
    model = hf.GPT2LMHeadModel.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="pass learn_alpha=True to take them up"):
        px.huggingface.enable(model)
    fixed = px.huggingface.enable(model, alpha=1.75, restore=False)
    assert set(px.huggingface.alphas(fixed)["transformer.h.0.attn"].tolist()) == {1.75}


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
    px.huggingface.enable(pair, alpha=1.5, learn_alpha=True)  # a second time does not go back
    assert all(torch.allclose(v, torch.tensor(1.5)) for v in px.huggingface.alphas(pair).values())
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
