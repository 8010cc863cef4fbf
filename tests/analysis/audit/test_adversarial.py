"""Adversarial attention: on the simplex, within epsilon, far away, encoded once."""

from __future__ import annotations

import math

import pytest
import torch

import parsimax as px
from parsimax.analysis.audit import Auditable, Search, adversarial_attention, audit, jensen_shannon
from parsimax.viz.audit import audit_page

from .models import model, texts


def alone(m, text, weights=None):
    """Prediction and attention of one text, with the model's own weights or with others."""
    tokens = torch.tensor([list(text.tokens)])
    mask = torch.ones_like(tokens, dtype=torch.bool)
    h = m.encode(m.embed(tokens), mask)
    a = m.attend(h, mask)
    used = a if weights is None else weights.to(h)[None]
    return m.decode(h, used, mask)[0].detach(), a[0].detach()


SEARCHES = [
    Search(steps=60, lr=0.1),
    Search(steps=60, lr=0.1, on_support=True),
    Search(steps=60, lr=0.1, mapping="entmax(alpha=1.5)"),
    Search(steps=60, lr=0.1, mapping="sparsemax", on_support=True, epsilon=0.001),
    Search(steps=3, lr=0.1, epsilon=0.0),
    Search(steps=0, epsilon=1e-4, count=1),
]


@pytest.mark.parametrize("search", SEARCHES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_promised(search, dtype):
    m = model(mapping="entmax(alpha=1.5)").to(dtype)
    data = texts([1, 2, 5, 8, 8, 13, 21])
    found = adversarial_attention(m.auditable(), data, search)
    for i, text in enumerate(data):
        y, a = alone(m, text)
        w = found.attention[i]
        assert w.dtype == torch.float64
        assert w.min() >= 0
        assert w.sum().item() == pytest.approx(1, abs=1e-9)
        moved = (alone(m, text, w)[0].double() - y.double()).abs().sum().item() / 2
        # attention itself, recomputed in another batch, is all that epsilon = 0 can mean
        assert moved <= search.epsilon + (0 if search.epsilon else 1e-6)
        assert moved == pytest.approx(found.tvd[i].item(), abs=1e-6)
        expected = jensen_shannon(w, a.double() / a.double().sum()).item()
        assert found.jsd[i].item() == pytest.approx(expected, abs=1e-6)
        if search.on_support:
            assert not bool((w[a == 0] != 0).any())
    if search.mapping != "softmax" and not search.on_support:
        assert all(bool((w == 0).any()) for w in found.attention[3:])


def test_finds_what_there_is_to_find():
    """Equal hidden states: every attention gives the same prediction, and all of log 2 is free."""
    m = model()
    tokens = texts([12])[0]

    def encode(x, mask):
        return torch.ones(*mask.shape, 10, dtype=x.dtype) + 0 * x.sum()

    auditable = Auditable(m.embed, encode, lambda h, mask: one_hot(mask, h), m.decode)
    found = adversarial_attention(auditable, [tokens], Search(lr=0.1, steps=200))
    assert found.jsd[0].item() == pytest.approx(math.log(2), abs=0.01)
    assert not found.mixed[0]


def one_hot(mask, h):
    return torch.eye(mask.shape[1], dtype=h.dtype)[:1].expand(len(mask), -1)


def test_no_way_out_is_attention_itself():
    """A prediction that shows every weight leaves nothing else within a small epsilon."""
    m = model()

    def decode(h, a, mask):
        p = a[:, :1] * 0.9 + 0.05
        return torch.cat([p, 1 - p], 1)

    auditable = Auditable(m.embed, m.encode, m.attend, decode)
    found = adversarial_attention(
        auditable, texts([2, 2, 2]), Search(steps=5, epsilon=1e-6, count=2)
    )
    assert bool(found.mixed.all())
    assert found.jsd.max() < 1e-6
    assert found.tvd.max() <= 1e-6


def test_more_steps_go_farther():
    m = model()
    data = texts([10] * 20)
    near = adversarial_attention(m.auditable(), data, Search(steps=0))
    far = adversarial_attention(m.auditable(), data, Search(steps=100, lr=0.1))
    assert bool((far.jsd >= near.jsd - 1e-9).all())
    assert far.jsd.mean() > near.jsd.mean() + 0.05


def test_gradient_of_the_objective():
    """The gradient that is written out, against autograd at weights without zeros."""
    from parsimax.analysis.audit.adversarial import _Batch
    from parsimax.analysis.audit.checked import Checked
    from parsimax.analysis.audit.observe import encoded
    from parsimax.analysis.audit.rows import tokens_of

    m = model()
    search = Search(count=3)
    (part,) = encoded(Checked(m.auditable()), tokens_of(texts([6, 6])), 1, 10)
    batch = _Batch(Checked(m.auditable()), part, search)
    p = torch.softmax(torch.randn(2, 3, 6, dtype=torch.float64), -1).requires_grad_()
    q = part.a[:, None]

    def divergence(u, v):  # without the constant term of its gradient, which moves nothing
        mean = (u + v) / 2
        return ((u * (u / mean).log()).sum(-1) + (v * (v / mean).log()).sum(-1)) / 2

    objective = divergence(p, q).sum()
    for k in range(3):
        for j in range(k):
            objective = objective + divergence(p[:, k], p[:, j]).sum() / (3 * 2)
    (expected,) = torch.autograd.grad(objective, p)
    torch.testing.assert_close(batch._divergence(p.detach())[1], expected)


def test_hidden_states_are_computed_once():
    m = model()
    calls = []

    def encode(x, mask):
        calls.append(len(x))
        return m.encode(x, mask)

    auditable = Auditable(m.embed, encode, m.attend, m.decode)
    adversarial_attention(auditable, texts([5] * 10), Search(steps=20))
    assert sum(calls) - 6 == 10  # six rows to measure the footprint, at two lengths if there are


def test_does_not_depend_on_the_batch():
    m = model()
    data = texts([5, 9, 6, 5])
    search = Search(steps=20, lr=0.1)
    wide = adversarial_attention(m.auditable(), data, search)
    narrow = adversarial_attention(m.auditable(), data, search, memory=1)
    torch.testing.assert_close(wide.jsd, narrow.jsd, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, "count must be an int of at least 1"),
        ({"steps": -1}, "steps must be"),
        ({"epsilon": -0.1}, "epsilon must be between 0 and 1"),
        ({"lr": 0.0}, "lr must be positive"),
        ({"penalty": -1.0}, "penalty"),
        ({"mapping": "sparsmax"}, "did you mean 'sparsemax'"),
    ],
)
def test_bad_searches(options, message):
    with pytest.raises(ValueError, match=message):
        Search(**options)


