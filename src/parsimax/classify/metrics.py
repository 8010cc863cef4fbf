"""Accuracy, F1 and the area under the ROC curve, from probabilities and labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

_Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ClassScores:
    """Of one class: how many texts are of it, and precision, recall and F1.

    A ratio whose denominator is zero is 0, as F1 then is.
    """

    label: str
    texts: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Scores:
    """All numbers of a classifier on some texts.

    Args:
        texts: How many.
        accuracy: Share of texts whose most probable class is right.
        f1: Macro average: the mean over the classes.
        auc: Area under the ROC curve; of more than two classes, the mean of each against the rest.
            NaN if the texts are all of one class, or a class has no text.
        loss: Mean of the output mapping's own loss.
        classes: One for each class.
    """

    texts: int
    accuracy: float
    f1: float
    auc: float
    loss: float
    classes: tuple[ClassScores, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values; what is undefined is None."""
        return {
            "texts": self.texts,
            "accuracy": self.accuracy,
            "f1": self.f1,
            "auc": None if math.isnan(self.auc) else self.auc,
            "loss": self.loss,
            "classes": {
                c.label: {
                    "texts": c.texts,
                    "precision": c.precision,
                    "recall": c.recall,
                    "f1": c.f1,
                }
                for c in self.classes
            },
        }


def measure(
    probabilities: Tensor, labels: Tensor, names: Sequence[str], loss: float = math.nan
) -> Scores:
    """All scores of probabilities (N, C) for labels (N,).

    >>> import torch
    >>> probabilities = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.8, 0.2]])
    >>> scores = measure(probabilities, torch.tensor([0, 1, 1]), ("bad", "good"))
    >>> round(scores.accuracy, 3), round(scores.f1, 3), scores.auc
    (0.667, 0.667, 1.0)
    """
    if probabilities.ndim != 2 or probabilities.shape[1] != len(names):
        raise ValueError(
            f"probabilities must have shape (N, {len(names)}), one column a class, got "
            f"{tuple(probabilities.shape)}"
        )
    if labels.shape != probabilities.shape[:1] or not len(labels):
        raise ValueError(
            f"labels must have shape ({len(probabilities)},) with at least one text, got "
            f"{tuple(labels.shape)}"
        )
    p = probabilities.detach().cpu().double().numpy()
    y = labels.detach().cpu().numpy()
    if y.min() < 0 or y.max() >= len(names):
        raise ValueError(f"labels must lie in [0, {len(names) - 1}], got {y.min()} to {y.max()}")
    guess = p.argmax(1)
    classes = tuple(_class_scores(name, y == c, guess == c) for c, name in enumerate(names))
    if len(names) == 2:
        area = auc(p[:, 1], y == 1)
    else:
        area = float(np.mean([auc(p[:, c], y == c) for c in range(len(names))]))
    return Scores(
        texts=len(y),
        accuracy=float((guess == y).mean()),
        f1=float(np.mean([c.f1 for c in classes])),
        auc=area,
        loss=loss,
        classes=classes,
    )


def _class_scores(label: str, is_it: _Array, said: _Array) -> ClassScores:
    right, said_n, all_n = int((is_it & said).sum()), int(said.sum()), int(is_it.sum())
    return ClassScores(
        label=label,
        texts=all_n,
        precision=right / said_n if said_n else 0.0,
        recall=right / all_n if all_n else 0.0,
        f1=2 * right / (said_n + all_n) if said_n + all_n else 0.0,
    )


def auc(scores: _Array, positive: _Array) -> float:
    """The chance that a positive text has a higher score than a negative one; ties count half.

    It is computed from ranks (Mann & Whitney). NaN if there is no positive or no negative text.
    """
    yes = int(positive.sum())
    no = len(positive) - yes
    if not yes or not no:
        return math.nan
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]  # the mean rank of those that are equal
    return float((ranks[positive].sum() - yes * (yes + 1) / 2) / (yes * no))
