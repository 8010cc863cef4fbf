"""Attention that is used up: bounds that shrink, the sink, the bonus, steps and whole sequences."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import parsimax as px

B, LQ, LK, D = 3, 7, 5, 6
every_mapping = pytest.mark.parametrize("mapping", ["constrained_softmax", "constrained_sparsemax"])


def make(mapping="constrained_sparsemax", **options):
    torch.manual_seed(1)
    return px.nn.FertilityAttention(4, D, mapping=mapping, dtype=torch.float64, **options)


def inputs():
    torch.manual_seed(2)
    mask = torch.tensor([[True] * 5, [True, True, True, False, False], [False] * 5])
    query = 2 * torch.randn(B, LQ, 4, dtype=torch.float64)
    return query, torch.randn(B, LK, D, dtype=torch.float64), mask


def by_hand(attention, query, memory, mask, fertility):
    """The definition, one sentence and one step at a time, on the entries that may be seen."""
    mapping = getattr(px, attention._mapping)
    weights = torch.zeros(B, LQ, LK + 1, dtype=torch.float64)
    contexts = torch.zeros(B, LQ, D, dtype=torch.float64)
    for b in range(B):
        seen = mask[b].nonzero().flatten()
        values = torch.cat([memory[b, seen], attention.sink[None]])
        left = fertility[b, seen].clone()
        for t in range(LQ):
            upper = torch.cat([left, torch.ones(1, dtype=torch.float64)])
            z = values @ (query[b, t] @ attention.weight) + attention.exhaustion * upper
            p = mapping(z, upper)
            weights[b, t, seen] = p[:-1]
            weights[b, t, LK] = p[-1]
            contexts[b, t] = p @ values
            left = (left - p[:-1]).clamp(min=0)
    return contexts, weights


@every_mapping
@pytest.mark.parametrize("exhaustion", [0.0, 0.2, 3.0])
def test_it_is_its_definition(mapping, exhaustion):
    query, memory, mask = inputs()
    attention = make(mapping, fertility=0.8, exhaustion=exhaustion)
    with torch.no_grad():
        context, weights = attention(query, memory, mask)
        expected = by_hand(
            attention, query, memory, mask, torch.full((B, LK), 0.8, dtype=torch.float64)
        )
    torch.testing.assert_close(weights, expected[1], atol=1e-12, rtol=0)
    torch.testing.assert_close(context, expected[0], atol=1e-12, rtol=0)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    total = weights[..., :-1].sum(1)
    assert (total <= 0.8 + 1e-12).all()
    assert (total > 0.8 - 1e-12).any(), "nothing was used up"
    assert (weights[2, :, -1] == 1).all(), "with nothing to see, all goes to the sink"
    assert make().exhaustion == 0.2


@every_mapping
def test_fertility_for_each_token(mapping):
    query, memory, mask = inputs()
    attention = make(mapping)
    fertility = torch.rand(B, LK, dtype=torch.float64) * 2
    fertility[0, 1] = 0.0
    with torch.no_grad():
        _, weights = attention(query, memory, mask, fertility=fertility)
        expected = by_hand(attention, query, memory, mask, fertility)[1]
    torch.testing.assert_close(weights, expected, atol=1e-12, rtol=0)
    assert (weights[0, :, 1] == 0).all()


def test_fertility_may_be_predicted_and_learned():
    class Predictor(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(D, 1, dtype=torch.float64)

        def forward(self, memory):
            return self.line(memory).squeeze(-1).exp()

    query, memory, mask = inputs()
    attention = make(fertility=Predictor())
    _, weights = attention(query, memory, mask)
    given = make(fertility=1.0)
    given.load_state_dict(attention.state_dict(), strict=False)
    predicted = attention.fertility(memory)
    torch.testing.assert_close(weights, given(query, memory, mask, predicted).weights)
    weights.square().sum().backward()
    assert attention.fertility.line.weight.grad.abs().max() > 0


@every_mapping
def test_steps_are_the_sequence(mapping):
    query, memory, mask = inputs()
    attention = make(mapping, fertility=1.2)
    context, weights = attention(query, memory, mask)
    state = attention.start(memory, mask)
    for t in range(LQ):
        output, state = attention.step(query[:, t], state)
        assert torch.equal(output.context, context[:, t])
        assert torch.equal(output.weights, weights[:, t])
    left = (1.2 - weights[..., :-1].sum(1)).clamp(min=0)
    torch.testing.assert_close(state.left, left, atol=1e-12, rtol=0)
    one = attention(query[:, 0], memory, mask)
    assert torch.equal(one.weights, weights[:, 0])


def test_a_search_may_choose_among_states():
    query, memory, mask = inputs()
    attention = make(fertility=1.0)
    _, state = attention.step(query[:, 0], attention.start(memory, mask))
    rows = torch.tensor([1, 1, 0])
    output, chosen = attention.step(query[rows, 1], state.select(rows))
    expected, after = attention.step(query[:, 1], state)
    torch.testing.assert_close(output.weights, expected.weights[rows])
    torch.testing.assert_close(chosen.left, after.left[rows])


@every_mapping
def test_padding_is_as_if_it_were_cut(mapping):
    query, memory, mask = inputs()
    attention = make(mapping, fertility=0.9)
    whole = attention(query, memory, mask)
    cut = attention(query[1:2], memory[1:2, :3])
    torch.testing.assert_close(whole.context[1:2], cut.context, atol=1e-12, rtol=0)
    torch.testing.assert_close(whole.weights[1:2, :, [0, 1, 2, 5]], cut.weights)
    assert (whole.weights[1, :, 3:5] == 0).all()


@every_mapping
def test_gradients_go_through_all_steps(mapping):
    query, memory, _ = inputs()
    attention = make(mapping, fertility=1.0)
    fertility = torch.full((1, 3), 0.9, dtype=torch.float64, requires_grad=True)
    q, m = (query[:1, :3] / 20).clone().requires_grad_(), memory[:1, :3].clone().requires_grad_()

    def attend(q, m, f):
        return attention(q, m, None, f).context

    assert torch.autograd.gradcheck(attend, (q, m, fertility))
    weights = attention(q, m, None, fertility).weights
    (back,) = torch.autograd.grad(weights[0, -1].square().sum(), q)
    assert back[0, 0].abs().max() > 0, "the last step does not know of the first"


def test_without_a_sink_the_row_that_is_exhausted_is_named():
    query, memory, _ = inputs()
    attention = make(fertility=0.5, sink=False)
    assert attention(query[:, :2], memory).weights.shape == (B, 2, LK)
    with pytest.raises(ValueError, match=r"upper must sum to at least 1 .*got 0\.5 in row 0"):
        attention(query[:, :3], memory)

    message = r"^too little fertility is left .* or use sink=True"
    with pytest.raises(ValueError, match=message):
        attention(query[:, :3], memory)


@every_mapping
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_every_word_may_be_used_up_without_a_sink(mapping, dtype):
    """As many queries as there is fertility: rounding does not leave too little for the last."""
    for length in (5, 60):
        torch.manual_seed(length)
        attention = px.nn.FertilityAttention(4, D, 1.0, mapping, sink=False, dtype=dtype)
        query, memory = torch.randn(2, length, 4).to(dtype), torch.randn(2, length, D).to(dtype)
        context, weights = attention(query, memory)
        assert context.dtype == weights.dtype == dtype
        # what is returned is rounded to the dtype, what is left is not
        room = max(torch.finfo(dtype).eps, 1e-5)
        assert (weights.double().sum(1) - 1).abs().max() <= room
        assert (weights.double().sum(2) - 1).abs().max() <= room
        with pytest.raises(ValueError, match=r"use sink=True"):
            attention(torch.cat([query, query[:, :1]], 1), memory)


@every_mapping
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_gives_no_more_than_the_fertility(mapping, dtype):
    torch.manual_seed(0)
    attention = px.nn.FertilityAttention(4, D, 1.0, mapping, dtype=dtype)
    query = 2 * torch.randn(20, 30, 4).to(dtype)
    memory = torch.randn(20, LK, D).to(dtype)
    state = attention.start(memory)
    assert state.left.dtype == torch.float32
    weights = attention(query, memory).weights
    assert weights.dtype == dtype
    total = weights[..., :-1].double().sum(1)
    assert total.max() <= 1 + 1e-6
    assert total.max() > 1 - 1e-2, "nothing was used up"
    fertility = torch.rand(20, LK)
    total = attention(query, memory, fertility=fertility).weights[..., :-1].double().sum(1)
    assert (total <= fertility + 1e-6).all()
    assert (weights.double().sum(-1) - 1).abs().max() <= torch.finfo(dtype).eps


def test_an_exhausted_word_is_zero_in_half_precision():
    """The bound is rounded down; what that leaves is not attended to in the steps that follow."""
    attention = px.nn.FertilityAttention(1, 1, 1.0, exhaustion=0.0, dtype=torch.bfloat16)
    with torch.no_grad():
        attention.weight.fill_(8.0)
        attention.sink.zero_()
    one = torch.ones(1, 4, 1).bfloat16()
    left = torch.tensor([[0.7]])  # no number of bfloat16
    weights = attention(one, one[:, :1], fertility=left).weights[0, :, 0]
    assert weights[0] > 0.69
    assert weights[0].float() <= 0.7
    assert (weights[1:] == 0).all()


def test_fertility_may_be_more_than_half_precision_holds():
    attention = px.nn.FertilityAttention(4, D, 1e5, exhaustion=0.0, dtype=torch.float16)
    query, memory = torch.randn(2, 3, 4).half(), torch.randn(2, LK, D).half()
    weights = attention(query, memory).weights
    assert (weights.float().sum(-1) - 1).abs().max() <= torch.finfo(torch.float16).eps


def test_half_precision_and_no_queries():
    attention = px.nn.FertilityAttention(4, 6, dtype=torch.bfloat16)
    out = attention(torch.randn(2, 3, 4).bfloat16(), torch.randn(2, 5, 6).bfloat16())
    assert out.weights.dtype == torch.bfloat16
    out = attention(torch.randn(2, 0, 4).bfloat16(), torch.randn(2, 5, 6).bfloat16())
    assert out.context.shape == (2, 0, 6)
    assert out.weights.shape == (2, 0, 6)


def test_what_is_refused():
    query, memory, mask = inputs()
    with pytest.raises(ValueError, match=r"^mapping must be constrained_softmax .*got Sparsemax"):
        make("sparsemax")
    with pytest.raises(ValueError, match=r"without bounds of its own.*upper=0\.5"):
        make("constrained_softmax(upper=0.5)")
    for bad in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=r"^fertility must be greater than 0 and finite"):
            make(fertility=bad)
    for other in (torch.tensor(1.0), torch.ones(3, 5), "2", None, True):
        message = r"^fertility must be a number, or a Module .*got .*fertility=\.\.\.\)"
        with pytest.raises(TypeError, match=message):
            make(fertility=other)
    with pytest.raises(ValueError, match=r"^exhaustion must be at least 0"):
        make(exhaustion=-0.1)
    attention = make()
    with pytest.raises(ValueError, match=r"shape \(3, 5\), got \(3, 6\)"):
        attention(query, memory, mask, torch.ones(B, LK + 1))
    with pytest.raises(ValueError, match=r"every value of fertility must be at least 0, got -1"):
        attention(query, memory, mask, -torch.ones(B, LK))
    with pytest.raises(ValueError, match=r"^mask must have shape \(3, 5\), got \(3, 6\)"):
        attention(query, memory, torch.ones(B, LK + 1, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"for one step, got \(3, 7, 4\)"):
        attention.step(query, attention.start(memory))
    assert "fertility=2, mapping=constrained_sparsemax, exhaustion=0.2, sink=True" in repr(
        attention
    )