def test_empty_text():
    with pytest.raises(ValueError, match="text 0 has none"):
        adversarial_attention(model().auditable(), texts([0]))


@pytest.mark.parametrize("mapping", ["sparsemax", "entmax(alpha=1.5)"])
def test_sparse_ones_stay_sparse_beside_dense_attention(mapping):
    m = model()  # softmax: a mixture with its attention has no zeros
    data = texts([9] * 8)
    search = Search(mapping=mapping, steps=20, epsilon=1e-3)
    found = adversarial_attention(m.auditable(), data, search)
    assert bool(found.mixed.any())
    for weights, there, jsd in zip(found.attention, found.found, found.jsd, strict=True):
        if there:
            assert bool((weights == 0).any())
        else:
            assert bool((weights > 0).all())  # attention itself
            assert jsd == 0
    assert bool(adversarial_attention(m.auditable(), data, Search(steps=2)).found.all())


def test_none_found_is_counted_and_has_no_distance():
    """A prediction that shows whether any weight is zero leaves no sparse weights."""
    m = model()

    def decode(h, a, mask):
        p = ((a > 0) | ~mask).all(1, keepdim=True).double() * 0.9 + 0.05
        return torch.cat([p, 1 - p], 1) + 0 * (h.sum((1, 2)) + a.sum(1))[:, None]

    auditable = Auditable(m.embed, m.encode, m.attend, decode)
    data = texts([5] * 6)
    search = Search(mapping=px.mappings.parse("sparsemax"), steps=3)
    result = audit(
        auditable,
        data,
        importances=(),
        states=None,
        permutations=0,
        fractions=(),
        searches=[search],
        resamples=10,
    )
    subject = "adversarial sparsemax"
    assert result.estimate("jsd", subject).excluded == {"no such weights within 0.01 were found": 6}
    assert (result.estimate("far", subject).mean, result.estimate("far", subject).count) == (0, 6)
    assert result.settings["searches"][subject]["mapping"] == "sparsemax"
    assert all(math.isnan(v) for v in result.examples[0].adversarial[subject])
    result.to_json()
    page = audit_page(result)
    assert "none were found" in page
    assert "The search for other weights was short here: 5 × 3 steps" in page


def test_searches_are_named_by_what_differs():
    m = model()
    three = [Search(steps=1, seed=s) for s in (0, 1, 2)]
    result = audit(
        m.auditable(),
        texts([5] * 3),
        importances=(),
        states=None,
        permutations=0,
        fractions=(),
        searches=three,
        resamples=10,
    )
    assert list(result.settings["searches"]) == [
        "adversarial attention",
        "adversarial attention, seed 1",
        "adversarial attention, seed 2",
    ]
