"""The gate lets what is right pass, and nothing else."""

import pytest
import torch

import parsimax as px
from parsimax.bench import contenders, gate


def _solved(alpha, dtype=torch.float32, shape=(5, 40), std=1.0):
    generator = torch.Generator().manual_seed(0)
    z = (std * torch.randn(shape, generator=generator)).to(dtype).requires_grad_()
    g = torch.randn(shape, generator=generator).to(dtype)
    p = px.entmax(z, alpha)
    (gz,) = torch.autograd.grad(p, z, g)
    return z.detach(), g, p.detach(), gz


def _refuse(z, g, p, gz, alpha):
    expected = gate.expect(z, g, alpha)
    return expected.refuse(p) or expected.refuse_gradient(gz)


@pytest.mark.parametrize("alpha", [1.0, 1.1, 1.3, 1.5, 1.7, 1.95, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("std", [1.0, 8.0])
def test_a_right_result_passes(alpha, dtype, std):
    assert _refuse(*_solved(alpha, dtype, (200, 300), std), alpha) is None


def test_wrong_values_sums_and_gradients_are_refused():
    z, g, p, gz = _solved(1.5)
    shifted = p.clone()
    shifted[3, 7] += 1e-5
    assert _refuse(z, g, shifted, gz, 1.5).startswith("off by 1e-05")
    assert _refuse(z, g, p * (1 + 1.5e-6), gz, 1.5).startswith("sums off by")
    assert _refuse(z, g, p, gz + 1e-3, 1.5).startswith("gradient off by 1e-03")
    assert _refuse(z, g, torch.full_like(p, torch.nan), gz, 1.5) == "off by inf"


def test_rows_are_compared_up_to_the_last():
    z = torch.randn(1000, 8)
    p = px.entmax(z, 1.5)
    wrong = p.clone()
    wrong[-1, 0] += 1e-3
    g = torch.zeros_like(z)
    assert _refuse(z, g, p, g, 1.5) is None
    assert _refuse(z, g, wrong, g, 1.5) == "off by 1e-03"


def test_every_row_has_to_have_a_sum_and_a_gradient():
    z, g, p, gz = _solved(1.5, shape=(1000, 8))
    between = 7
    assert between not in gate.spread(1000, 64)
    p[between, 0], gz[between, 0] = torch.nan, torch.nan
    expected = gate.expect(z, g, 1.5)
    assert expected.refuse(p) == "sums off by nan"
    assert expected.refuse_gradient(gz) == "gradient off by inf"


def test_half_precision_is_measured_against_its_own_rounding():
    z, g, p, gz = _solved(1.5, torch.bfloat16)
    eps = torch.finfo(torch.bfloat16).eps
    wrong = p.clone()
    wrong[2] = torch.where(p[2] == p[2].max(), p[2] * (1 + 2 * eps), p[2])
    assert _refuse(z, g, wrong, gz, 1.5).startswith("off by")
    assert _refuse(z, g, p, gz * (1 + 6 * eps), 1.5).startswith("gradient off by")


def test_both_sides_of_a_jump_are_right():
    # sparsemax of (1, 0, -3): the second score lies exactly on the threshold
    z = torch.tensor([[1.0, 0.0, -3.0]])
    g = torch.tensor([[0.5, 2.0, 1.0]])
    expected = gate.expect(z, g, 2.0)
    one = torch.tensor([[0.0, 0.0, 0.0]])
    both = torch.tensor([[-0.75, 0.75, 0.0]])
    assert expected.refuse_gradient(one) is None
    assert expected.refuse_gradient(both) is None
    assert expected.refuse_gradient(torch.tensor([[0.0, 0.0, 1e-3]])) is not None


def test_the_gradient_in_alpha_is_that_of_the_oracle():
    generator = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(20, 30, generator=generator, dtype=torch.float64)
    g = torch.randn(20, 30, generator=generator, dtype=torch.float64)
    alpha = contenders.alphas(20).double()
    step = 1e-5
    higher, lower = gate.oracle(z, alpha + step), gate.oracle(z, alpha - step)
    want = ((higher - lower) / (2 * step) * g).sum(-1, keepdim=True)
    got = gate.gradient_in_alpha(gate.oracle(z, alpha), g, alpha)
    # Central differences are good to step^2 times the third derivative, which is large near 1.
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tensor_of_alpha_needs_its_gradient(dtype):
    inputs = contenders.draw((100, 50), 1.0, dtype, "cpu")[0]
    p = px.entmax(inputs.z, inputs.alpha)
    gz, galpha = torch.autograd.grad(p, (inputs.z, inputs.alpha), inputs.g)
    expected = gate.expect(inputs.z.detach(), inputs.g, inputs.alpha.detach())
    assert expected.refuse(p.detach()) is None
    assert expected.refuse_gradient(gz, galpha) is None
    assert expected.refuse_gradient(gz) == "no gradient in alpha"
    assert expected.refuse_gradient(gz, galpha * 1.1).startswith("gradient in alpha off by 1e-01")


def test_an_error_is_told_in_a_few_words():
    assert gate.told(ValueError("first\nsecond")) == "ValueError: first"
    assert gate.told(KeyError()) == "KeyError"
    compiler = type("CompilationError", (Exception,), {"__module__": "triton.compiler"})
    assert gate.told(compiler("at 3:4:\n  code\nwhat is wrong")).endswith(": what is wrong")
