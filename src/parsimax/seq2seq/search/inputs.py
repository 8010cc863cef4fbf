"""Checks of what a search is given: sources, lengths, counts, and the stepper's probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from parsimax.seq2seq.data.symbols import EOS

# A row may sum to a little more than 1 in low precision; anything above this is no probability.
LARGEST = 1.01


def check_source(source: Tensor, source_lengths: Tensor) -> int:
    """The number of sources."""
    for name, value, ndim in (("source", source, 2), ("source_lengths", source_lengths, 1)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
        if value.is_floating_point() or value.ndim != ndim:
            raise ValueError(
                f"{name} must hold integers in {ndim} dimension(s), got {value.dtype} of shape "
                f"{tuple(value.shape)}"
            )
    if len(source) != len(source_lengths):
        raise ValueError(
            f"source_lengths must have one entry a source ({len(source)}), "
            f"got {len(source_lengths)}"
        )
    if len(source):
        least, most = (int(x) for x in source_lengths.aminmax())
        if least < 1 or most > source.shape[1]:
            raise ValueError(
                f"source_lengths must lie between 1 and {source.shape[1]}, the columns of source, "
                f"got {least if least < 1 else most}"
            )
    return len(source)


def check_count(value: object, name: str, least: int) -> int:
    """An int that is at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return value


def length_limits(
    max_length: int | Sequence[int] | Tensor | None, min_length: int, source_lengths: Tensor
) -> list[int]:
    """How many symbols before ``EOS`` each sentence may have.

    By default 50 more than twice the source: a limit of the sentence, not of its batch.
    """
    count = len(source_lengths)
    if max_length is None:
        limits = [2 * length + 50 for length in source_lengths.tolist()]
    elif isinstance(max_length, Tensor | Sequence):
        limits = max_length.tolist() if isinstance(max_length, Tensor) else list(max_length)
        if not isinstance(limits, list) or len(limits) != count:
            raise ValueError(f"max_length must be one int, or one a source ({count})")
    else:
        limits = [max_length] * count
    check_count(min_length, "min_length", 0)
    for limit in limits:
        check_count(limit, "max_length", 0)
        if limit < min_length:
            raise ValueError(f"min_length must not exceed max_length, got {min_length} > {limit}")
    return limits


def check_shape(probabilities: Tensor, rows: int, vocabulary_size: int) -> None:
    """What a step returned has one row a prefix and one column a symbol."""
    if probabilities.shape != (rows, vocabulary_size):
        raise ValueError(
            f"the stepper must return probabilities of shape {(rows, vocabulary_size)}, "
            f"got {tuple(probabilities.shape)}"
        )


def faults(probabilities: Tensor, largest: Tensor) -> Tensor:
    """Whether there is (NaN, a value above 1, probability of PAD or BOS), on the device.

    ``largest`` is each row's maximum: torch counts NaN as the greatest of all.
    """
    return torch.stack(
        [
            largest.isnan().any(),
            (largest > LARGEST).any(),
            (probabilities[:, :EOS] > 0).any(),
        ]
    )


def raise_faults(found: Sequence[bool], position: int | None) -> None:
    """An error for what :func:`faults` found while reading the symbol at ``position``, if known."""
    nan, large, unsaid = found
    where = "the stepper's probabilities"
    if position is not None:
        where += f" of symbol {position + 1}"
    if nan:
        raise ValueError(
            f"{where} contain NaN: look for NaN or infinite parameters in the model, or for an "
            f"overflow in half precision"
        )
    if large:
        raise ValueError(f"{where} exceed 1: a stepper returns probabilities, not scores or logits")
    if unsaid:
        raise ValueError(f"{where} give PAD or BOS a positive probability, and must give them none")


@contextmanager
def evaluating(stepper: object) -> Iterator[None]:
    """Without gradients or dropout; modules that were in training mode return to it."""
    training = [m for m in _modules(stepper) if m.training]
    try:
        for module in training:
            module.training = False
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def _modules(stepper: object) -> Iterator[nn.Module]:
    """Those of a model, or of all members of an ensemble."""
    if isinstance(stepper, nn.Module):
        yield from stepper.modules()
    else:
        for member in getattr(stepper, "steppers", ()):
            yield from _modules(member)
