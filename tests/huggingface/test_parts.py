"""Parts of a model with settings of their own, and what is saved of them."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.huggingface.models import SIZE, batch, make

import parsimax as px

hf = pytest.importorskip("transformers")
PARTS = [
    ("bart", "model.encoder"),
    ("bart", "model.decoder"),
    ("marian", "model.decoder"),
    ("t5", "encoder"),
    ("t5", "decoder"),
    ("bert", "bert"),
    ("opt", "model.decoder"),
]


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    hf.logging.disable_progress_bar()
    hf.logging.set_verbosity_error()


def alphas(model: Any) -> dict[str, list[float]]:
    return {name: values.tolist() for name, values in px.huggingface.alphas(model).items()}


def saved(model: Any, folder: Path) -> Any:
    """What is loaded after it was saved."""
    model.save_pretrained(folder)
    return px.huggingface.load(type(model), folder).eval()


def learned(model: Any) -> Any:
    torch.manual_seed(3)
    return px.huggingface.enable(model, alpha=None, learn_alpha=True)


# --- changed --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "name"), PARTS)
def test_a_part_is_disabled(family: str, name: str) -> None:
    """The halves of BART share one config; the other half goes on as it was."""
    model, other = make(family), make(family)
    inputs, _ = batch(family)
    own = model(**inputs).logits
    px.huggingface.enable(model, alpha=1.7)
    whole, layers = model(**inputs).logits, alphas(model)
    px.huggingface.disable(model.get_submodule(name))
    rest = {key: x for key, x in layers.items() if not key.startswith(f"{name}.")}
    if rest:
        assert alphas(model) == rest
        half = name.replace(*("encoder", "decoder")[:: 1 if name.endswith("encoder") else -1])
        px.huggingface.enable(other.get_submodule(half), alpha=1.7)
    mixed = model(**inputs).logits
    assert torch.equal(mixed, other(**inputs).logits)
    assert not torch.equal(mixed, whole)
    px.huggingface.disable(model)
    assert torch.equal(model(**inputs).logits, own)


@pytest.mark.parametrize(("family", "name"), PARTS)
def test_a_part_gets_another_alpha(family: str, name: str, tmp_path: Path) -> None:
    """Which is also what comes back from files."""
    model = px.huggingface.enable(make(family), alpha=1.75)
    inputs, _ = batch(family)
    whole = model(**inputs).logits
    px.huggingface.enable(model.get_submodule(name), alpha=1.25)
    found = alphas(model)
    assert all(x[0] == (1.25 if key.startswith(f"{name}.") else 1.75) for key, x in found.items())
    mixed = model(**inputs).logits
    assert not torch.equal(mixed, whole)
    loaded = saved(model, tmp_path)
    assert alphas(loaded) == found
    assert torch.equal(loaded(**inputs).logits, mixed)


def test_configs_that_others_hold_are_left_alone() -> None:
    model = px.huggingface.enable(make("bart"))
    config = model.config
    assert model.model.decoder.config is config
    px.huggingface.disable(model.model.decoder)
    assert model.config is model.model.encoder.config is config
    assert config._attn_implementation == "parsimax"
    decoder = model.model.decoder
    assert decoder.config._attn_implementation == "sdpa"
    assert decoder.layers[0].self_attn.config is decoder.config  # one copy for all of the part


# --- saved ----------------------------------------------------------------------------------------


def _learned_but_a_part(model: Any) -> Any:
    px.huggingface.enable(learned(model).encoder, alpha=1.2, restore=False)
    return model


def _fixed_but_a_part(model: Any) -> Any:
    learned(px.huggingface.enable(model, alpha=1.7).decoder)
    return model


def _disabled_in_part(model: Any) -> Any:
    px.huggingface.disable(learned(model).decoder)
    return model


def _twice(model: Any) -> Any:
    """What was said first is over."""
    px.huggingface.enable(px.huggingface.enable(model, alpha=1.7).encoder, alpha=1.2)
    px.huggingface.disable(model.encoder)
    learned(model.encoder)
    return model


def _copied(model: Any) -> Any:
    model = copy.deepcopy(px.huggingface.enable(model, alpha=1.7))
    px.huggingface.enable(model.encoder, alpha=1.2)
    model = pickle.loads(pickle.dumps(model))
    px.huggingface.enable(model.decoder, alpha=1.3)
    return model


@pytest.mark.parametrize(
    "change", [_learned_but_a_part, _fixed_but_a_part, _disabled_in_part, _twice, _copied]
)
def test_parts_come_back(change: Callable[[Any], Any], tmp_path: Path) -> None:
    model = change(make("t5")).eval()
    inputs, _ = batch("t5")
    loaded = saved(model, tmp_path / "one")
    again = saved(loaded, tmp_path / "two")
    for other in (loaded, again):
        assert alphas(other) == alphas(model)
        assert torch.equal(other(**inputs).logits, model(**inputs).logits)


def test_parts_in_the_config(tmp_path: Path) -> None:
    model = px.huggingface.enable(make("t5"), alpha=1.7)
    px.huggingface.enable(model.encoder, alpha=1.2)
    px.huggingface.disable(model.decoder)
    model.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["parsimax"]
    parts = {"encoder": {"alpha": 1.2, "learn_alpha": False}, "decoder": None}
    assert written == {"alpha": 1.7, "learn_alpha": False, "parts": parts}
    px.huggingface.enable(model, alpha=1.5)
    assert model.config.parsimax == {"alpha": 1.5, "learn_alpha": False}


def test_parts_within_parts(tmp_path: Path) -> None:
    both = [{}, {"is_decoder": True, "add_cross_attention": True}]
    encoder, decoder = (hf.BertConfig(**SIZE, **more) for more in both)
    model = hf.EncoderDecoderModel(
        encoder=hf.BertModel(encoder), decoder=hf.BertLMHeadModel(decoder)
    )
    holder = torch.nn.ModuleDict({"held": model.eval()})
    px.huggingface.enable(holder, alpha=1.7)
    px.huggingface.enable(model.decoder, alpha=1.2)
    px.huggingface.enable(model.decoder.bert, alpha=1.3)
    px.huggingface.enable(model.encoder, alpha=1.4)
    assert set(model.config.parsimax["parts"]) == {"encoder", "decoder", "decoder.bert"}
    assert alphas(saved(model, tmp_path / "one")) == alphas(model)
    px.huggingface.enable(model.decoder, alpha=1.6)
    assert set(model.config.parsimax["parts"]) == {"encoder", "decoder"}
    assert alphas(saved(model, tmp_path / "two")) == alphas(model)


def test_with_a_head_and_without(tmp_path: Path) -> None:
    model = px.huggingface.enable(make("bart"), alpha=1.7)
    px.huggingface.enable(model.model.encoder, alpha=1.2)
    model.save_pretrained(tmp_path / "whole")
    base = px.huggingface.load(hf.BartModel, tmp_path / "whole")
    assert list(alphas(base).values()) == list(alphas(model).values())
    base.save_pretrained(tmp_path / "base")
    again = px.huggingface.load(hf.BartForConditionalGeneration, tmp_path / "base")
    assert alphas(again) == alphas(model)
    with pytest.raises(
        ValueError, match=r"settings for 'model\.encoder'.*CausalLM has no such part"
    ):
        px.huggingface.load(hf.BartForCausalLM, tmp_path / "whole")


# --- a part alone ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "name"), [*PARTS, ("llama", "model")])
def test_alphas_of_a_part_alone(family: str, name: str, tmp_path: Path) -> None:
    """Settings are not in the config that is saved then; alphas are found by their layers."""
    model = make(family)
    learned(model.get_submodule(name))
    model.save_pretrained(tmp_path)
    fresh = type(model).from_pretrained(tmp_path)
    px.huggingface.enable(fresh.get_submodule(name), learn_alpha=True)
    assert alphas(fresh) == alphas(model)
    whole = px.huggingface.enable(type(model).from_pretrained(tmp_path), learn_alpha=True)
    found = alphas(whole)
    assert {key: found.pop(key) for key in alphas(model)} == alphas(model)
    assert all(x == [1.5] * len(x) for x in found.values())
    with pytest.raises(ValueError, match="pass learn_alpha=True to take them up"):
        px.huggingface.enable(type(model).from_pretrained(tmp_path))
    if not found:  # then nothing else can have been enabled
        assert alphas(px.huggingface.load(type(model), tmp_path)) == alphas(model)
    else:
        with pytest.raises(ValueError, match=r"no settings for other layers.*with that part"):
            px.huggingface.load(type(model), tmp_path)


def test_halves_are_not_confused(tmp_path: Path) -> None:
    """Layers of both are called block.0.layer.0.SelfAttention; only one half had alphas."""
    model = make("t5")
    learned(model.encoder)
    model.save_pretrained(tmp_path)
    fresh = hf.T5ForConditionalGeneration.from_pretrained(tmp_path)
    px.huggingface.enable(fresh.decoder, alpha=1.75)
    assert {x for values in alphas(fresh).values() for x in values} == {1.75}
    px.huggingface.enable(fresh.encoder, learn_alpha=True)
    assert {key: alphas(fresh)[key] for key in alphas(model)} == alphas(model)
    px.huggingface.disable(fresh)
    px.huggingface.enable(fresh, learn_alpha=True)  # a second time does not go back
    assert {x for values in alphas(fresh).values() for x in values} == {1.5}


def test_in_half_precision_and_changed_since(tmp_path: Path) -> None:
    model = make("t5")
    learned(model.decoder)
    model.save_pretrained(tmp_path, max_shard_size="4KB")
    kind = hf.T5ForConditionalGeneration
    fresh = kind.from_pretrained(tmp_path, dtype=torch.float16)
    px.huggingface.enable(fresh.decoder, learn_alpha=True)
    assert alphas(fresh) == alphas(model)
    other = kind.from_pretrained(tmp_path)
    with torch.no_grad():
        other.decoder.block[0].layer[0].SelfAttention.q.weight += 1
    with pytest.raises(ValueError, match=r"block\.0.*weights are not those in .*restore=False"):
        px.huggingface.enable(other.decoder, learn_alpha=True)
    px.huggingface.enable(other.decoder, restore=False)


def test_a_half_that_came_from_another_folder(tmp_path: Path) -> None:
    """Its config goes on naming that folder, where alphas may be of another time."""
    both = [{}, {"is_decoder": True, "add_cross_attention": True}]
    encoder, decoder = (hf.BertConfig(**SIZE, **more) for more in both)
    learned(hf.BertModel(encoder)).save_pretrained(tmp_path / "encoder")
    hf.BertLMHeadModel(decoder).save_pretrained(tmp_path / "decoder")
    folders = [tmp_path / "encoder", tmp_path / "decoder"]
    model = hf.EncoderDecoderModel.from_encoder_decoder_pretrained(*folders)
    px.huggingface.enable(model, learn_alpha=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.5
    model.save_pretrained(tmp_path / "pair")
    pair = hf.EncoderDecoderModel.from_pretrained(tmp_path / "pair")
    with pytest.raises(ValueError, match=r"weights are not those in .*px\.huggingface\.load"):
        px.huggingface.enable(pair.encoder, learn_alpha=True)
    assert alphas(px.huggingface.enable(pair, learn_alpha=True)) == alphas(model)


def test_a_layer_that_fits_in_two_places(tmp_path: Path) -> None:
    model = make("t5")
    state = model.encoder.state_dict()
    model.decoder.load_state_dict({k: x for k, x in state.items() if "SelfAtt" in k}, strict=False)
    learned(model)
    model.save_pretrained(tmp_path)
    fresh = px.huggingface.enable(type(model).from_pretrained(tmp_path), learn_alpha=True)
    assert alphas(fresh) == alphas(model)
    with pytest.raises(ValueError, match=r"cannot tell which of decoder\.block.*, encoder\.block"):
        px.huggingface.enable(type(model).from_pretrained(tmp_path).encoder, learn_alpha=True)


def test_settings_that_know_nothing_of_learned_alphas(tmp_path: Path) -> None:
    px.huggingface.enable(make("llama"), alpha=1.7).save_pretrained(tmp_path / "one")
    model = hf.LlamaForCausalLM.from_pretrained(tmp_path / "one")
    learned(model.model)  # the config of the whole is not touched
    model.save_pretrained(tmp_path / "two")
    with pytest.raises(ValueError, match=r"layers\.0\.self_attn: .*config\.json does not say so"):
        px.huggingface.load(hf.LlamaForCausalLM, tmp_path / "two")


# --- px.huggingface.save --------------------------------------------------------------------------


def written(model: Any, folder: Path) -> Any:
    """What is loaded after px.huggingface.save."""
    px.huggingface.save(model, folder)
    return px.huggingface.load(type(model), folder).eval()


@pytest.mark.parametrize("alpha", [1.75, None])
@pytest.mark.parametrize(("family", "name"), [*PARTS, ("llama", "model")])
def test_save_writes_down_a_part_alone(
    family: str, name: str, alpha: float | None, tmp_path: Path
) -> None:
    """Fixed or learned, and what is loaded knows of it."""
    model = make(family)
    part = model.get_submodule(name)
    if alpha is None:
        learned(part)
    else:
        px.huggingface.enable(part, alpha=alpha)
    config = model.config
    inputs, _ = batch(family)
    loaded = written(model, tmp_path / "one")
    assert model.config is config
    assert not hasattr(config, "parsimax")
    for other in (loaded, saved(loaded, tmp_path / "two"), written(loaded, tmp_path / "three")):
        assert alphas(other) == alphas(model)
        assert torch.equal(other(**inputs).logits, model(**inputs).logits)


def test_parts_of_what_save_wrote_may_be_changed(tmp_path: Path) -> None:
    model = make("t5")
    px.huggingface.enable(model.encoder, alpha=1.25)
    loaded = written(model, tmp_path / "one")
    px.huggingface.enable(loaded.decoder, alpha=1.75)
    both = saved(loaded, tmp_path / "two")
    assert alphas(both) == alphas(loaded)
    assert {x[0] for x in alphas(both).values()} == {1.25, 1.75}
    px.huggingface.disable(both.encoder)
    assert {x[0] for x in alphas(saved(both, tmp_path / "three")).values()} == {1.75}
    with pytest.raises(ValueError, match="settings of their own for its parts"):
        px.huggingface.enable(type(model).from_pretrained(tmp_path / "one"))


@pytest.mark.parametrize("change", [_learned_but_a_part, _fixed_but_a_part, _twice, _copied])
def test_save_is_save_pretrained_for_a_whole(change: Callable[[Any], Any], tmp_path: Path) -> None:
    model = change(make("t5"))
    px.huggingface.save(model, tmp_path / "one", max_shard_size="4KB")
    model.save_pretrained(tmp_path / "two")
    one, two = ((tmp_path / name / "config.json").read_text() for name in ("one", "two"))
    assert one == two
    assert len(list((tmp_path / "one").glob("*.safetensors"))) > 2
    assert alphas(px.huggingface.load(type(model), tmp_path / "one")) == alphas(model)


@pytest.mark.parametrize(("family", "name"), [("bart", "model.encoder"), ("t5", "decoder")])
def test_settings_of_a_file_are_over_when_save_is_called(
    family: str, name: str, tmp_path: Path
) -> None:
    """A model is loaded plainly and enabled in part: the file spoke of all of it."""
    px.huggingface.enable(make(family), alpha=1.75).save_pretrained(tmp_path / "one")
    model = type(make(family)).from_pretrained(tmp_path / "one").eval()
    px.huggingface.enable(model.get_submodule(name), alpha=1.25)
    inputs, _ = batch(family)
    loaded = written(model, tmp_path / "two")
    assert alphas(loaded) == alphas(model)
    assert {x[0] for x in alphas(loaded).values()} == {1.25}
    assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)
    assert model.config.parsimax == {"alpha": 1.75, "learn_alpha": False}  # as it was


def test_halves_that_say_something_themselves(tmp_path: Path) -> None:
    both = [{}, {"is_decoder": True, "add_cross_attention": True}]
    encoder, decoder = (hf.BertConfig(**SIZE, **more) for more in both)
    for part in (hf.BertModel(encoder), hf.BertLMHeadModel(decoder)):
        name = "decoder" if part.config.is_decoder else "encoder"
        px.huggingface.enable(part, alpha=1.75).save_pretrained(tmp_path / name)
    folders = [tmp_path / "encoder", tmp_path / "decoder"]
    model = hf.EncoderDecoderModel.from_encoder_decoder_pretrained(*folders)
    px.huggingface.enable(model.decoder, alpha=1.25)
    loaded = written(model, tmp_path / "pair")
    assert alphas(loaded) == alphas(model)
    assert {x[0] for x in alphas(loaded).values()} == {1.25}
    assert not hasattr(loaded.encoder.config, "parsimax")


def test_save_of_a_part_that_was_taken_out(tmp_path: Path) -> None:
    model = px.huggingface.enable(make("bart"), alpha=1.75)
    px.huggingface.enable(model.model.encoder, alpha=1.25)
    base = written(model.model, tmp_path)
    assert list(alphas(base).values()) == list(alphas(model).values())


def test_what_save_refuses(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="or with a part of it"):
        px.huggingface.save(make("opt"), tmp_path)
    with pytest.raises(TypeError, match="must be a model of transformers, got Linear"):
        px.huggingface.save(torch.nn.Linear(2, 2), tmp_path)
