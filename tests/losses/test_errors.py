"""Bad input is refused at the front door, by name."""

import pytest
import torch

import parsimax as px

Z = torch.zeros(2, 3)
T = torch.tensor([0, 1])
P = torch.full((2, 3), 1 / 3)


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "words"),
    [
        (([1.0], T), {}, TypeError, ["z", "Tensor", "list"]),
        ((Z.long(), T), {}, TypeError, ["z", "floating-point", "int64"]),
        ((torch.zeros(2, 0), T), {}, ValueError, ["z", "at least one class", "(2, 0)"]),
        ((Z, [0, 1]), {}, TypeError, ["target", "Tensor", "list"]),
        ((Z, T.int()), {}, TypeError, ["target", "int64", "int32"]),
        ((Z, T.bool()), {}, TypeError, ["target", "bool"]),
        ((Z, torch.tensor([0, 3])), {}, ValueError, ["target", "[0, 2]", "got 3", "(1,)"]),
        ((Z, torch.tensor([-1, 0])), {}, ValueError, ["target", "got -1", "(0,)", "-100"]),
        ((Z, torch.tensor([0, 1, 2])), {}, ValueError, ["target", "(2,)", "(3,)"]),
        ((Z, torch.tensor([[0], [1]])), {}, ValueError, ["target", "(2,)", "(2, 1)"]),
        ((Z, P[:, :2]), {}, ValueError, ["target", "(2, 3)", "(2, 2)"]),
        ((Z, P), {"ignore_index": 1}, ValueError, ["ignore_index", "1", "probabilities"]),
        ((Z, T), {"ignore_index": 1.0}, TypeError, ["ignore_index", "int", "1.0"]),
        ((Z, T), {"weight": torch.ones(2)}, ValueError, ["weight", "(3,)", "(2,)"]),
        ((Z, T), {"weight": torch.ones(3).int()}, TypeError, ["weight", "floating", "int32"]),
        ((Z, T), {"weight": [1, 1, 1]}, TypeError, ["weight", "list"]),
        ((Z, T), {"reduction": "maen"}, ValueError, ["reduction", "'maen'", "did you mean 'mean'"]),
        ((Z, T), {"label_smoothing": 1.5}, ValueError, ["label_smoothing", "0.0 and 1.0", "1.5"]),
        ((Z, T), {"label_smoothing": "x"}, TypeError, ["label_smoothing", "'x'"]),
        ((Z, T), {"alpha": 0.5}, ValueError, ["alpha", "at least 1", "0.5"]),
        ((Z, T), {"alpha": torch.tensor(0.5)}, ValueError, ["alpha", "at least 1", "0.5"]),
        ((Z, T), {"alpha": torch.ones(2)}, ValueError, ["alpha", "(2, 1)", "(2,)"]),
        ((Z, T), {"backend": "cuda"}, ValueError, ["backend", "'cuda'"]),
    ],
)
def test_entmax_loss_refuses(arguments, keywords, error, words):
    with pytest.raises(error) as caught:
        px.entmax_loss(*arguments, **keywords)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((Z, T, "sparsmax"), ValueError, ["sparsmax", "did you mean 'sparsemax'"]),
        ((Z, T, px.entmax), TypeError, ["mapping"]),
        ((Z, T, "budget(k=2)"), ValueError, ["k = 2", "target vector that sums to k"]),
        (
            (Z, T, px.mappings.Budget(torch.tensor(2.0))),
            ValueError,
            ["k = 2", "target vector that sums to k"],
        ),
        ((Z, 2 * P, "budget(k=1.5)"), ValueError, ["sum to k", "2"]),
        ((Z, 6 * P, "budget(k=2)"), ValueError, ["<= 1", "2"]),
        ((Z, P, "budget(k=4)"), ValueError, ["k", "3 allowed", "4"]),
        ((Z, P - 1, "sparsemax"), ValueError, [">= 0", "-0.66"]),
        ((Z, T, px.mappings.Sparsegen(torch.zeros(3))), ValueError, ["lam", "(2, 1)", "(3,)"]),
    ],
)
def test_fenchel_young_loss_refuses(arguments, error, words):
    with pytest.raises(error) as caught:
        px.fenchel_young_loss(*arguments)
    assert all(word in str(caught.value) for word in words), str(caught.value)


H, W = torch.zeros(2, 4), torch.zeros(3, 4)


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "words"),
    [
        ((H.long(), W, T), {}, TypeError, ["hidden", "floating-point"]),
        ((H, W.t(), T), {}, ValueError, ["weight", "(V, 4)", "(4, 3)"]),
        ((H, W[0], T), {}, ValueError, ["weight", "matrix", "(4,)"]),
        ((H, W.double(), T), {}, TypeError, ["weight", "float32", "float64"]),
        ((H, W, T), {"bias": torch.zeros(4)}, ValueError, ["bias", "(3,)", "(4,)"]),
        ((H, W, T), {"bias": torch.zeros(3).half()}, TypeError, ["bias", "float32", "float16"]),
        ((H, W, P), {}, TypeError, ["target", "class indices", "float32"]),
        ((H, W, T[:1]), {}, ValueError, ["target", "(2,)", "(1,)"]),
        ((H, W, torch.tensor([0, 3])), {}, ValueError, ["target", "[0, 2]", "got 3"]),
        ((H, W, T), {"class_weight": torch.ones(4)}, ValueError, ["class_weight", "(3,)", "(4,)"]),
        (
            (H, W, T),
            {"class_weight": torch.ones(3, requires_grad=True)},
            ValueError,
            ["class_weight", "gradient"],
        ),
        ((H, W, T), {"alpha": torch.full((3,), 1.5)}, ValueError, ["alpha", "(2, 1)", "(3,)"]),
        ((H, W, T), {"reduction": "total"}, ValueError, ["reduction", "'total'"]),
    ],
)
def test_linear_entmax_loss_refuses(arguments, keywords, error, words):
    with pytest.raises(error) as caught:
        px.linear_entmax_loss(*arguments, **keywords)
    assert all(word in str(caught.value) for word in words), str(caught.value)
