"""From a trained inflection model to what the report shows of a word."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from parsimax.seq2seq import search
from parsimax.seq2seq.data.batching import pad
from parsimax.seq2seq.data.symbols import EOS
from parsimax.seq2seq.recording import context_keys
from parsimax.viz.inflection_report import Mistake, WordPicture
from parsimax.viz.support import Step
from parsimax.viz.tree import Leaf

if TYPE_CHECKING:
    from parsimax.seq2seq.data.readers import Example
    from parsimax.seq2seq.data.textcodec import TextCodec
    from parsimax.seq2seq.evaluation import Prediction
    from parsimax.seq2seq.models import Seq2Seq


def word_picture(
    model: Seq2Seq[Any],
    codec: TextCodec,
    example: Example,
    *,
    asked: str,
    origin: str,
    grid: bool = False,
    steps: bool = False,
    limit: int = 200,
) -> WordPicture:
    """Ask a model about a word, and keep everything it may answer.

    Args:
        model: any sequence model; what it looks at is averaged over layers and heads.
        codec: its text side.
        example: the word; its target, if it has one, is what is right.
        asked: the form that is asked for, in words.
        origin: whether the model has seen the word, in words.
        grid: keep the attention of the best answer.
        steps: keep what may come next at each of its steps.
        limit: answers to keep at most.
    """
    source = codec.encode_source(example)
    asked_for = pad([source])
    rows, lengths = asked_for.source, asked_for.source_lengths
    (found,) = search.support(model, rows, lengths, limit=limit)
    if not found.sequences:
        raise ValueError(f"{example.source}: the model gives no word any probability")
    best = found.sequences[0]
    proved = found.complete or best.log_probability >= found.bound
    said = [*best.symbols, EOS]
    return WordPicture(
        lemma=example.source,
        asked=asked,
        origin=origin,
        leaves=tuple(Leaf(codec.target_symbols(h.symbols), h.probability) for h in found.sequences),
        gold=None
        if example.target is None
        else tuple(codec.target_segmentation.split(example.target)),
        optimal=proved,
        complete=found.complete,
        source=context_keys(model, codec.source_symbols(source)),
        target=codec.target_symbols(said),
        weights=_weights(model, source, said) if grid else None,
        steps=_steps(model, codec, rows, lengths, said) if steps else (),
    )


@torch.no_grad()
def _weights(
    model: Seq2Seq[Any], source: list[int], said: list[int]
) -> tuple[tuple[float, ...], ...]:
    mean = model.attention(pad([source], [said]))["context"][0].mean((0, 1))
    return tuple(tuple(row) for row in mean.tolist())


def _steps(
    model: Seq2Seq[Any],
    codec: TextCodec,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    said: list[int],
) -> tuple[Step, ...]:
    """What may come next after each beginning of the answer, which is known at once."""
    count = len(said)
    prefixes = [said[:length] for length in range(count)]
    found = search.next_symbols(
        model, rows.expand(count, -1).contiguous(), lengths.expand(count).contiguous(), prefixes
    )
    names = codec.target_symbols
    return tuple(
        Step(tuple((names([n.symbol])[0], n.probability) for n in options), names([given])[0])
        for options, given in zip(found, said, strict=True)
    )


def mistakes(
    model: Seq2Seq[Any],
    codec: TextCodec,
    predictions: Iterable[Prediction],
    examples: Sequence[Example],
    asked: dict[str, str],
) -> list[Mistake]:
    """The wrong predictions, the most certain first, with what the model gave the right form.

    Args:
        model: the one that predicted.
        codec: its text side.
        predictions: of the examples, in their order.
        examples: what was asked.
        asked: in words, by tags such as ``V;PST``.
    """
    wrong = [(p, e) for p, e in zip(predictions, examples, strict=True) if not p.right]
    if not wrong:
        return []
    batch = pad([codec.encode_source(example) for _, example in wrong])
    scored = search.score(
        model,
        batch.source,
        batch.source_lengths,
        [codec.encode_target(example) for _, example in wrong],
    )
    found = [
        Mistake(
            lemma=p.source,
            asked=asked.get(";".join(p.tags), ";".join(p.tags)),
            gold=p.reference,
            output=p.output or "",
            probability=p.probability,
            gold_probability=s.probability,
        )
        for (p, _), s in zip(wrong, scored, strict=True)
    ]
    return sorted(found, key=lambda mistake: -mistake.probability)
