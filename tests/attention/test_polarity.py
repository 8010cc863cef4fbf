"""True means allowed everywhere in parsimax, but in px.nn.MultiheadAttention, where it hides."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import parsimax as px

FIRST = torch.tensor([[True, False, False]])
VALUES = torch.tensor([[1.0], [10.0], [100.0]])


def test_true_is_allowed_in_mappings_and_attention() -> None:
    for name in sorted(set(px.mappings.registry()) - {"budget"}):
        weights = px.mappings.parse(name)(torch.zeros(1, 3), mask=FIRST)
        assert weights.tolist() == [[1.0, 0.0, 0.0]], name
    q, k = torch.zeros(1, 2), torch.zeros(3, 2)
    assert px.attention(q, k, VALUES, FIRST).item() == 1.0


@pytest.mark.parametrize(
    "module", [px.nn.AdditiveAttention(2, 1, 4), px.nn.BilinearAttention(2, 1)]
)
def test_true_is_allowed_in_attention_over_a_memory(module: Any) -> None:
    for mask in (FIRST, FIRST[None]):
        output = module(torch.zeros(1, 1, 2), VALUES[None], mask)
        assert output.weights.tolist() == [[[1.0, 0.0, 0.0]]]
        assert output.context.item() == 1.0


@pytest.mark.parametrize("softmax", [torch.nn.MultiheadAttention, px.nn.MultiheadAttention])
def test_true_is_hidden_in_multihead_attention_as_in_torchs(softmax: Any) -> None:
    module = softmax(2, 1, batch_first=True)
    query, memory = torch.zeros(1, 1, 2), torch.randn(1, 3, 2)
    by_padding = module(query, memory, memory, key_padding_mask=FIRST)[1]
    by_mask = module(query, memory, memory, attn_mask=FIRST)[1]
    for weights in (by_padding, by_mask):
        assert weights[0, 0, 0] == 0.0
        torch.testing.assert_close(weights[0, 0, 1:], torch.tensor([0.5, 0.5]))
