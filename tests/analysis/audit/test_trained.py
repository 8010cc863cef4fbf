"""Controls that train: the objective, and what is compared with what."""

from __future__ import annotations

import math

import pytest
import torch

from parsimax.analysis.audit import (
    AdversarialObjective,
    adversarial_control,
    compare,
    jensen_shannon,
    seed_control,
    smoothed_kl,
    uniform_attention,
    uniform_control,
)

from .models import model, texts

DATA = texts([3, 5, 8, 5, 1, 9])


def outputs(m, tokens, mask):
    h = m.encode(m.embed(tokens), mask)
    a = m.attend(h, mask)
    return m.decode(h, a, mask), a


def batch():
    tokens = torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0]])
    return tokens, tokens > 0


@pytest.mark.parametrize("divergence", ["jsd", "smoothed_kl"])
@pytest.mark.parametrize("mapping", ["softmax", "sparsemax"])
def test_objective(divergence, mapping):
    base, other = model(mapping=mapping), model(mapping=mapping, seed=1)
    tokens, mask = batch()
    y, a = outputs(other, tokens, mask)
    loss = AdversarialObjective(base.auditable(), 0.5, divergence)(tokens, mask, y, a)
    z, b = outputs(base, tokens, mask)
    apart = jensen_shannon(a, b) if divergence == "jsd" else smoothed_kl(a, b, mask)
    expected = ((y - z).abs().sum(-1) / 2 - 0.5 * apart).mean()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    loss.backward()
    for parameter in other.parameters():
        assert parameter.grad is None or bool(parameter.grad.isfinite().all())
    assert other.score.weight.grad is not None
    assert all(parameter.grad is None for parameter in base.parameters())


def test_a_model_beside_itself():
    m = model()
    same = compare(m.auditable(), m.auditable(), DATA)
    assert same.jsd.mean == same.tvd.mean == 0.0
    assert same.agreement.mean == 1.0
    assert same.accuracy[0] == same.accuracy[1]
    assert same.jsd.count == 5  # the text of one token is not among them


def test_seeds():
    m = model()
    found = seed_control(m.auditable(), DATA, lambda seed: model(seed=seed).auditable(), [0, 1])
    assert [c.name for c in found] == ["seed 0", "seed 1"]
    assert found[0].jsd.mean == 0.0
    assert found[1].jsd.mean > 0.0


def test_uniform_attention_reaches_training():
    m = model()
    given = []

    def train(attend):
        given.append(attend)
        other = model(seed=2)
        other.attend = attend
        return other.auditable()

    found = uniform_control(m.auditable(), DATA, train)
    assert given == [uniform_attention]
    assert found.kind == "uniform"
    torch.testing.assert_close(
        uniform_attention(torch.zeros(2, 4, 1), batch()[1]),
        torch.tensor([[0.25] * 4, [0.5, 0.5, 0, 0]]),
    )


def test_adversarial_training_moves_attention():
    """With the objective a small model learns to attend elsewhere and to predict alike."""
    base = model()
    tokens = torch.tensor([list(text.tokens) + [0] * (9 - len(text.tokens)) for text in DATA])
    mask = tokens > 0

    def train(objective):
        other = model(seed=1).train()  # from base itself all gradients of JSD are zero
        adam = torch.optim.Adam(other.parameters(), lr=0.03)
        for _ in range(40):
            adam.zero_grad()
            objective(tokens, mask, *outputs(other, tokens, mask)).backward()
            adam.step()
        return other.eval().auditable()

    timid, bold = adversarial_control(base.auditable(), DATA, train, [0.0, 2.0])
    assert timid.jsd.mean + 0.1 < bold.jsd.mean < math.log(2)
    assert timid.tvd.mean < 0.05
    assert bold.tvd.mean < 0.2
    assert bold.name == "adversarial, λ = 2"


def test_bad_arguments():
    m = model()
    with pytest.raises(ValueError, match="divergence must be one of jsd, smoothed_kl"):
        AdversarialObjective(m.auditable(), 1.0, "kl")
    with pytest.raises(ValueError, match="lam must be at least 0"):
        AdversarialObjective(m.auditable(), -1.0)
    with pytest.raises(ValueError, match="same classes"):
        compare(m.auditable(), model(classes=3).auditable(), DATA)
