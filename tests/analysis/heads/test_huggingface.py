"""Records from outputs that look like Hugging Face's, and from transformers if it is there."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from parsimax._core.records import AttentionRecord
from parsimax.analysis.heads import density, from_model, from_outputs, positional

TOKENS = [["[CLS]", "a", "##b", "[SEP]"], ["[CLS]", "c", "[PAD]", "[PAD]"]]
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])


def layers(count: int, queries: Tensor, keys: Tensor, *, causal: bool = False) -> list[Tensor]:
    """Softmax attention (B, 3 heads, Lq, Lk) that sees no padding."""
    torch.manual_seed(0)
    seen = keys[:, None, None].bool().expand(-1, 3, queries.shape[1], -1)
    if causal:
        seen = seen & torch.ones(seen.shape[-2:], dtype=torch.bool).tril()
    scores = torch.randn(seen.shape)
    return [
        torch.softmax((scores + n).masked_fill(~seen, -1e9), -1).nan_to_num() for n in range(count)
    ]


def test_an_encoder() -> None:
    given = layers(2, MASK, MASK)
    first, second = from_outputs(SimpleNamespace(attentions=given), TOKENS, MASK)
    assert first.tokens == ("[CLS]", "a", "##b", "[SEP]")
    assert second.tokens == ("[CLS]", "c")
    assert first.weights.shape == (2, 3, 4, 4)
    assert torch.equal(second.weights[1], given[1][1, :, :2, :2])
    assert first.module == "encoder"
    assert first.allowed is None
    assert density([first, second])["encoder"].overall() == 1.0


def test_padding_on_the_left_and_tokens_without_padding() -> None:
    mask = MASK.flip(1)
    given = layers(1, mask, mask)
    records = from_outputs(SimpleNamespace(attentions=given), [TOKENS[0], ["x", "y"]], mask)
    assert records[1].tokens == ("x", "y")
    assert torch.equal(records[1].weights[0], given[0][1, :, 2:, 2:])
    unmasked = from_outputs(SimpleNamespace(attentions=given), [TOKENS[0], TOKENS[0]])
    assert unmasked[1].weights.shape == (1, 3, 4, 4)


def test_a_decoder_is_known_by_its_weights() -> None:
    outputs = SimpleNamespace(attentions=layers(1, MASK, MASK, causal=True))
    found = from_outputs(outputs, TOKENS, MASK)
    assert {each.module for each in found} == {"decoder"}
    assert density(found)["decoder"].overall() == 1.0
    assert positional(found)["decoder"].at(1).isnan().all()
    told = from_outputs(outputs, TOKENS, MASK, causal=False)
    assert {each.module for each in told} == {"encoder"}


def test_one_token_tells_nothing_about_the_future() -> None:
    outputs = SimpleNamespace(attentions=[torch.ones(1, 3, 1, 1)])
    assert from_outputs(outputs, [["a"]])[0].module == "encoder"


def test_an_encoder_and_decoder() -> None:
    target_mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    outputs = SimpleNamespace(
        encoder_attentions=layers(2, MASK, MASK),
        cross_attentions=layers(3, target_mask, MASK),
        decoder_attentions=layers(3, target_mask, target_mask, causal=True),
    )
    targets = [["<s>", "x", "y"], ["<s>", "z", "<pad>"]]
    found = from_outputs(outputs, TOKENS, MASK, target_tokens=targets, target_mask=target_mask)
    shapes = {each.module: tuple(each.weights.shape) for each in found}
    assert shapes == {"encoder": (2, 3, 2, 2), "context": (3, 3, 2, 2), "decoder": (3, 3, 2, 2)}
    across = [each for each in found if each.module == "context"]
    assert across[0].tokens == tuple(TOKENS[0])
    assert across[0].queries == ("<s>", "x", "y")
    assert not across[0].self_attention
    assert {name: each.overall() for name, each in density(found).items()} == {
        "encoder": 1.0, "context": 1.0, "decoder": 1.0,
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"target_tokens: expected the tokens"):
        from_outputs(outputs, TOKENS, MASK)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (SimpleNamespace(logits=0), "expected attention weights .* got none; .*eager"),
        (SimpleNamespace(attentions=()), "got none"),
        (SimpleNamespace(attentions=(None, None)), "expected weights of each layer, got None"),
        (SimpleNamespace(attentions=(torch.ones(2, 4),)), r"got \(2, 4\)"),
        (SimpleNamespace(attentions=(torch.ones(1, 3, 4, 4),)), "1 sentences .* got 2"),
        (SimpleNamespace(attentions=(torch.ones(2, 3, 2, 2),)), "at most 2 tokens.* up to 4"),
    ],
)
def test_outputs_without_usable_attention(outputs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_outputs(outputs, TOKENS, MASK)


def test_tokens_must_fit_the_mask() -> None:
    outputs = SimpleNamespace(attentions=layers(1, MASK, MASK))
    with pytest.raises(ValueError, match=r"tokens\[1\]: expected 2 tokens, or 4 with padding"):
        from_outputs(outputs, [TOKENS[0], ["a", "b", "c"]], MASK)
    with pytest.raises(ValueError, match="one list of tokens for each row"):
        from_outputs(outputs, TOKENS[:1], MASK)


class Encoder(nn.Module):
    """Attends evenly, with dropout; remembers how often it was called."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.calls, self.causal = 0, causal

    def forward(self, input_ids: Tensor, attention_mask: Tensor, output_attentions: bool) -> Any:
        assert output_attentions
        assert not self.training
        self.calls += 1
        seen = attention_mask[:, None, None].double().expand(-1, 2, input_ids.shape[1], -1)
        seen = seen.tril() if self.causal else seen
        return SimpleNamespace(attentions=(seen / seen.sum(-1, keepdim=True),) * 2)


