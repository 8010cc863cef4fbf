"""What to say when memory runs out."""

from __future__ import annotations

import torch

from parsimax.seq2seq.config import Config
from parsimax.seq2seq.data.batch import Batch

_SAYINGS = ("out of memory", "can't allocate memory", "not enough memory")


def is_exhausted(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or on the host."""
    said = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or any(s in said for s in _SAYINGS)


def explain(batch: Batch, step: int, config: Config) -> str:
    """How large the batch is, and which settings make it smaller."""
    training = config.training
    sentences, source = batch.source.shape
    target = batch.target.shape[1] if batch.target is not None else 0
    return (
        f"out of memory at step {step + 1}, in a batch of {sentences} sentences, "
        f"{source} source by {target} target symbols{_room(batch.source.device)}. "
        f"Lower training.batch.size (now {training.batch.size} {training.batch.unit}) and raise "
        f"training.accumulate (now {training.accumulate}) by the same factor, which leaves the "
        "size of a step as it is; or leave out long examples with data.max_source_length and "
        "data.max_target_length"
    )


def explain_validation(config: Config) -> str:
    """The same for validation."""
    training = config.training
    size = training.validation.batch or training.batch.size
    return (
        "out of memory in validation; lower training.validation.batch "
        f"(now {size} {training.batch.unit}), which changes nothing else"
    )


def _room(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    free, total = torch.cuda.mem_get_info(device)
    name = torch.cuda.get_device_name(device)
    return f" ({name}: {free / 2**30:.1f} of {total / 2**30:.1f} GiB free)"
