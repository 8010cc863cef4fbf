"""Encoder-decoder models whose attention and output are chosen by mapping."""

from .base import Measures, Seq2Seq
from .building import build
from .settings import ModelSettings, RNNSettings, TransformerSettings

__all__ = ["Measures", "ModelSettings", "RNNSettings", "Seq2Seq", "TransformerSettings", "build"]
