"""From settings to a model."""

from __future__ import annotations

from .base import Seq2Seq
from .rnn import RNN
from .settings import ModelSettings, RNNSettings
from .transformer import Transformer


def build(settings: ModelSettings, source_size: int, target_size: int) -> Seq2Seq:  # type: ignore[type-arg]
    """The model that the settings describe, for vocabularies of these sizes."""
    if isinstance(settings, RNNSettings):
        return RNN(settings, source_size, target_size)
    return Transformer(settings, source_size, target_size)
