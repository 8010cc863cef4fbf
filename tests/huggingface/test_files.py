"""Folders that were not written by save_pretrained of today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.huggingface.models import make

import parsimax as px

hf = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    hf.logging.disable_progress_bar()
    hf.logging.set_verbosity_error()


def alphas(model: Any) -> dict[str, list[float]]:
    return {name: values.tolist() for name, values in px.huggingface.alphas(model).items()}


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("variant", [None, "fp32"])
@pytest.mark.parametrize("zipped", [False, True])
def test_files_of_torch_save(
    shards: int, variant: str | None, zipped: bool, tmp_path: Path
) -> None:
    """As old folders have them."""
    torch.manual_seed(3)
    model = px.huggingface.enable(make("gpt2"), alpha=None, learn_alpha=True)
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    state = {k: v.clone() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    end = "" if variant is None else f".{variant}"
    names = [f"pytorch_model{end}.bin"]
    if shards > 1:
        names = [f"pytorch_model{end}-{i + 1:05}-of-{shards:05}.bin" for i in range(shards)]
        where = {key: names[i % shards] for i, key in enumerate(state)}
        index = tmp_path / f"pytorch_model.bin.index{end}.json"
        index.write_text(json.dumps({"metadata": {}, "weight_map": where}), encoding="utf-8")
    for i, name in enumerate(names):
        part = {key: value for j, (key, value) in enumerate(state.items()) if j % shards == i}
        torch.save(part, tmp_path / name, _use_new_zipfile_serialization=zipped)
    loaded = px.huggingface.load(hf.GPT2LMHeadModel, tmp_path, variant=variant)
    assert alphas(loaded) == alphas(model)
    if variant is None:
        by_hand = hf.GPT2LMHeadModel.from_pretrained(tmp_path)
        px.huggingface.enable(by_hand, learn_alpha=True)
        assert alphas(by_hand) == alphas(model)


def test_a_file_that_only_pickle_could_read(tmp_path: Path) -> None:
    """A model that was loaded from it by other means is enabled as any other."""
    make("gpt2").save_pretrained(tmp_path)
    model = hf.GPT2LMHeadModel.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({"path": tmp_path}, tmp_path / "pytorch_model.bin")
    px.huggingface.enable(model, learn_alpha=True)
