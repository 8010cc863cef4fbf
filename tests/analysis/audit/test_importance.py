"""Every importance against a loop over single texts and tokens, in float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.integrate import quad_vec

from parsimax.analysis.audit import importance
from parsimax.analysis.audit.auditable import Text
from parsimax.analysis.audit.methods import (
    GradientNorm,
    GradientTimesInput,
    IntegratedGradients,
    LeaveOneOut,
)

from .models import model, texts

LENGTHS = [7, 2, 9, 1, 3]


def one(text):
    return torch.tensor([list(text.tokens)]), torch.ones(1, len(text.tokens), dtype=torch.bool)


def predict(m, h, a=None):
    mask = torch.ones(h.shape[:2], dtype=torch.bool)
    return m.decode(h, m.attend(h, mask) if a is None else a, mask)[0]


def naive_gradient(m, text, method, source):
    """One text at a time, with the formulas as the papers write them."""
    tokens, mask = one(text)
    x = m.embed(tokens).detach()
    h = m.encode(x, mask).detach()
    a0 = m.attend(h, mask).detach()
    c = predict(m, h).argmax()
    held = a0 if method.detach_attention else None

    def f(z):
        return predict(m, m.encode(z, mask) if source == "inputs" else z, held)[c]

    return attribution(f, x if source == "inputs" else h, method)


def attribution(f, z, method):
    if isinstance(method, IntegratedGradients):
        # adaptive quadrature: not the rule under test
        total, _ = quad_vec(lambda t: jacobian(f, z * t).flatten().numpy(), 0, 1, epsabs=1e-9)
        total = torch.from_numpy(total).reshape(z.shape)
        return (total * z).sum(-1).abs()[0]
    g = jacobian(f, z)
    if isinstance(method, GradientNorm):
        return (g**2).sum(-1).sqrt()[0]
    return (g * z).sum(-1).abs()[0]


def jacobian(f, z):
    z = z.detach().clone().requires_grad_()
    return torch.autograd.grad(f(z), z)[0].detach()


def check(found, naive, texts_, tolerance=1e-9):
    assert len(found) == len(texts_)
    for text, ours in zip(texts_, found, strict=True):
        torch.testing.assert_close(ours, naive(text), rtol=0, atol=tolerance)


@pytest.mark.parametrize("mapping", ["softmax", "sparsemax"])
@pytest.mark.parametrize("source", ["inputs", "hidden"])
@pytest.mark.parametrize(
    "method",
    [
        GradientNorm(),
        GradientNorm(detach_attention=True),
        GradientTimesInput(),
        GradientTimesInput(detach_attention=False),
    ],
)
def test_gradients_of_predictions(method, source, mapping):
    m = model(mapping=mapping, classes=3)
    data = texts(LENGTHS)
    found = importance(m.auditable(), data, method, source=source, normalise=False)
    check(found, lambda t: naive_gradient(m, t, method, source), data)


@pytest.mark.parametrize("source", ["inputs", "hidden"])
@pytest.mark.parametrize("detach", [False, True])
def test_integrated_gradients(source, detach):
    m = model()
    data = texts([5, 3])
    method = IntegratedGradients(detach_attention=detach)
    found = importance(m.auditable(), data, method, source=source, normalise=False)
    check(found, lambda t: naive_gradient(m, t, method, source), data, tolerance=1e-6)


def test_integrated_gradients_are_complete():
    """Where all attributions have one sign, their absolute values add up to f(x) − f(0)."""
    m = model()
    for parameter in (m.out.weight, m.out.bias, m.score.weight):
        torch.nn.init.zeros_(parameter)
    with torch.no_grad():
        m.out.weight[0] = 1.0
    data = texts([6])
    h = torch.rand(1, 6, 10, dtype=torch.float64)
    m.encode = lambda x, mask: h.expand(len(x), -1, -1) + 0 * x.sum()
    (found,) = importance(
        m.auditable(), data, "integrated_gradients", source="hidden", normalise=False
    )
    expected = predict(m, h)[0] - predict(m, 0 * h)[0]
    torch.testing.assert_close(found.sum(), expected.detach(), rtol=0, atol=1e-12)


def naive_states(m, text, method):
    tokens, mask = one(text)
    x = m.embed(tokens).detach()
    return torch.stack(
        [
            attribution(lambda z, p=p: m.encode(z, mask)[0, p].norm(), x, method)
            for p in range(len(text.tokens))
        ]
    )


@pytest.mark.parametrize("memory", [2**29, 20_000])
@pytest.mark.parametrize("method", [GradientNorm(), GradientTimesInput()])
def test_inputs_to_hidden(method, memory):
    m = model()
    data = texts(LENGTHS)
    found = importance(m.auditable(), data, method, target="hidden", normalise=False, memory=memory)
    check(found, lambda t: naive_states(m, t, method), data)


def test_inputs_to_hidden_integrated():
    m = model()
    data = texts([4, 3])
    found = importance(
        m.auditable(), data, "integrated_gradients", target="hidden", normalise=False
    )
    check(found, lambda t: naive_states(m, t, IntegratedGradients()), data, tolerance=1e-6)


def test_more_texts_than_rows_share_backwards():
    """With many texts each is there once, and a backward asks one state of every text."""
    m = model()
    data = texts([4, 3] * 33)
    found = importance(m.auditable(), data, target="hidden", normalise=False)
    check(found, lambda t: naive_states(m, t, GradientNorm()), data)


def naive_leave_one_out(m, text, method, source):
    n = len(text.tokens)
    tokens, mask = one(text)
    x = m.embed(tokens).detach()
    h = m.encode(x, mask).detach()
    a = m.attend(h, mask).detach()
    y = predict(m, h)
    values = []
    for i in range(n):
        rest = [j for j in range(n) if j != i]
        if method.removal == "delete" and not rest:
            values.append(torch.tensor(torch.nan, dtype=torch.float64))
            continue
        if method.removal == "delete":
            if source == "inputs":
                short = Text([text.tokens[j] for j in rest], [])
                states = m.encode(m.embed(one(short)[0]), one(short)[1])
            else:
                states = h[:, rest]
            weights = a[:, rest]
        else:
            keep = torch.ones(n, dtype=torch.float64)
            keep[i] = 0
            if method.removal == "replace":
                other = tokens.clone()
                other[0, i] = method.replacement
                states = m.encode(m.embed(other), mask)
            elif source == "inputs":
                states = m.encode(x * keep[:, None], mask)
            else:
                states = h * keep[:, None]
            weights = a * keep
        if method.attention == "renormalised" and weights.sum() > 0:
            weights = weights / weights.sum()
        new = predict(m, states, None if method.attention == "recomputed" else weights)
        values.append((new - y).abs().sum().detach() / 2)
    return torch.stack(values)


@pytest.mark.parametrize(
    ("removal", "attention"),
    list(itertools.product(["delete", "zero", "replace"], ["recomputed", "kept", "renormalised"])),
)
@pytest.mark.parametrize("source", ["inputs", "hidden"])
def test_leave_one_out(source, removal, attention):
    m = model(mapping="sparsemax", classes=3)
    data = texts(LENGTHS)
    method = LeaveOneOut(removal, attention, replacement=3 if removal == "replace" else None)
    if removal == "replace" and source == "hidden":
        with pytest.raises(ValueError, match="inputs only"):
            importance(m.auditable(), data, method, source=source)
        return
    for memory in (2**29, 30_000):
        found = importance(
            m.auditable(), data, method, source=source, normalise=False, memory=memory
        )
        for text, ours in zip(data, found, strict=True):
            theirs = naive_leave_one_out(m, text, method, source)
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("removal", ["delete", "zero"])
@pytest.mark.parametrize("memory", [2**29, 30_000])
def test_leave_one_out_of_states(removal, memory):
    m = model()
    data = texts(LENGTHS)

    def naive(text):
        n = len(text.tokens)
        tokens, mask = one(text)
        x = m.embed(tokens).detach()
        norms = m.encode(x, mask)[0].norm(dim=-1).detach()
        found = torch.zeros(n, n, dtype=torch.float64)
        for p, i in itertools.product(range(n), range(n)):
            if removal == "zero":
                z = x.clone()
                z[0, i] = 0
                after = m.encode(z, mask)[0, p].norm()
            elif p == i:
                after = torch.tensor(0.0)
            else:
                rest = [j for j in range(n) if j != i]
                after = m.encode(x[:, rest], mask[:, rest])[0, rest.index(p)].norm()
            found[p, i] = (norms[p] - after).abs().detach()
        return found

    found = importance(
        m.auditable(),
        data,
        LeaveOneOut(removal),
        target="hidden",
        normalise=False,
        memory=memory,
    )
    check(found, naive, data, tolerance=1e-12)


def test_normalised_values_are_shares():
    m = model()
    data = texts([5, 4])
    for values in importance(m.auditable(), data):
        assert values.sum().item() == pytest.approx(1)
    for values in importance(m.auditable(), data, target="hidden"):
        np.testing.assert_allclose(values.sum(-1), 1)


def test_one_token_and_no_influence():
    m = model()
    assert importance(m.auditable(), texts([1]), "leave_one_out")[0].isnan().all()
    m.out.weight.data.zero_()
    assert importance(m.auditable(), texts([3]))[0].tolist() == [0.0, 0.0, 0.0]
    assert importance(m.auditable(), []) == []


def test_progress_is_told():
    m = model()
    seen = []
    importance(m.auditable(), texts([3, 4, 9]), progress=lambda *what: seen.append(what))
    assert seen[0][1:] == (0, 3)
    assert seen[-1][1:] == (3, 3)


def test_batches_keep_to_the_budget():
    """No call of encode takes more rows than the measured footprint allows."""
    m = model()
    data = texts([40] * 5)
    rows = []
    encode = m.encode
    m.encode = lambda x, mask: rows.append(len(x)) or encode(x, mask)
    importance(m.auditable(), data, target="hidden", memory=10**9)
    most = max(rows)
    rows.clear()
    importance(m.auditable(), data, target="hidden", memory=10**5)
    assert most == 35  # five texts, each seven times
    assert max(rows) == 2  # the footprint itself is measured with two


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "gradient_nrom"}, "did you mean 'gradient_norm'"),
        ({"source": "outputs"}, "source must be one of inputs, hidden"),
        ({"target": "hidden", "source": "hidden"}, "source='inputs' only"),
        ({"memory": 0}, "memory must be a positive number"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        importance(model().auditable(), texts([3]), **arguments)


def test_bad_methods():
    with pytest.raises(ValueError, match="removal"):
        LeaveOneOut("erase")
    with pytest.raises(ValueError, match="replacement"):
        LeaveOneOut("replace")
    with pytest.raises(ValueError, match="steps"):
        IntegratedGradients(steps=0)
    with pytest.raises(TypeError, match="method"):
        importance(model().auditable(), texts([3]), 7)
    with pytest.raises(ValueError, match="text 1 has none"):
        importance(model().auditable(), texts([3, 0]))
