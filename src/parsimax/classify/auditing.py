"""A run as an audit wants it: four functions, and texts."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from parsimax._core.auditable import Auditable, Text
from parsimax._runs.bad_rows import BadRow, BadRows

from .examples import Example, Examples, check_some
from .model import Classifier
from .run import Run
from .vocabulary import PAD, Vocabulary


def auditable(run: Run | Classifier, *, dtype: torch.dtype | None = None) -> Auditable:
    """The classifier of a run, taken apart where attention sits.

    The functions belong to a copy of the model in evaluation mode whose parameters need no
    gradient, so that gradients of inputs and hidden states cost nothing else. They work on the
    device of the model, on a GPU too.

    Args:
        run: A run, or a classifier.
        dtype: What the copy computes in; float64 for comparisons.
    """
    model = copy.deepcopy(run.model if isinstance(run, Run) else run).eval().requires_grad_(False)
    if dtype is not None:
        model = model.to(dtype)
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()  # cuDNN wants a copy's weights in one piece again
    pull = model.encoder.pull if model.encoder.pulls else None
    return Auditable(model.embed, model.encode, model.attend, model.decode, pad=PAD, pull=pull)


def texts(
    run: Run, path: str | Path | Sequence[str | Path], *, skip_bad: bool | None = None
) -> list[Text]:
    """The texts of files, read as the run's own data were; labels may be missing.

    Args:
        run: A run; its config says how texts become tokens and which are too short or too long.
        path: A file, folder or glob, or several.
        skip_bad: Leave rows out that cannot be read; as in the run by default.
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    found = run.read(paths, labelled=False, skip_bad=skip_bad)
    check_some(found, ", ".join(map(str, paths)))
    skip = run.config.data.skip_bad if skip_bad is None else skip_bad
    return usable(found, run.vocabulary, skip_bad=skip)[0]


def usable(
    found: Examples, vocabulary: Vocabulary, *, skip_bad: bool
) -> tuple[list[Text], Examples]:
    """Texts as an audit reads them, and the examples that they are.

    Args:
        found: What was read.
        vocabulary: Of the run.
        skip_bad: Leave rows out, and count them, whose label is none of the model's.

    Raises:
        DataError: such rows, if they are not to be left out.
    """
    kept, texts, bad = [], [], BadRows()
    for example in found:
        try:
            texts.append(text_of(example, vocabulary))
            kept.append(example)
        except ValueError as error:
            why = str(error).removeprefix(f"{example.path}:{example.line}: ")
            bad.add(BadRow(example.path, example.line, why))
    if bad.count and not skip_bad:
        raise bad.error()
    left = replace(found, examples=tuple(kept), skipped=found.skipped + bad.count)
    return texts, left


def text_of(example: Example, vocabulary: Vocabulary) -> Text:
    """One text as an audit reads it.

    Raises:
        ValueError: its label is none of the model's.
    """
    label = None if example.label is None else _label(example, vocabulary)
    return Text(tuple(vocabulary.encode(example.words)), example.words, label)


def _label(example: Example, vocabulary: Vocabulary) -> int:
    assert example.label is not None
    try:
        return vocabulary.label(example.label)
    except ValueError as error:
        raise ValueError(f"{example.path}:{example.line}: {error}") from None
