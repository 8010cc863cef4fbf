"""The way back from single states is that of autograd, for every encoder that offers it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from parsimax.analysis.audit import Auditable, Text, importance
from parsimax.classify import auditing, transformer_pull
from parsimax.classify.config import (
    BiLSTMSettings,
    ModelSettings,
    TransformerSettings,
)
from parsimax.classify.encoders import Compact, build
from parsimax.classify.model import Classifier

ENCODERS = {
    **{f"bilstm {n}": BiLSTMSettings(hidden=3, layers=n) for n in (1, 2, 3)},
    **{
        f"transformer {n}": TransformerSettings(dim=6, heads=2, layers=n, feedforward=7)
        for n in (1, 2, 3)
    },
}


def encoder(name: str, boundaries: bool = False, size: int = 5) -> Compact:
    torch.manual_seed(0)
    made = build(ENCODERS[name], size, boundaries).double().eval().requires_grad_(False)
    for module in made.modules():
        if isinstance(module, nn.LayerNorm):  # fresh ones have gain 1 and bias 0
            module.weight.normal_()
            module.bias.normal_()
    return made


def naive(encode: Compact, x: Tensor, at: list[int], vectors: Tensor) -> Tensor:
    """One text, one state, one backward at a time."""
    found = torch.zeros(len(x), len(at), *x.shape[1:], dtype=torch.float64)
    for b in range(len(x)):
        for s, p in enumerate(at):
            leaf = x[b : b + 1].clone().requires_grad_()
            h = encode(leaf, torch.ones(leaf.shape[:2], dtype=torch.bool))
            (found[b, s],) = torch.autograd.grad((h[0, p] * vectors[b, s]).sum(), leaf)[0]
    return found


@pytest.mark.parametrize("boundaries", [False, True])
@pytest.mark.parametrize("name", ENCODERS)
def test_states_and_gradients_are_autograds(name: str, boundaries: bool) -> None:
    encode = encoder(name, boundaries)
    x = torch.randn(3, 6, 5, dtype=torch.float64)
    way = encode.pull(x)
    states = encode(x, torch.ones(3, 6, dtype=torch.bool))
    torch.testing.assert_close(way.states, states, rtol=0, atol=1e-12)
    for at in ([0, 1, 2, 3, 4, 5], [1, 2, 5], [3], [4, 4, 0]):
        vectors = torch.randn(3, len(at), encode.size, dtype=torch.float64)
        found = way(torch.tensor(at), vectors)
        torch.testing.assert_close(found, naive(encode, x, at, vectors), rtol=0, atol=1e-11)


def test_a_transformer_without_a_projection_and_in_portions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encode = encoder("transformer 2", size=6)
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    vectors = torch.randn(2, 5, 6, dtype=torch.float64)
    expected = naive(encode, x, list(range(5)), vectors)
    for rows in (1, 20, 30):  # one, two and three states at a time
        monkeypatch.setattr(transformer_pull, "_ROWS", rows)
        found = encode.pull(x)(torch.arange(5), vectors)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


def test_a_text_of_one_token() -> None:
    for name in ENCODERS:
        encode = encoder(name)
        x, vectors = torch.randn(1, 1, 5).double(), torch.randn(1, 1, encode.size).double()
        found = encode.pull(x)(torch.tensor([0]), vectors)
        torch.testing.assert_close(found, naive(encode, x, [0], vectors), rtol=0, atol=1e-12)


def model(name: str, **options: object) -> Auditable:
    torch.manual_seed(1)
    settings = ModelSettings(encoder=ENCODERS[name], embedding=5, boundaries=True, **options)
    return auditing.auditable(Classifier(settings, 20, 2), dtype=torch.float64)


TEXTS = [
    Text(tokens, [str(t) for t in tokens])
    for n in (7, 3, 7, 1, 4, 7, 3)
    for tokens in [torch.randint(2, 20, (n,)).tolist()]
]


@pytest.mark.parametrize("memory", [2**29, 3000])
@pytest.mark.parametrize("method", ["gradient_norm", "gradient_x_input", "integrated_gradients"])
@pytest.mark.parametrize("name", ["bilstm 1", "transformer 2"])
def test_importance_is_the_same_with_and_without(name: str, method: str, memory: int) -> None:
    functions = model(name)
    seen: list[int] = []

    def watched(x: Tensor) -> object:
        assert functions.pull is not None
        seen.append(len(x))
        return functions.pull(x)

    options = {"target": "hidden", "normalise": False, "memory": memory}
    ours = importance(dataclasses.replace(functions, pull=watched), TEXTS, method, **options)
    plain = importance(dataclasses.replace(functions, pull=None), TEXTS, method, **options)
    assert (max(seen) == 1) == (memory == 3000)  # texts of one length go together if they fit
    for found, expected in zip(ours, plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_states_that_are_zero_have_no_gradient() -> None:
    def encode(x: Tensor, mask: Tensor) -> Tensor:
        return 0 * x

    class Way:
        def __init__(self, x: Tensor) -> None:
            self.states = 0 * x

        def __call__(self, at: Tensor, vectors: Tensor) -> Tensor:
            assert vectors.isfinite().all()
            return 0 * vectors[:, :, None].expand(-1, -1, self.states.shape[1], -1)

    functions = dataclasses.replace(
        model("bilstm 1"),
        encode=encode,
        attend=lambda h, mask: 1.0 * mask,
        decode=lambda h, a, mask: h[:, 0, :2].softmax(-1),
        pull=Way,
    )
    for found in importance(functions, TEXTS, target="hidden"):
        assert not found.any()


def test_another_encoders_way_is_refused() -> None:
    torch.manual_seed(2)
    other = Classifier(ModelSettings(encoder=ENCODERS["bilstm 1"], embedding=5), 20, 2).double()
    wrong = dataclasses.replace(model("bilstm 1"), pull=other.encoder.pull)
    with pytest.raises(ValueError, match="pull must lead to the states that encode returns"):
        importance(wrong, TEXTS, target="hidden")


class Reversed:
    """The right states, and gradients of the wrong ones."""

    def __init__(self, x: Tensor) -> None:
        way = model("bilstm 1").pull
        assert way is not None
        self._way = way(x)
        self.states = self._way.states

    def __call__(self, at: Tensor, vectors: Tensor) -> Tensor:
        return self._way(self.states.shape[1] - 1 - at, vectors)


class Short(Reversed):
    def __call__(self, at: Tensor, vectors: Tensor) -> Tensor:
        return self._way(at, vectors)[:, :, 1:]


@pytest.mark.parametrize(
    ("pull", "error", "match"),
    [
        (3, TypeError, "auditable.pull must be a function or None, got int"),
        (Reversed, ValueError, "pull must lead to the gradients that encode has"),
        (
            Short,
            ValueError,
            r"at, vectors\) must return a tensor of shape \(3, 1, 7, 5\)",
        ),
    ],
)
def test_a_wrong_way_back_is_refused(pull: object, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        importance(dataclasses.replace(model("bilstm 1"), pull=pull), TEXTS, target="hidden")


def test_heads_with_other_mappings_go_the_plain_way() -> None:
    settings = TransformerSettings(dim=6, heads=2, attention="entmax(alpha=1.5)")
    functions = auditing.auditable(Classifier(ModelSettings(encoder=settings), 20, 2))
    assert functions.pull is None
    assert len(importance(functions, TEXTS[:2], target="hidden")) == 2
