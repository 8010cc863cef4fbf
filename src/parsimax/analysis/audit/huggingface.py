"""A Hugging Face classifier as an audit reads it.

What an encoder such as BERT decides by is the state of its first token ([CLS]) after the last
layer. There that token attends to all others, and that is the attention which is audited:

    embed    word vectors
    encode   all layers but the last: hidden states that the last layer attends to
    attend   weights of the first token in the last layer, the mean of its heads or one of them
    decode   the last layer with these weights, and the classification head

If the mean of heads is audited, other weights are divided among the heads as each token's weight
was: their mean is exactly what is asked for, and the model's own mean gives the model's own
prediction.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .auditable import Auditable, Text

_NAME = "parsimax_audit"
# Which self-attention is being listened to. Transformers looks functions up by a global name, so
# this is how one of them knows its model.
_PROBES: weakref.WeakKeyDictionary[nn.Module, _Probe] = weakref.WeakKeyDictionary()


def from_model(model: Any, *, head: int | None = None) -> Auditable:
    """The four functions of a sequence classifier of transformers.

    Args:
        model: Such as a ``BertForSequenceClassification``; it is copied and not changed. Encoders
            that take attention from transformers' ``AttentionInterface`` work (BERT, RoBERTa,
            ELECTRA, DistilBERT and their kin).
        head: One head of the last layer, from 0; by default the mean of all.

    Raises:
        TypeError: it is no classifier.
        ValueError: it has one class, several at once, no list of layers, no such head, attention
            that cannot be listened to, or a first token that sees no other (a decoder).
    """
    _register()
    _check_classifier(model)
    parts = _Parts(copy.deepcopy(model).eval().requires_grad_(False), head)
    parts.try_out()
    pad = getattr(model.config, "pad_token_id", None)
    return Auditable(
        parts.embed, parts.encode, parts.attend, parts.decode, pad=0 if pad is None else int(pad)
    )


def from_texts(
    tokenizer: Any,
    texts: Sequence[str],
    labels: Sequence[int | None] | None = None,
    *,
    max_length: int | None = None,
) -> list[Text]:
    """Texts as a tokenizer reads them, with its special tokens."""
    if labels is not None and len(labels) != len(texts):
        raise ValueError(f"labels: expected {len(texts)}, one a text, got {len(labels)}")
    found = []
    for number, text in enumerate(texts):
        limit = {} if max_length is None else {"truncation": True, "max_length": max_length}
        ids = tokenizer(text, **limit)["input_ids"]
        words = tokenizer.convert_ids_to_tokens(ids)
        found.append(Text(tuple(ids), tuple(words), None if labels is None else labels[number]))
    return found


def _check_classifier(model: Any) -> None:
    """Refuse what has no classes that exclude each other."""
    name = type(model).__name__
    known = isinstance(model, nn.Module) and hasattr(model, "config")
    if not known or not hasattr(model, "num_labels") or "SequenceClassification" not in name:
        raise TypeError(
            f"model must be a classifier of texts such as BertForSequenceClassification, got {name}"
        )
    if model.num_labels < 2:
        raise ValueError(f"model must have at least two classes, got {model.num_labels}")
    if getattr(model.config, "problem_type", None) == "multi_label_classification":
        raise ValueError(
            "model must choose one of its classes, got one with problem_type "
            "'multi_label_classification'; give the four functions of an Auditable by hand, one "
            "class against its absence"
        )
    if getattr(model.config, "_attn_implementation", None) == "parsimax":
        raise ValueError(
            "model must have softmax attention, got one with px.huggingface.enable; give the four "
            "functions of an Auditable by hand"
        )


class _Probe:
    """What the listened-to attention is told, and what it tells."""

    def __init__(self, head: int | None) -> None:
        self.head = head
        self.asked: Tensor | None = None  # (B, L) instead of the model's own weights
        self.heard: Tensor | None = None  # (B, L)

    def __call__(self, weights: Tensor) -> Tensor:
        """Weights (B, head, Lq, Lk) with those of the first query exchanged."""
        first = weights[:, :, 0]
        own = first.mean(1) if self.head is None else first[:, self.head]
        self.heard = own
        if self.asked is None:
            return weights
        asked = self.asked.to(weights.dtype)
        if self.head is None:
            there = own > 0
            shares = first / torch.where(there, own, 1.0)[:, None]
            shares = torch.where(there[:, None], shares, 1.0)
            # weights that are held fixed leave no way for a gradient, neither does their division
            shares = shares if asked.requires_grad else shares.detach()
            new = shares * asked[:, None]
        else:
            new = torch.cat(
                [first[:, : self.head], asked[:, None], first[:, self.head + 1 :]], dim=1
            )
        return torch.cat([new[:, :, None], weights[:, :, 1:]], dim=2)


class _Parts:
    """The model, taken apart before its last layer."""

    def __init__(self, model: Any, head: int | None) -> None:
        self.model = model
        config = model.config
        self.name = type(model).__name__
        heads = int(config.num_attention_heads)
        if head is not None and not (isinstance(head, int) and 0 <= head < heads):
            raise ValueError(f"head must be an int from 0 to {heads - 1} or None, got {head!r}")
        self.parent, self.attribute, self.layers = _find_layers(model, config.num_hidden_layers)
        self.last = self.layers[-1]
        self.probe = _Probe(head)
        for module in self.last.modules():
            _PROBES[module] = self.probe
        model.set_attn_implementation(_NAME)

    def try_out(self) -> None:
        """Fail now rather than in an audit if attention cannot be heard."""
        x = self.embed(torch.zeros(1, 2, dtype=torch.long, device=self.model.device))
        mask = torch.ones(1, 2, dtype=torch.bool, device=self.model.device)
        with torch.no_grad():
            weights = self.attend(self.encode(x, mask), mask)
        if float(weights[0, 1]) == 0:
            raise ValueError(
                f"{self.name}: its first token does not see the others, so that it cannot be what "
                "the model decides by; give the four functions of an Auditable by hand"
            )

    def embed(self, tokens: Tensor) -> Tensor:
        vectors: Tensor = self.model.get_input_embeddings()(tokens)
        return vectors

    def encode(self, x: Tensor, mask: Tensor) -> Tensor:
        heard: list[Tensor] = []

        def listen(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            heard.append(args[0] if args else kwargs["hidden_states"])

        self.probe.asked = None
        try:
            with _hooked(self.last, listen):
                self.model.base_model(inputs_embeds=x, attention_mask=mask.long())
        except (RuntimeError, IndexError) as error:
            limit = getattr(self.model.config, "max_position_embeddings", None)
            # some families count their positions from a padding token's number on
            if limit is None or x.shape[1] <= limit - 2:
                raise
            raise ValueError(
                f"{self.name} has {limit} positions, got a text of {x.shape[1]} tokens; cut texts "
                f"off, e.g. by from_texts(..., max_length={limit - 2})"
            ) from error
        return heard[0]

    def attend(self, h: Tensor, mask: Tensor) -> Tensor:
        self._finish(h, mask, None)
        heard, self.probe.heard = self.probe.heard, None
        if heard is None:
            raise ValueError(
                f"{self.name}: its last layer does not ask transformers' AttentionInterface for "
                "attention, so that its weights cannot be read or exchanged; give the four "
                "functions of an Auditable by hand"
            )
        return heard.masked_fill(~mask, 0.0)

    def decode(self, h: Tensor, a: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax(self._finish(h, mask, a), -1)

    def _finish(self, h: Tensor, mask: Tensor, asked: Tensor | None) -> Tensor:
        """Logits from the hidden states before the last layer, which alone is run."""

        def put(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            if args:
                return (h, *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": h}

        size = self.model.get_input_embeddings().weight.shape[-1]
        blank = h.new_zeros(*h.shape[:2], size)
        self.probe.asked = asked
        try:
            with _hooked(self.last, put), self._only_last():
                logits: Tensor = self.model(inputs_embeds=blank, attention_mask=mask.long()).logits
        finally:
            self.probe.asked = None
        return logits

    @contextmanager
    def _only_last(self) -> Iterator[None]:
        setattr(self.parent, self.attribute, nn.ModuleList([self.last]))
        try:
            yield
        finally:
            setattr(self.parent, self.attribute, self.layers)


@contextmanager
def _hooked(module: nn.Module, hook: Callable[..., Any]) -> Iterator[None]:
    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _find_layers(model: nn.Module, count: int) -> tuple[nn.Module, str, nn.ModuleList]:
    """The list of layers, and where it hangs."""
    for parent in model.modules():
        for name, child in parent.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == count:
                return parent, name, child
    raise ValueError(f"{type(model).__name__} has no list of {count} layers that could be found")


def _register() -> None:
    """Make our attention known to transformers: both the function and its masks."""
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import eager_mask
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "audits of Hugging Face models need transformers; pip install 'parsimax[huggingface]'",
            name=error.name,
        ) from error
    AttentionInterface.register(_NAME, _attention)
    AttentionMaskInterface.register(_NAME, eager_mask)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **others: Any,
) -> tuple[Tensor, Tensor]:
    """Softmax attention whose weights can be heard and exchanged."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = query @ key.transpose(2, 3) * scale
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = torch.softmax(scores, -1)
    probe = _PROBES.get(module)
    if probe is not None:
        weights = probe(weights)
    return (weights @ value).transpose(1, 2).contiguous(), weights
