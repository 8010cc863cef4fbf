"""What a classifier says of some texts, and how right that is."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .batches import Encoded, in_order
from .examples import Example
from .metrics import Scores, measure
from .model import Classifier


@dataclass(frozen=True)
class Predictions:
    """Probabilities (N, C), attention weights of each text, and the mean loss, in texts' order."""

    probabilities: Tensor
    weights: tuple[Tensor, ...]
    loss: float


@torch.no_grad()
def predict(
    model: Classifier,
    data: Encoded,
    *,
    batch: int = 64,
    progress: Callable[[int], object] | None = None,
) -> Predictions:
    """Classify texts; the model is put in evaluation mode meanwhile.

    Args:
        model: A classifier.
        data: Texts; the loss is over those that have a label.
        batch: Texts at a time, of similar length; results do not depend on it.
        progress: Told how many texts are done.
    """
    device = model.out.weight.device
    probabilities = torch.zeros(len(data), model.classes, dtype=model.out.weight.dtype)
    weights: list[Tensor] = [torch.zeros(0)] * len(data)
    total, labelled, done = 0.0, 0, 0
    training = model.training
    model.eval()
    try:
        for texts in in_order(data, batch):
            here = texts.to(device)
            found = model(here.tokens, here.mask)
            probabilities[list(texts.rows)] = model.output(found.scores).cpu()
            for row, a, text in zip(texts.rows, found.weights.cpu(), texts.mask, strict=True):
                weights[row] = a[text].clone()
            known = here.labels >= 0
            if bool(known.any()):
                losses = model.loss(found.scores[known], here.labels[known])
                total, labelled = total + float(losses.double().sum()), labelled + len(losses)
            done += len(texts.rows)
            if progress is not None:
                progress(done)
    finally:
        model.train(training)
    return Predictions(probabilities, tuple(weights), total / labelled if labelled else 0.0)


def evaluate(
    model: Classifier,
    data: Encoded,
    names: Sequence[str],
    *,
    batch: int = 64,
    progress: Callable[[int], object] | None = None,
) -> tuple[Scores, Predictions]:
    """All scores on labelled texts, and what they were computed from."""
    found = predict(model, data, batch=batch, progress=progress)
    return measure(found.probabilities, data.labels, names, found.loss), found


def write_predictions(
    path: Path, examples: Sequence[Example], found: Predictions, names: Sequence[str]
) -> None:
    """One JSON object a text: its label, the prediction, all probabilities, and its attention."""
    with path.open("w", encoding="utf-8") as file:
        rows = zip(examples, found.probabilities.tolist(), found.weights, strict=True)
        for example, probabilities, weights in rows:
            row: dict[str, Any] = {
                "label": example.label,
                "prediction": names[max(range(len(names)), key=probabilities.__getitem__)],
                "probabilities": dict(zip(names, probabilities, strict=True)),
                "tokens": list(example.words),
                "attention": weights.tolist(),
            }
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
