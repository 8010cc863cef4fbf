"""Small labelled texts whose label a classifier can learn, and configs for them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from parsimax.classify.config import Config, from_dict

WORDS = [
    "the",
    "a",
    "film",
    "plot",
    "actor",
    "scene",
    "was",
    "is",
    "and",
    "of",
    "it",
    "very",
    "quite",
]
SIGNS = {0: ("awful", "dull"), 1: ("fine", "lovely")}


def rows(count: int, seed: int = 0, lengths: tuple[int, int] = (3, 12)) -> list[dict[str, Any]]:
    """Texts of plain words in which one word says what the label is."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        label = number % 2
        words = chance.choices(WORDS, k=chance.randint(*lengths) - 1)
        words.insert(chance.randint(0, len(words)), chance.choice(SIGNS[label]))
        found.append({"text": " ".join(words), "label": label})
    return found


def write(path: Path, found: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")
    return path


def write_data(folder: Path, train: int = 120) -> dict[str, list[str]]:
    """Files of training, validation and test texts, as a config names them."""
    return {
        "train": [str(write(folder / "train.jsonl", rows(train, 1)))],
        "validation": [str(write(folder / "dev.jsonl", rows(40, 2)))],
        "test": [str(write(folder / "test.jsonl", rows(40, 3)))],
    }


def options(folder: Path, **sections: dict[str, Any] | int) -> dict[str, Any]:
    """A small model that learns those texts in a second."""
    whole: dict[str, Any] = {
        "task": "classification",
        "data": write_data(folder),
        "model": {"embedding": 8, "encoder": {"hidden": 8}, "attention": {"hidden": 8}},
        "optimizer": {"lr": 2e-2},
        "training": {"max_epochs": 4, "batch": 16, "device": "cpu"},
    }
    for name, section in sections.items():
        if isinstance(section, dict):
            whole[name] = {**whole.get(name, {}), **section}
        else:
            whole[name] = section
    return whole


def config(folder: Path, **sections: dict[str, Any] | int) -> Config:
    return from_dict(options(folder, **sections))
