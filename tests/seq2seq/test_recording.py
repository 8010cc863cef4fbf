"""Records of a model's attention: cut to each sentence, named by its symbols."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.cli.runs import TRANSFORMER, make_run

from parsimax.analysis import heads
from parsimax.seq2seq import run as runs
from parsimax.seq2seq.data import readers
from parsimax.seq2seq.data.batching import pad
from parsimax.seq2seq.data.symbols import EOS
from parsimax.seq2seq.recording import records


@pytest.mark.parametrize("model", [None, TRANSFORMER])
def test_records_are_those_of_each_sentence_alone(
    tmp_path: Path, model: dict[str, object] | None
) -> None:
    run = runs.load(make_run(tmp_path / "run", model=model))
    examples = list(readers.read("inflection", run.config.data.validation))
    done: list[int] = []
    found = list(records(run.model, run.codec, examples, batch_size=3, progress=done.append))
    kinds = ["context"] if model is None else ["encoder", "context", "decoder"]
    assert len(found) == len(kinds) * len(examples)
    assert done == [3, 5]
    by_kind = {kind: [each for each in found if each.module == kind] for kind in kinds}
    for number, example in enumerate(examples):
        source, target = run.codec.encode_source(example), run.codec.encode_target(example)
        with torch.no_grad():
            alone = run.model.attention(pad([source], [[*target, EOS]]))
        for kind in kinds:
            given = by_kind[kind][number]
            torch.testing.assert_close(given.weights, alone[kind][0], atol=1e-5, rtol=0)
        context = by_kind["context"][number]
        assert context.tokens == run.codec.source_symbols(source)
        assert context.queries == (*example.target, "<eos>")  # type: ignore[misc]
        if model is not None:
            assert by_kind["encoder"][number].queries is None
            assert by_kind["decoder"][number].tokens == ("<bos>", *example.target)  # type: ignore[misc]


def test_densities_count_what_the_mappings_gave(tmp_path: Path) -> None:
    settings = {**TRANSFORMER, "encoder_attention": "softmax", "decoder_attention": "softmax",
                "context_attention": "sparsemax"}  # fmt: skip
    run = runs.load(make_run(tmp_path / "run", model=settings))
    examples = list(readers.read("inflection", run.config.data.validation))
    found = heads.density(records(run.model, run.codec, examples))
    assert found["encoder"].overall() == 1.0
    assert found["decoder"].overall() == pytest.approx(1.0, abs=1e-12)
    assert found["context"].overall() < 1.0
