"""How good a model is, how sparse, and how much it can prove: all numbers of one data set.

Search decides what is right (word accuracy, BLEU, chrF) and what is certified; the references under
teacher forcing decide how probable and how sparse the model's distributions are.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .data.batch import Batch
from .data.batching import pad
from .data.symbols import EOS
from .metrics.accuracy import Accuracy, word_accuracy
from .metrics.certificates import Certificates, certificates
from .metrics.forced import Forced, measure_steps, summarise
from .metrics.translation import TranslationScore, bleu, check_tokenizer, chrf
from .models.base import Measures, Seq2Seq
from .search import beam
from .search.inputs import evaluating
from .search.results import Decoded
from .search.stepper import Stepper

if TYPE_CHECKING:
    from .data.readers import Example
    from .data.textcodec import TextCodec

_POOL = 64  # batches whose sentences are sorted by length together, so that little is padded


@dataclass(frozen=True)
class Prediction:
    """One example, what the model says, and what the search can prove of it.

    Args:
        source: as text; of an inflection the lemma.
        tags: of an inflection.
        group: such as the language.
        reference: the right output.
        output: the best hypothesis; None if there is none.
        probability: of the output.
        alternatives: further hypotheses and their probabilities.
        finished: False if the length limit cut the output.
        exhaustive: see :class:`~parsimax.seq2seq.search.results.Decoded`; and ``optimal``, too.
    """

    source: str
    tags: tuple[str, ...]
    group: str
    reference: str
    output: str | None
    probability: float
    alternatives: tuple[tuple[str, float], ...]
    finished: bool
    exhaustive: bool | None
    optimal: bool | None

    @property
    def right(self) -> bool:
        """Whether the output is the reference, and ended: what a limit cut is not right."""
        return self.finished and self.output == self.reference

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a line of JSON."""
        return dataclasses.asdict(self) | {"right": self.right}


