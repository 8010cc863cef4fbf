"""Line 6 of the contract, last part: torch.compile in training, torch.export, opcheck, autocast."""

from __future__ import annotations

import shutil

import pytest
import torch
from tests.contracts.backends import AVAILABLE
from tests.contracts.members import TYPICAL, WITH_PARAMETER
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import parsimax as px


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def _mappings(members, z, mask, parameters):
    """Members in one function: with a mask, along another dim, and with a tensor parameter."""
    outputs = []
    for member, parameter in zip(members, parameters, strict=True):
        outputs.append(member.function(z, mask=mask))
        outputs.append(member.mapping(z, dim=0))
        if parameter is not None:
            outputs.append(member.function(z, **{member.family.parameter: parameter}))
    return sum(i * p.square().sum() for i, p in enumerate(outputs)), outputs


def _train(function, members, z, mask):
    z = z.detach().clone().requires_grad_()
    parameters = [
        torch.full((z.shape[0], 1), member.parameter, requires_grad=True)
        if member.family.parameter
        else None
        for member in members
    ]
    total, outputs = function(members, z, mask, parameters)
    total.backward()
    return [p.detach() for p in outputs], [
        z.grad,
        *(p.grad for p in parameters if p is not None),
    ]


def _check_training(members, compiler, shapes):
    compiled = torch.compile(_mappings, fullgraph=True, backend=compiler)
    for rows, d in shapes:
        z = torch.randn(rows, d)
        mask = torch.rand(rows, d) < 0.8
        mask[:, :2] = True
        mask[0] = False
        expected, expected_gradients = _train(_mappings, members, z, mask)
        found, gradients = _train(compiled, members, z, mask)
        for p, q in zip(found, expected, strict=True):
            assert torch.equal(p, q)
        for p, q in zip(gradients, expected_gradients, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-5)


def test_training_compiled_without_a_graph_break():
    """Forward and backward equal to eager; a second shape compiles to one dynamic program."""
    _check_training(TYPICAL, "aot_eager", ((4, 9), (6, 40), (5, 70)))
    frames = torch._dynamo.utils.counters["frames"]
    assert frames["ok"] <= 2, "one static and one dynamic program serve every shape"


def test_training_compiled_to_machine_code():
    """The same through inductor, where there is a compiler for it."""
    if not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("inductor needs a C++ compiler")
    _check_training(WITH_PARAMETER[1:2], "inductor", ((4, 9),))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("backend", AVAILABLE)
def test_other_dtypes_and_named_backends_compile(dtype, backend):
    def function(z, alpha):
        return px.entmax(z, 1.5, backend=backend) + px.entmax(z, alpha, dim=0, backend=backend)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    z = torch.randn(3, 6).to(dtype)
    results = []
    for f in (function, compiled):
        x, alpha = z.clone().requires_grad_(), torch.tensor(1.3, requires_grad=True)
        p = f(x, alpha)
        p.square().sum().backward()
        results.append((p.detach(), x.grad, alpha.grad))
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][0].dtype == dtype
    torch.testing.assert_close(results[1][1], results[0][1])
    torch.testing.assert_close(results[1][2], results[0][2], rtol=1e-4, atol=1e-5)


def test_a_bad_parameter_in_a_compiled_function_is_nan_in_its_row():
    def function(z, parameters):
        return [
            member.function(z, **{member.family.parameter: parameter})
            for member, parameter in zip(WITH_PARAMETER, parameters, strict=True)
        ]

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    z = torch.randn(4, 6)
    bad, good = [], []
    for member in WITH_PARAMETER:
        refused = next(iter(member.family.refuses[0][0].values()))
        bad.append(torch.tensor([[member.parameter], [refused], [torch.nan], [member.parameter]]))
        good.append(torch.full((4, 1), member.parameter))
    for p, q in zip(compiled(z, bad), function(z, good), strict=True):
        assert p[1:3].isnan().all()
        assert torch.equal(p[[0, 3]], q[[0, 3]])


def test_transforms_inside_a_compiled_function():
    z = torch.tensor([[0.5, 0.2, -0.3, -2.0], [1.0, 0.9, 0.1, -0.2]], dtype=torch.float64)
    weights = torch.tensor([1.0, 2.0, -1.0, 3.0], dtype=torch.float64)

    def loss(x, alpha=1.4):
        return (px.entmax(x, alpha) * weights).sum()

    def function(x):
        gradient = torch.func.vmap(torch.func.grad(loss))(x)
        forward = torch.func.jvp(px.entmax, (x,), (2 * x,))[1]
        return gradient, forward, torch.func.jacfwd(torch.func.jacrev(loss))(x[0])

    def per_sample(x, alpha):
        return torch.func.vmap(torch.func.grad(loss, argnums=1), in_dims=(0, None))(x, alpha)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for p, q in zip(compiled(z), function(z), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-12)
    alpha = torch.tensor(1.3, dtype=torch.float64)
    found = torch.compile(per_sample, fullgraph=True, backend="eager")(z, alpha)
    torch.testing.assert_close(found, per_sample(z, alpha), rtol=0, atol=1e-12)


