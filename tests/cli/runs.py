"""Run folders made by hand: a random sparse model with its codec, in no time."""

from __future__ import annotations

from pathlib import Path

import torch

from parsimax._runs import checkpoint
from parsimax.seq2seq.config import from_dict
from parsimax.seq2seq.data import readers
from parsimax.seq2seq.data.textcodec import CodecSettings, TextCodec
from parsimax.seq2seq.models import build
from parsimax.seq2seq.training.folder import RunFolder

ROWS = (
    "draw\tdrew\tV;PST\ndraw\tdrawn\tV;V.PTCP;PST\ngo\twent\tV;PST\nwalk\twalked\tV;PST\n"
    "sing\tsang\tV;PST\n"
)


RNN = {"kind": "rnn", "embedding": 8, "hidden": 8, "encoder_layers": 1, "decoder_layers": 1}
TRANSFORMER = {
    "kind": "transformer", "dim": 8, "heads": 2, "encoder_layers": 2, "decoder_layers": 2,
    "feedforward": 16, "output": "entmax(alpha=1.5)",
}  # fmt: skip


def make_run(
    folder: Path,
    *,
    seed: int = 0,
    rows: str = ROWS,
    format: str = "inflection",
    languages: tuple[str, ...] = ("all",),
    model: dict[str, object] | None = None,
    max_length: int | None = 12,
    codec_settings: CodecSettings | None = None,
) -> Path:
    """A run folder whose model was never trained; its output is sparse."""
    folder.mkdir(parents=True)
    data = [folder.parent / f"{folder.name}-data" / f"{name}-train" for name in languages]
    for path in data:
        path.parent.mkdir(exist_ok=True)
        path.write_text(rows, encoding="utf-8")
    paths = [str(path) for path in data]
    config = from_dict(
        {
            "data": {"format": format, "train": paths, "validation": paths},
            "model": {**RNN, "init": 2.0} if model is None else model,
            "search": {"max_length": max_length},
        }
    )
    codec = TextCodec.learn(readers.read(format, data), codec_settings)
    torch.manual_seed(seed)
    made = build(config.model, len(codec.source_vocabulary), len(codec.target_vocabulary))
    run = RunFolder(folder)
    run.config.write_text(config.to_yaml(), encoding="utf-8")
    codec.save(run.codec)
    run.checkpoints.mkdir()
    checkpoint.write(
        run.checkpoint("best"),
        {
            "model": made.state_dict(),
            "config": config.to_yaml(),
            "codec": codec.fingerprint,
            "progress": {"step": 7, "epoch": 1, "batches": 0, "seconds": 0.0},
            "validated": {},
        },
    )
    return folder
