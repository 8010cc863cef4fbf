"""Comprehensiveness, sufficiency and exchanged weights against loops over single texts."""

from __future__ import annotations

import math

import pytest
import torch

from parsimax.analysis.audit.checked import Checked
from parsimax.analysis.audit.erasure import erasure
from parsimax.analysis.audit.rows import tokens_of
from parsimax.analysis.audit.swaps import swaps

from .models import model, texts


def predict(m, tokens):
    tokens = torch.tensor([tokens])
    mask = torch.ones_like(tokens, dtype=torch.bool)
    h = m.encode(m.embed(tokens), mask)
    return m.decode(h, m.attend(h, mask), mask)[0].detach()


def test_against_a_loop():
    m = model(classes=3)
    data = texts([2, 7, 11, 20])
    rows = tokens_of(data)
    generator = torch.Generator().manual_seed(3)
    scores = [torch.rand(len(row), generator=generator) for row in rows]
    whole = torch.stack([predict(m, list(t.tokens)) for t in data])
    fractions = (0.05, 0.2, 0.5, 1.0)
    found = erasure(Checked(m.auditable()), rows, whole, {"mine": scores}, fractions=fractions)
    for t, text in enumerate(data):
        n = len(text.tokens)
        c = whole[t].argmax()
        order = scores[t].argsort(descending=True).tolist()
        for f, q in enumerate(fractions):
            k = min(math.ceil(round(q * n, 9)), n - 1)
            rest = [text.tokens[i] for i in range(n) if i not in order[:k]]
            alone = [text.tokens[i] for i in range(n) if i in order[:k]]
            mine = found["mine"]
            expected = whole[t, c] - predict(m, rest)[c]
            assert mine.comprehensiveness_at[t, f].item() == pytest.approx(expected.item())
            expected = whole[t, c] - predict(m, alone)[c]
            assert mine.sufficiency_at[t, f].item() == pytest.approx(expected.item())
    mine = found["mine"]
    torch.testing.assert_close(mine.comprehensiveness, mine.comprehensiveness_at.mean(1))
    assert set(found) == {"mine", "random"}


def test_ties_are_not_broken_from_left_to_right():
    """A constant ranking must remove other tokens than the first ones."""
    m = model()
    data = texts([10] * 30)
    rows = tokens_of(data)
    whole = torch.stack([predict(m, list(t.tokens)) for t in data])
    left = [torch.arange(10.0).flip(0)] * 30
    found = erasure(
        Checked(m.auditable()), rows, whole, {"flat": [torch.ones(10)] * 30, "left": left}
    )
    assert not torch.allclose(found["flat"].comprehensiveness, found["left"].comprehensiveness)


def test_a_ranking_that_is_not_finite():
    m = model()
    rows = tokens_of(texts([3, 4]))
    whole = torch.full((2, 2), 0.5, dtype=torch.float64)
    scores = [torch.tensor([1.0, math.nan, 0.0]), torch.rand(4)]
    found = erasure(Checked(m.auditable()), rows, whole, {"x": scores})["x"]
    assert found.comprehensiveness.isnan().tolist() == [True, False]


def test_fractions_are_checked():
    with pytest.raises(ValueError, match="fractions"):
        erasure(Checked(model().auditable()), [], torch.empty(0, 2), {}, fractions=(0.0,))


def test_exchanged_weights():
    m = model(classes=3, mapping="sparsemax")
    data = texts([2, 5, 9])
    found = swaps(Checked(m.auditable()), tokens_of(data), permutations=500)
    for t, text in enumerate(data):
        tokens = torch.tensor([list(text.tokens)])
        mask = torch.ones_like(tokens, dtype=torch.bool)
        h = m.encode(m.embed(tokens), mask)
        a = m.attend(h, mask)
        y = m.decode(h, a, mask)[0]
        flat = m.decode(h, torch.full_like(a, 1 / len(text.tokens)), mask)[0]
        assert found.uniform[t].item() == pytest.approx(((flat - y).abs().sum() / 2).item())
        assert found.uniform_flips[t] == float(flat.argmax() != y.argmax())
        assert found.uniform_predictions[t].tolist() == pytest.approx(flat.tolist())
    # of two weights there are two orders: the median move is half of the only one there is
    tokens = torch.tensor([list(data[0].tokens)])
    mask = torch.ones_like(tokens, dtype=torch.bool)
    h = m.encode(m.embed(tokens), mask)
    a = m.attend(h, mask)
    y = m.decode(h, a, mask)[0]
    other = m.decode(h, a.flip(1), mask)[0]
    move = ((other - y).abs().sum() / 2).item()
    assert min(abs(found.permuted[0].item() - v) for v in (0, move / 2, move)) < 1e-9
    if other.argmax() != y.argmax():
        assert found.permuted_flips[0].item() == pytest.approx(0.5, abs=0.1)


def test_constant_weights_cannot_be_permuted():
    m = model()
    m.score.weight.data.zero_()
    found = swaps(Checked(m.auditable()), tokens_of(texts([5, 6])), permutations=10)
    assert found.permuted.max() < 1e-12
    assert found.uniform.max() < 1e-12


def test_permutations_do_not_depend_on_the_batch():
    m = model()
    rows = tokens_of(texts([5, 6, 9, 5]))
    wide = swaps(Checked(m.auditable()), rows, permutations=20)
    narrow = swaps(Checked(m.auditable(), memory=1), rows, permutations=20)
    torch.testing.assert_close(wide.permuted, narrow.permuted)


def test_permutations_are_checked():
    with pytest.raises(ValueError, match="permutations"):
        swaps(Checked(model().auditable()), [], permutations=0)
