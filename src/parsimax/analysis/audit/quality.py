"""How well the audited model predicts; numbers that need more than one class say so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Quality:
    """Of the predictions on the texts that were audited.

    Args:
        texts: How many have a label.
        accuracy: NaN without labels.
        auc: Area under the ROC curve; of more than two classes, the mean of each against the rest.
            NaN if a class has no text.
        predicted: How many texts each class was predicted for.
        notes: What a reader should know about these numbers.
    """

    texts: int
    accuracy: float
    auc: float
    predicted: tuple[int, ...]
    notes: tuple[str, ...]


def quality(predictions: Tensor, labels: Sequence[int | None]) -> Quality:
    """Accuracy and AUC of (N, C) probabilities."""
    classes = predictions.shape[1]
    winner = predictions.argmax(-1)
    predicted = tuple(torch.bincount(winner, minlength=classes).tolist())
    notes = []
    if sum(count > 0 for count in predicted) < 2:
        notes.append(
            "The model predicts one class for every text: its predictions hardly depend on them."
        )
    known = [i for i, label in enumerate(labels) if label is not None]
    for i in known:
        label = labels[i]
        if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < classes:
            raise ValueError(
                f"the label of a text must be an int from 0 to {classes - 1} or None, got {label!r}"
            )
    truth = torch.tensor([labels[i] for i in known], dtype=torch.long, device="cpu")
    auc = math.nan
    if not known:
        notes.append("No text has a label: accuracy is not known.")
    elif len(set(truth.tolist())) < 2:
        notes.append(
            f"All {len(known)} labels are of class {int(truth[0])}: AUC is not defined, and "
            "accuracy says nothing about other classes."
        )
    elif len(set(truth.tolist())) < classes:
        missing = sorted(set(range(classes)) - set(truth.tolist()))
        notes.append(
            f"No text has the label {', '.join(map(str, missing))}: AUC, a mean over all classes, "
            "is not defined."
        )
    elif classes == 2:
        auc = _auc(predictions[known, 1], truth)
    else:
        each = [_auc(predictions[known, c], (truth == c).long()) for c in range(classes)]
        auc = sum(each) / classes
    accuracy = float((winner[known] == truth).double().mean()) if known else math.nan
    return Quality(len(known), accuracy, auc, predicted, tuple(notes))


def _auc(scores: Tensor, truth: Tensor) -> float:
    """Chance that a text of class 1 scores above one of class 0, ties counting half."""
    order = torch.unique(scores, return_inverse=True)[1]
    tied = torch.bincount(order)
    # mean rank of each value: those below, and half of its own
    rank = tied.cumsum(0) - (tied - 1) / 2
    positive = int(truth.sum())
    negative = len(truth) - positive
    above = float(rank[order[truth == 1]].sum()) - positive * (positive + 1) / 2
    return above / (positive * negative)