@dataclass(frozen=True)
class Evaluation:
    """All numbers of a model on a data set; shares are between 0 and 1.

    ``bleu`` is None where no reference has four words; a certificate is None where none is claimed.
    ``unfinished`` outputs were cut by the length limit: no one of them is right, and BLEU and chrF
    take them as far as they go.
    """

    sentences: int
    unfinished: int
    accuracy: Accuracy
    certificates: Certificates
    forced: Forced
    bleu: TranslationScore | None
    chrf: TranslationScore
    beam: int
    length_penalty: float
    models: int
    predictions: tuple[Prediction, ...] = field(repr=False, default=())

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without the predictions."""
        values = dataclasses.asdict(dataclasses.replace(self, predictions=()))
        del values["predictions"]
        for name, group in self.accuracy.groups.items():
            values["accuracy"]["groups"][name]["accuracy"] = group.accuracy
        return values

    def to_json(self) -> str:
        """One JSON object, without the predictions."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=2, allow_nan=False)

    def write(self, path: str | Path) -> None:
        """Write the JSON object into a file."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    def write_predictions(self, path: str | Path) -> None:
        """Write every prediction as a line of JSON."""
        with Path(path).open("w", encoding="utf-8") as lines:
            for prediction in self.predictions:
                lines.write(json.dumps(prediction.to_dict(), ensure_ascii=False) + "\n")


def evaluate(
    models: Stepper[Any] | Sequence[Stepper[Any]],
    codec: TextCodec,
    examples: Iterable[Example],
    *,
    beam_size: int = 5,
    length_penalty: float = 0.0,
    max_length: int | None = None,
    batch_size: int = 64,
    epsilon: float = 1e-6,
    tokenize: str | None = None,
    device: torch.device | str | None = None,
    progress: Callable[[int], object] | None = None,
) -> Evaluation:
    """Search every example and measure its reference.

    Args:
        models: one, or several of the same vocabulary whose probabilities are averaged.
        codec: the text side of the models.
        examples: with targets; a :class:`~parsimax.seq2seq.data.readers.Reader` or any others.
        beam_size: prefixes a sentence may have at a time.
        length_penalty: unless 0, no certificates are claimed.
        max_length: symbols of an output; the search's default if None.
        batch_size: sentences at a time; it changes speed, not results.
        epsilon: of the ε-perplexity.
        tokenize: of BLEU, a name that sacrebleu knows.
        device: where the models are.
        progress: is told after each batch how many sentences are done.
    """
    check_tokenizer(tokenize)
    stepper, several = _one(models)
    model = stepper if isinstance(stepper, Seq2Seq) else None
    sums = Measures()
    predictions: dict[int, Prediction] = {}
    results: list[Decoded] = []
    for numbers, batch, chosen in _batches(codec, examples, batch_size, device):
        found = beam(
            stepper,
            batch.source,
            batch.source_lengths,
            beam_size,
            max(2, beam_size),
            max_length=max_length,
            length_penalty=length_penalty,
        )
        with evaluating(stepper):
            sums += (
                measure_steps(stepper, batch, epsilon)
                if model is None
                else model.measure(batch, epsilon)
            )
        results += found
        for number, example, decoded in zip(numbers, chosen, found, strict=True):
            predictions[number] = _prediction(codec, example, decoded)
        if progress is not None:
            progress(len(predictions))
    if not predictions:
        raise ValueError("examples: expected at least one, got none; is the data file empty?")
    ordered = tuple(predictions[number] for number in sorted(predictions))
    ended = [p.output if p.finished else None for p in ordered]
    references = [p.reference for p in ordered]
    said = [p.output or "" for p in ordered]
    return Evaluation(
        sentences=len(ordered),
        unfinished=sum(p.output is not None and not p.finished for p in ordered),
        accuracy=word_accuracy(ended, references, [p.group for p in ordered]),
        certificates=certificates(results),
        forced=summarise(
            sums, epsilon=epsilon, vocabulary=stepper.vocabulary_size, one_model=model is not None
        ),
        bleu=bleu(said, references, tokenize=tokenize),
        chrf=chrf(said, references),
        beam=beam_size,
        length_penalty=length_penalty,
        models=several,
        predictions=ordered,
    )


def _one(models: Stepper[Any] | Sequence[Stepper[Any]]) -> tuple[Stepper[Any], int]:
    if not isinstance(models, Sequence):
        return models, len(getattr(models, "steppers", (models,)))
    if len(models) == 1:
        return models[0], 1
    from .search import Ensemble

    return Ensemble(models), len(models)


def _batches(
    codec: TextCodec, examples: Iterable[Example], size: int, device: torch.device | str | None
) -> Iterator[tuple[list[int], Batch, list[Example]]]:
    """Batches of neighbours in length, with the numbers of their examples."""
    stream = enumerate(examples)
    while pool := list(islice(stream, size * _POOL)):
        encoded = [(number, example, *_encode(codec, example)) for number, example in pool]
        encoded.sort(key=lambda item: (len(item[2]), len(item[3]), item[0]))
        for start in range(0, len(encoded), size):
            part = encoded[start : start + size]
            batch = pad([item[2] for item in part], [[*item[3], EOS] for item in part])
            moved = batch if device is None else batch.to(device)
            yield [item[0] for item in part], moved, [item[1] for item in part]


def _encode(codec: TextCodec, example: Example) -> tuple[list[int], list[int]]:
    """Source and target as numbers; what cannot be encoded is named by its file and line."""
    try:
        return codec.encode_source(example), codec.encode_target(example)
    except ValueError as error:
        where = f"{example.path}:{example.line}: " if example.path else ""
        raise ValueError(f"{where}{error}") from error


def _prediction(codec: TextCodec, example: Example, decoded: Decoded) -> Prediction:
    texts = [
        (codec.decode_target(hypothesis.symbols), hypothesis.probability)
        for hypothesis in decoded.hypotheses
    ]
    best = decoded.best
    assert example.target is not None
    return Prediction(
        source=example.source,
        tags=example.tags,
        group=example.group,
        reference=example.target,
        output=texts[0][0] if texts else None,
        probability=texts[0][1] if texts else 0.0,
        alternatives=tuple(texts[1:]),
        finished=best is not None and best.finished,
        exhaustive=decoded.exhaustive,
        optimal=decoded.optimal,
    )
