"""Embeddings of source and target, which may be one."""

from __future__ import annotations

from torch import nn

from parsimax.seq2seq.data.symbols import PAD


def embeddings(
    size: int, source_size: int, target_size: int, shared: bool
) -> tuple[nn.Embedding, nn.Embedding]:
    """One for each side, or one for both, in which padding stays zero."""
    source = nn.Embedding(source_size, size, padding_idx=PAD)
    if not shared:
        return source, nn.Embedding(target_size, size, padding_idx=PAD)
    if source_size != target_size:
        raise ValueError(
            "share_embeddings needs one vocabulary for both sides, got "
            f"{source_size} source and {target_size} target symbols; train a joint one, or switch "
            "share_embeddings off"
        )
    return source, source