class Letters:
    """A tokenizer of letters."""

    def __call__(self, texts: Sequence[str], **options: Any) -> dict[str, Tensor]:
        assert options == {"return_tensors": "pt", "padding": True, "truncation": True}
        size = max(map(len, texts))
        ids = [[ord(c) for c in text] + [0] * (size - len(text)) for text in texts]
        numbers = torch.tensor(ids)
        return {"input_ids": numbers, "attention_mask": (numbers > 0).long()}

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        return [chr(n) if n else "<pad>" for n in ids]


def test_texts_go_through_the_model_in_batches() -> None:
    model = Encoder().train()
    found = list(from_model(model, Letters(), ["one", "to", "three"], batch_size=2))
    assert [each.tokens for each in found] == [tuple("one"), tuple("to"), tuple("three")]
    assert model.calls == 2
    assert model.training  # as it was
    assert density(found)["encoder"].overall() == 1.0


def test_one_batch_decides_whether_a_model_looks_ahead() -> None:
    texts = ["abc", "x"]  # the second batch has one token, which tells nothing
    found = list(from_model(Encoder(causal=True), Letters(), texts, batch_size=1))
    assert [each.module for each in found] == ["decoder", "decoder"]


def test_targets() -> None:
    model = Encoder()
    model.config = SimpleNamespace(is_encoder_decoder=True)  # type: ignore[assignment]
    with pytest.raises(ValueError, match="targets: expected a text for the decoder"):
        list(from_model(model, Letters(), ["a"]))
    with pytest.raises(ValueError, match="targets: expected 1, one a text, got 2"):
        list(from_model(model, Letters(), ["a"], targets=["b", "c"]))


@pytest.mark.parametrize("kind", ["bert", "gpt2", "bart", "t5"])
def test_transformers_itself(kind: str) -> None:
    library = pytest.importorskip("transformers")
    sizes: dict[str, dict[str, Any]] = {
        "bert": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "intermediate_size": 16},
        "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2},
        "bart": {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 16,
                 "encoder_attention_heads": 4, "decoder_attention_heads": 4, "decoder_ffn_dim": 16},
        "t5": {"d_model": 16, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 4},
    }  # fmt: skip
    config = library.AutoConfig.for_model(kind, vocab_size=200, **sizes[kind])
    model = library.AutoModel.from_config(config, attn_implementation="eager").eval()
    targets = ["yz", "z"] if kind in ("bart", "t5") else None
    found = list(from_model(model, Letters(), ["one", "to"], targets=targets))
    expected = {
        "bert": ["encoder"],
        "gpt2": ["decoder"],
        "bart": ["encoder", "context", "decoder"],
        "t5": ["encoder", "context", "decoder"],
    }[kind]
    assert list(density(found)) == expected
    for each in density(found).values():
        assert each.density.shape == (2, 4)
        assert each.overall() == 1.0
    assert all(isinstance(each, AttentionRecord) for each in found)
