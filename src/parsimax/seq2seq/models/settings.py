"""What a model is built from: plain values, as a config file writes them.

Attention is a mapping's text, such as ``entmax(alpha=1.5)``, or ``entmax(alpha=learned)`` for one
learned alpha a head. The output is a mapping's text alone: its loss comes with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LEARNED = "entmax(alpha=learned)"


@dataclass(frozen=True)
class RNNSettings:
    """The recurrent model of Peters et al. (2019); the defaults are its inflection settings."""

    embedding: int = 300
    hidden: int = 300  # of the decoder; each direction of the encoder has half
    encoder_layers: int = 2
    decoder_layers: int = 2
    attention: str = "entmax(alpha=1.5)"
    # what a source symbol may receive in all, for constrained_softmax and constrained_sparsemax
    fertility: float | None = None
    exhaustion: float = 0.2  # what a unit of fertility that is left adds to a score
    output: str = "entmax(alpha=1.5)"
    dropout: float = 0.3
    init: float = 0.1  # weights begin uniform between -init and init
    share_embeddings: bool = False  # of source and target, which then have one vocabulary
    kind: Literal["rnn"] = "rnn"


@dataclass(frozen=True)
class TransformerSettings:
    """The Transformer of Vaswani et al. (2017) with a mapping for each kind of attention."""

    dim: int = 512
    heads: int = 8
    encoder_layers: int = 6
    decoder_layers: int = 6
    feedforward: int = 2048
    norm: Literal["pre", "post"] = "pre"
    encoder_attention: str = LEARNED
    context_attention: str = LEARNED
    decoder_attention: str = LEARNED
    output: str = "softmax"
    dropout: float = 0.1
    attention_dropout: float = 0.0
    share_embeddings: bool = False
    tie_output: bool = True  # the output layer is the target's embedding
    kind: Literal["transformer"] = "transformer"


ModelSettings = RNNSettings | TransformerSettings