class _Attention(nn.Module):
    """Scores, entmax with a learned alpha, and every other mapping once."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(8, 8)
        self.raw = nn.Parameter(torch.tensor(0.3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ x.transpose(-1, -2)
        alpha = 1 + self.raw.sigmoid()
        weights = px.entmax(scores, alpha, mask=torch.ones_like(scores, dtype=torch.bool).tril())
        for member in TYPICAL:
            weights = weights + member.mapping(scores)
        return weights @ x


def test_export_and_run_the_exported_program():
    module = _Attention()
    batch, length = torch.export.Dim("batch", min=2), torch.export.Dim("length", min=3)
    x = torch.randn(3, 5, 8)
    program = torch.export.export(module, (x,), dynamic_shapes=({0: batch, 1: length},))
    for shape in ((3, 5, 8), (2, 11, 8)):
        x = torch.randn(shape)
        torch.testing.assert_close(program.module()(x), module(x), rtol=0, atol=1e-6)
    again = program.module()
    again(x).square().sum().backward()
    module(x).square().sum().backward()
    for p, q in zip(again.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize("with_parameter", [False, True])
def test_operators_keep_their_promises(backend, with_parameter):
    """Schema, fake tensors, autograd registration and aot dispatch of each custom operator."""
    z = torch.randn(3, 5, dtype=torch.float64)
    alpha = torch.full((3, 1), 1.3, dtype=torch.float64) if with_parameter else None
    operators = torch.ops.parsimax
    p = operators.rowmap.default(z, alpha, 1.3, "entmax", backend)
    arguments = (z.clone().requires_grad_(), alpha, 1.3, "entmax", backend)
    torch.library.opcheck(operators.rowmap.default, arguments)
    torch.library.opcheck(
        operators.rowmap.default, (z.T.clone().requires_grad_().T, alpha, 1.3, "entmax", backend)
    )
    torch.library.opcheck(operators.rowmap_values.default, (z, alpha, 1.3, "entmax", backend))
    for gradient in (torch.randn_like(z), torch.ones(1, 1, dtype=z.dtype).expand(3, 5)):
        torch.library.opcheck(
            operators.rowmap_backward.default,
            (p, gradient, alpha, 1.3, "entmax", backend, with_parameter),
        )


@pytest.mark.parametrize("member", TYPICAL, ids=str)
def test_autocast_follows_torch_softmax(member):
    linear = nn.Linear(6, 6)
    x = torch.randn(4, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = linear(x)
        expected = torch.softmax(z, -1).dtype
        p = member.mapping(z)
        assert p.dtype == expected
        loss = (p.float() * torch.linspace(-1, 1, 6)).sum()
    loss.backward()
    assert linear.weight.grad.dtype == torch.float32
    assert linear.weight.grad.isfinite().all()
    torch.testing.assert_close(p, member.mapping(z.float()).to(p.dtype))


def test_autocast_in_a_compiled_function():
    linear = nn.Linear(6, 6)

    def function(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return px.entmax(linear(x), 1.5)

    x = torch.randn(4, 6)
    found = torch.compile(function, fullgraph=True, backend="aot_eager")(x)
    assert torch.equal(found, function(x))


TRACED = {
    "mapping": (lambda z: px.sparsemax(2 * z), torch.zeros(2, 4)),
    "reference": (lambda z: px.entmax(z, alpha=1.5, backend="torch"), torch.zeros(2, 4)),
    "bounds": (lambda z: px.constrained_softmax(z, torch.ones(4)), torch.zeros(2, 4)),
    "loss": (lambda z: px.entmax_loss(z, torch.tensor([0, 1])), torch.zeros(2, 4)),
    "linear loss": (
        lambda h: px.linear_entmax_loss(h, torch.ones(3, 4), torch.tensor([0, 1])),
        torch.zeros(2, 4),
    ),
    "attention": (lambda q: px.attention(q, q, q), torch.zeros(2, 4)),
    "sparsemap": (
        lambda s: px.sparsemap(s, px.structured.Matching()).marginals,
        torch.zeros(1, 2, 2),
    ),
}


@pytest.mark.filterwarnings("ignore")  # torch has much to say about traces
@pytest.mark.parametrize("what", TRACED)
def test_a_trace_of_torch_jit_is_refused(what):
    """It sees none of the kernels, and would return whatever lies in fresh memory."""
    function, x = TRACED[what]
    with pytest.raises(RuntimeError, match=r"torch.jit.trace cannot record .* torch.export"):
        torch.jit.trace(function, (x,), check_trace=False)


@pytest.mark.parametrize("what", [name for name in TRACED if name != "sparsemap"])
def test_make_fx_records_what_is_computed(what):
    function, x = TRACED[what]
    other = torch.randn_like(x)
    assert torch.equal(make_fx(function)(x)(other), function(other))


def test_make_fx_cannot_record_structures():
    function, x = TRACED["sparsemap"]
    with pytest.raises(RuntimeError, match="make_fx cannot record sparsemap"):
        make_fx(function)(x)
