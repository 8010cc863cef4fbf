"""Records of a sequence model's attention, as analysis reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from parsimax._core.records import AttentionRecord

from .data.batching import pad
from .data.symbols import BOS, EOS
from .search.inputs import evaluating

if TYPE_CHECKING:
    from .data.readers import Example
    from .data.textcodec import TextCodec
    from .models import Seq2Seq


def records(
    model: Seq2Seq[Any],
    codec: TextCodec,
    examples: Iterable[Example],
    *,
    batch_size: int = 32,
    device: torch.device | str | None = None,
    progress: Callable[[int], object] | None = None,
) -> Iterator[AttentionRecord]:
    """Attention under teacher forcing: one record for each example and kind of attention.

    In ``encoder`` the tokens are those of the source. In ``decoder`` they are what the decoder was
    given: ``<bos>`` and the target but for its last symbol. In ``context`` the keys are the source,
    and the queries are named by the symbols that they predict: the target and ``<eos>``.

    Args:
        model: a sequence model.
        codec: its text side.
        examples: with targets, in any order; records come in the same.
        batch_size: examples at a time.
        device: where the model is.
        progress: is told after each batch how many examples are done.
    """
    stream = iter(examples)
    done = 0
    while chunk := list(islice(stream, batch_size)):
        sources = [codec.encode_source(example) for example in chunk]
        targets = [[*codec.encode_target(example), EOS] for example in chunk]
        batch = pad(sources, targets)
        if device is not None:
            batch = batch.to(device)
        with evaluating(model), torch.no_grad():
            attention = {kind: w.cpu() for kind, w in model.attention(batch).items()}
        for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
            read = codec.source_symbols(source)
            said = codec.target_symbols(target)
            given = codec.target_symbols([BOS, *target[:-1]])
            n, m = len(source), len(target)
            for kind, weights in attention.items():
                if kind == "encoder":
                    yield AttentionRecord(read, weights[row, ..., :n, :n].clone(), kind)
                elif kind == "decoder":
                    past = torch.ones(m, m, dtype=torch.bool).tril()
                    own = weights[row, ..., :m, :m].clone()
                    yield AttentionRecord(given, own, kind, allowed=past)
                else:
                    across = weights[row, ..., :m, :n].clone()
                    yield AttentionRecord(read, across, kind, queries=said)
        done += len(chunk)
        if progress is not None:
            progress(done)
