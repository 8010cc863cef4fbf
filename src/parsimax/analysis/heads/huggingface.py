"""Records from a Hugging Face model, or from any object that returns attention as they do.

Nothing is imported from transformers: what counts is that the outputs have ``attentions``, or
``encoder_attentions``, ``cross_attentions`` and ``decoder_attentions``, each a sequence over layers
of (B, head, Lq, Lk).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from parsimax._core.records import AttentionRecord

_KINDS = ("encoder_attentions", "cross_attentions", "decoder_attentions")


def from_outputs(
    outputs: Any,
    tokens: Sequence[Sequence[str]],
    mask: Tensor | None = None,
    *,
    target_tokens: Sequence[Sequence[str]] | None = None,
    target_mask: Tensor | None = None,
    causal: bool | None = None,
) -> list[AttentionRecord]:
    """Records of one batch.

    Args:
        outputs: of a model called with ``output_attentions=True``.
        tokens: of each sentence, with or without padding.
        mask: (B, L), nonzero where there is a token; by default as many as there are tokens.
        target_tokens: in an encoder-decoder, what the decoder was given; and ``target_mask``.
        causal: whether ``attentions`` is that of a model that sees no token ahead. By default it
            is if no head gives any weight to a token ahead.
    """
    found: list[AttentionRecord] = []
    given: dict[str, Any] = {name: getattr(outputs, name, None) for name in ("attentions", *_KINDS)}
    if not any(_there(weights) for weights in given.values()):
        raise ValueError(
            "outputs: expected attention weights in `attentions` or `encoder_attentions`, got "
            "none; call the model with output_attentions=True, and load it with "
            'attn_implementation="eager", since fused attention returns no weights'
        )
    sides = _Side(tokens, mask, "tokens")
    if _there(given["attentions"]):
        weights = _stack(given["attentions"], "attentions")
        found += _own(weights, sides, "decoder" if causal else "encoder", causal)
    if _there(given["encoder_attentions"]):
        weights = _stack(given["encoder_attentions"], "encoder_attentions")
        found += _own(weights, sides, "encoder", False)
    if _there(given["cross_attentions"]) or _there(given["decoder_attentions"]):
        if target_tokens is None:
            raise ValueError(
                "target_tokens: expected the tokens that the decoder was given, since outputs "
                "have attention of a decoder; got None"
            )
        target = _Side(target_tokens, target_mask, "target_tokens")
        if _there(given["cross_attentions"]):
            found += _across(_stack(given["cross_attentions"], "cross_attentions"), sides, target)
        if _there(given["decoder_attentions"]):
            weights = _stack(given["decoder_attentions"], "decoder_attentions")
            found += _own(weights, target, "decoder", True)
    return found


def from_model(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    *,
    targets: Sequence[str] | None = None,
    batch_size: int = 16,
    causal: bool | None = None,
) -> Iterator[AttentionRecord]:
    """Records of texts, batch by batch.

    Args:
        model: an encoder, a decoder or an encoder-decoder; it is called in evaluation mode.
        tokenizer: its own.
        texts: what it reads.
        targets: in an encoder-decoder, one text for each, which the decoder is given.
        batch_size: texts at a time.
        causal: see :func:`from_outputs`.
    """
    if targets is not None and len(targets) != len(texts):
        raise ValueError(f"targets: expected {len(texts)}, one a text, got {len(targets)}")
    if targets is None and getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise ValueError("targets: expected a text for the decoder of each source, got None")
    device = getattr(model, "device", "cpu")
    training = model.training
    model.eval()
    try:
        for start in range(0, len(texts), batch_size):
            chosen = list(texts[start : start + batch_size])
            source = _encode(tokenizer, chosen, device)
            more: dict[str, Any] = {}
            names: dict[str, Any] = {}
            if targets is not None:
                target = _encode(tokenizer, list(targets[start : start + batch_size]), device)
                ids, mask = _decoder_input(model, target["input_ids"], target["attention_mask"])
                more = {"decoder_input_ids": ids, "decoder_attention_mask": mask}
                names = {"target_tokens": _names(tokenizer, ids), "target_mask": mask}
            with torch.no_grad():
                outputs = model(**source, **more, output_attentions=True)
            found = from_outputs(
                outputs,
                _names(tokenizer, source["input_ids"]),
                source["attention_mask"],
                causal=causal,
                **names,
            )
            if causal is None and any(len(each.tokens) > 1 for each in found):
                # one batch decides for all, or the texts would be of two modules
                causal = found[0].module == "decoder"
            yield from found
    finally:
        model.train(training)


class _Side:
    """The tokens of a batch without padding, and where they stand."""

    def __init__(self, tokens: Sequence[Sequence[str]], mask: Tensor | None, name: str) -> None:
        self.name = name
        if mask is None:
            self.places = [torch.arange(len(each), device="cpu") for each in tokens]
            self.tokens = [tuple(each) for each in tokens]
            return
        if mask.dim() != 2 or len(mask) != len(tokens):
            raise ValueError(
                f"{name}: expected one list of tokens for each row of the mask, got {len(tokens)} "
                f"for a mask of {tuple(mask.shape)}"
            )
        self.places = [row.nonzero().flatten() for row in mask.detach().cpu() != 0]
        self.tokens = []
        for number, (each, places) in enumerate(zip(tokens, self.places, strict=True)):
            if len(each) == len(places):
                self.tokens.append(tuple(each))
            elif len(each) == mask.shape[1]:
                self.tokens.append(tuple(each[place] for place in places.tolist()))
            else:
                raise ValueError(
                    f"{name}[{number}]: expected {len(places)} tokens, or {mask.shape[1]} with "
                    f"padding, got {len(each)}"
                )


def _own(
    weights: Tensor, side: _Side, module: str, causal: bool | None
) -> Iterator[AttentionRecord]:
    cut = _cut(weights, side, side)
    if causal is None:
        causal = _sees_ahead(cut) is False
        module = "decoder" if causal else module
    for each, tokens in zip(cut, side.tokens, strict=True):
        size = len(tokens)
        allowed = torch.ones(size, size, dtype=torch.bool, device="cpu").tril() if causal else None
        yield AttentionRecord(tokens, each, module, allowed=allowed)


def _sees_ahead(weights: Sequence[Tensor]) -> bool | None:
    """Whether any head gives weight to a token ahead; None if no token has one ahead."""
    longer = [each for each in weights if each.shape[-1] > 1]
    return any(bool(each.triu(1).any()) for each in longer) if longer else None


def _across(weights: Tensor, source: _Side, target: _Side) -> Iterator[AttentionRecord]:
    cut = _cut(weights, target, source)
    for each, tokens, queries in zip(cut, source.tokens, target.tokens, strict=True):
        yield AttentionRecord(tokens, each, "context", queries=queries)


def _cut(weights: Tensor, rows: _Side, columns: _Side) -> list[Tensor]:
    """(layer, head, Lq, Lk) of each sentence, without padding."""
    for side, place in ((rows, -2), (columns, -1)):
        most = max((int(p.max()) + 1 for p in side.places if len(p)), default=0)
        if weights.shape[0] != len(side.places) or weights.shape[place] < most:
            raise ValueError(
                f"{side.name}: expected {len(weights)} sentences of at most {weights.shape[place]} "
                f"tokens, as there is attention for, got {len(side.places)} of up to {most}"
            )
    return [
        weights[number][:, :, q][..., k]
        for number, (q, k) in enumerate(zip(rows.places, columns.places, strict=True))
    ]


def _there(weights: Any) -> bool:
    return weights is not None and len(weights) > 0


def _stack(weights: Sequence[Tensor], name: str) -> Tensor:
    """(B, layer, head, Lq, Lk) on the CPU."""
    for layer in weights:
        if layer is None:
            raise ValueError(
                f"outputs.{name}: expected weights of each layer, got None; load the model with "
                'attn_implementation="eager", since fused attention returns no weights'
            )
        if layer.dim() != 4:
            raise ValueError(
                f"outputs.{name}: expected (batch, head, queries, keys) of each layer, got "
                f"{tuple(layer.shape)}"
            )
    return torch.stack([layer.detach().cpu() for layer in weights], 1)


def _encode(tokenizer: Any, texts: list[str], device: Any) -> dict[str, Tensor]:
    encoded = tokenizer(texts, return_tensors="pt", padding=True, truncation=True)
    return {name: value.to(device) for name, value in encoded.items()}


def _decoder_input(model: Any, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Targets as the decoder reads them: behind its start symbol, where the model says which."""
    shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if shift is None:
        return ids, mask
    return shift(labels=ids), torch.cat([torch.ones_like(mask[:, :1]), mask[:, :-1]], 1)


def _names(tokenizer: Any, ids: Tensor) -> list[list[str]]:
    return [tokenizer.convert_ids_to_tokens(row) for row in ids.tolist()]
