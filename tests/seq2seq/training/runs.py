"""Small runs: words to be written backwards."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from parsimax.seq2seq import config as configs
from parsimax.seq2seq.config import Config


def write_pairs(path: Path, count: int, seed: int) -> Path:
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcde", k=draw.randint(1, 6))) for _ in range(count)]
    path.write_text("".join(f"{word}\t{word[::-1]}\n" for word in words))
    return path


def small_config(folder: Path, *overrides: str, train: int = 60, validation: int = 17) -> Config:
    """A model that trains in a second; overrides are as on the command line."""
    return configs.load(write_config(folder, train=train, validation=validation), overrides)


def write_config(folder: Path, train: int = 60, validation: int = 17) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "small.yaml"
    path.write_text(
        f"""
data:
  train: {write_pairs(folder / "train.tsv", train, 1)}
  validation: {write_pairs(folder / "validation.tsv", validation, 2)}
model: {{embedding: 8, hidden: 8, encoder_layers: 1, decoder_layers: 2, dropout: 0.3}}
optimizer: {{lr: 1e-2, schedule: {{kind: halve_on_worse}}}}
training:
  max_epochs: 3
  batch: {{size: 8}}
  log_every: 2
  workers: 0
  accelerator: cpu
"""
    )
    return path


def metrics(run: Path, event: str = "validation") -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == event]
