"""At alpha = 1 the losses are cross_entropy, argument by argument."""

import itertools

import pytest
import torch
from tests.contracts.backends import AVAILABLE
from torch.nn import functional as F

import parsimax as px

CLASSES = 6
LAYOUTS = [(CLASSES,), (5, CLASSES), (3, CLASSES, 4), (2, CLASSES, 3, 2)]
COMBINATIONS = list(
    itertools.product(
        ("index", "probability"), (False, True), (0.0, 0.1, 1.0), ("mean", "sum", "none")
    )
)


def items(shape):
    return shape[1:] if len(shape) == 1 else (shape[0], *shape[2:])


def make_target(kind, shape, dtype, ignore_index):
    if kind == "probability":
        return torch.rand(shape, dtype=dtype, requires_grad=True)
    target = torch.randint(0, CLASSES, items(shape))
    if target.ndim:
        target.view(-1)[::3] = ignore_index
    return target


@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize("shape", LAYOUTS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_equals_cross_entropy(shape, dtype, backend):
    torch.manual_seed(0)
    for kind, weighted, smoothing, reduction in COMBINATIONS:
        for ignore_index in (-100, -1, 2):
            if kind == "probability" and ignore_index >= 0:
                continue
            z = (3 * torch.randn(shape, dtype=dtype)).requires_grad_()
            target = make_target(kind, shape, dtype, ignore_index)
            weight = torch.rand(CLASSES, dtype=dtype) if weighted else None
            options = {
                "weight": weight,
                "ignore_index": ignore_index,
                "reduction": reduction,
                "label_smoothing": smoothing,
            }
            if kind == "index" and bool((target == ignore_index).all()):
                continue  # our one departure, tested below
            ours = px.entmax_loss(z, target, alpha=1.0, backend=backend, **options)
            theirs = F.cross_entropy(z, target, **options)
            torch.testing.assert_close(ours, theirs)
            inputs = (z, target) if kind == "probability" else (z,)
            g = torch.rand_like(theirs)
            torch.testing.assert_close(
                torch.autograd.grad(ours, inputs, g), torch.autograd.grad(theirs, inputs, g)
            )


def test_uint8_targets_are_taken_as_torch_takes_them():
    z, target = torch.randn(4, 5), torch.tensor([0, 4, 2, 1], dtype=torch.uint8)
    torch.testing.assert_close(px.entmax_loss(z, target, 1.0), F.cross_entropy(z, target))


def test_probabilities_widen_the_result_as_in_torch():
    z, y = torch.randn(4, 5), torch.rand(4, 5, dtype=torch.float64)
    theirs = F.cross_entropy(z, y)
    ours = px.entmax_loss(z, y, 1.0)
    assert ours.dtype == theirs.dtype == torch.float64
    # torch computes log_softmax in float32 here
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_weights_of_zero_give_what_torch_gives():
    z, target = torch.randn(3, 4), torch.tensor([1, 1, 1])
    weight = torch.tensor([1.0, 0.0, 1.0, 1.0])
    assert F.cross_entropy(z, target, weight).isnan()
    assert px.entmax_loss(z, target, 1.0, weight).isnan()


@pytest.mark.parametrize("alpha", [1.0, 1.5])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_mean_of_nothing_is_zero(alpha, smoothing):
    z = torch.randn(3, 4, requires_grad=True)
    ignored = torch.full((3,), -100)
    loss = px.entmax_loss(z, ignored, alpha, label_smoothing=smoothing)
    assert loss == 0
    assert torch.autograd.grad(loss, z)[0].eq(0).all()
    empty = torch.zeros(0, 4, requires_grad=True)
    for target in (torch.zeros(0, dtype=torch.int64), torch.zeros(0, 4)):
        loss = px.entmax_loss(empty, target, alpha, label_smoothing=smoothing)
        assert loss == 0
        assert torch.autograd.grad(loss, empty)[0].shape == (0, 4)


def test_learnable_alpha_at_one_is_cross_entropy_too():
    z, target = torch.randn(4, 5), torch.tensor([0, 1, 2, 3])
    loss = px.entmax_loss(z, target, torch.tensor(1.0))
    torch.testing.assert_close(loss, F.cross_entropy(z, target))
