"""An evaluation of hand-made models, whose numbers are known."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from tests.seq2seq.scripted import Scripted

from parsimax.seq2seq.data.readers import Example
from parsimax.seq2seq.data.segmentation import Characters
from parsimax.seq2seq.data.symbols import NAMES
from parsimax.seq2seq.data.textcodec import TextCodec
from parsimax.seq2seq.data.vocabulary import Vocabulary
from parsimax.seq2seq.evaluation import Evaluation, evaluate
from parsimax.seq2seq.metrics.table import table
from parsimax.seq2seq.models import RNNSettings, build

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    pair = (Characters(), Vocabulary([*NAMES, *LETTERS]))
    return TextCodec("tsv", pair, pair)


def scripted(codec: TextCodec, script: dict[str, dict[str, float]]) -> Scripted:
    return Scripted(
        {
            tuple(codec.encode_source(source)): {
                tuple(codec.encode_target(target)): p for target, p in answers.items()
            }
            for source, answers in script.items()
        },
        len(codec.target_vocabulary),
    )


SCRIPT = {
    "go": {"went": 1.0},
    "draw": {"drawed": 0.6, "drawn": 0.3, "draw": 0.1},
    "sing": {"sang": 0.5, "sung": 0.5},
    "spin": dict.fromkeys("abcdefgh", 1 / 8),  # more than the beam holds
}
EXAMPLES = [
    Example("draw", "drawn", group="one"),
    Example("go", "went", group="one"),
    Example("sing", "sung", group="one"),
    Example("spin", "Spun", group="two"),  # a letter that the vocabulary does not have
]


@pytest.fixture(scope="module")
def evaluation(codec: TextCodec) -> Evaluation:
    return evaluate(scripted(codec, SCRIPT), codec, EXAMPLES, beam_size=4)


def test_numbers(evaluation: Evaluation) -> None:
    by_source = {p.source: p for p in evaluation.predictions}
    assert [p.source for p in evaluation.predictions] == [e.source for e in EXAMPLES]
    assert by_source["go"].output == "went"
    assert by_source["draw"].output == "drawed"
    assert by_source["draw"].probability == pytest.approx(0.6)
    assert dict(by_source["draw"].alternatives) == pytest.approx({"drawn": 0.3, "draw": 0.1})
    right = sum(p.right for p in evaluation.predictions)
    assert evaluation.accuracy.micro == right / 4
    assert evaluation.accuracy.macro == right / 3 / 2  # "two" has nothing right
    assert evaluation.certificates.single == 1 / 4
    assert evaluation.certificates.exhaustive == 3 / 4
    assert evaluation.certificates.optimal == 1.0  # what was dropped is no better than the best
    assert evaluation.bleu is None
    assert evaluation.models == 1


def test_unknown_letters_are_wrong_though_both_read_unk(codec: TextCodec) -> None:
    script = {"a": {"x": 0.0}, "b": {"x": 1.0}}
    model = scripted(codec, script)
    unknown = codec.encode_target("é")
    model.script[tuple(codec.encode_source("a"))] = {tuple(unknown): 1.0}
    result = evaluate(model, codec, [Example("a", "ü")])
    assert result.accuracy.micro == 0.0


def test_an_output_that_never_ended_is_not_right(codec: TextCodec) -> None:
    model = scripted(codec, {"go": {"wentwent": 1.0}, "draw": {"drawn": 1.0}})
    examples = [Example("go", "went"), Example("draw", "drawn")]
    result = evaluate(model, codec, examples, max_length=4)
    cut = result.predictions[0]
    assert (cut.output, cut.finished, cut.right) == ("went", False, False)
    assert result.accuracy.micro == 0.0
    assert result.unfinished == 2
    assert result.to_dict()["unfinished"] == 2
    assert "cut by the length limit" in render(result)
    whole = evaluate(model, codec, examples, max_length=5)  # drawn ends with the limit
    assert [p.right for p in whole.predictions] == [False, True]
    assert whole.unfinished == 1


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_batches_change_nothing(codec: TextCodec, evaluation: Evaluation, batch_size: int) -> None:
    told: list[int] = []
    again = evaluate(
        scripted(codec, SCRIPT), codec, EXAMPLES, beam_size=4, batch_size=batch_size,
        progress=told.append,
    )  # fmt: skip
    assert again.predictions == evaluation.predictions
    assert again.certificates == evaluation.certificates
    assert told[-1] == 4


def test_length_penalty_claims_nothing(codec: TextCodec) -> None:
    result = evaluate(scripted(codec, SCRIPT), codec, EXAMPLES, length_penalty=1.0)
    assert result.certificates.exhaustive is None
    assert "not claimed" in render(result)


def test_a_real_model_and_an_ensemble(codec: TextCodec) -> None:
    settings = RNNSettings(embedding=8, hidden=8, encoder_layers=1, decoder_layers=1)
    size = len(codec.target_vocabulary)
    models = [build(settings, size, size) for _ in range(2)]
    alone = evaluate(models[0], codec, EXAMPLES, beam_size=2, max_length=8)
    assert models[0].training  # as it was
    assert alone.forced.loss is not None
    assert alone.forced.attended is not None
    both = evaluate(models, codec, EXAMPLES, beam_size=2, max_length=8)
    assert both.models == 2
    assert both.forced.loss is None
    assert "ensemble of 2" in render(both)


def test_json_has_everything(evaluation: Evaluation, tmp_path: Path) -> None:
    evaluation.write(tmp_path / "e.json")
    evaluation.write_predictions(tmp_path / "p.jsonl")
    saved = json.loads((tmp_path / "e.json").read_text())
    assert saved["accuracy"]["groups"]["one"]["accuracy"] == pytest.approx(
        evaluation.accuracy.groups["one"].accuracy
    )
    assert saved["certificates"]["exhaustive"] == 0.75
    assert {"zero_gold", "epsilon_perplexity", "sparsemax_score", "support"} <= set(saved["forced"])
    assert "signature" in saved["chrf"]
    assert "predictions" not in saved
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert [line["source"] for line in lines] == [e.source for e in EXAMPLES]
    assert lines[1]["right"] is True


def render(evaluation: Evaluation) -> str:
    buffer = io.StringIO()
    Console(file=buffer, width=120).print(table(evaluation, title="held out"))
    return buffer.getvalue()


def test_table_names_every_number(evaluation: Evaluation) -> None:
    text = render(evaluation)
    for name in ("accuracy, macro", "single hypothesis", "exhaustive", "ε-perplexity", "chrF"):
        assert name in text
    assert "75.0 %" in text


def test_no_examples(codec: TextCodec) -> None:
    with pytest.raises(ValueError, match="at least one, got none"):
        evaluate(scripted(codec, SCRIPT), codec, [])
