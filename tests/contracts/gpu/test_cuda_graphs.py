"""What takes a GPU to show: nothing waits for it, CUDA graphs capture everything, inductor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.contracts.gpu.device import DEVICE
from tests.contracts.members import ON_GPU, PARAMETERS_ON_GPU

import parsimax as px

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(autouse=True)
def _poisoned():
    """Not here: deterministic torch has operations of its own, and some of them wait."""


def _scores(rows: int, d: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(rows, d, device=DEVICE) * 2).to(dtype)


def _mapping_step(member, tensor: bool) -> Callable[[torch.Tensor], list[torch.Tensor]]:
    def step(z: torch.Tensor) -> list[torch.Tensor]:
        z = z.detach().requires_grad_()
        inputs, options = [z], {}
        if tensor:
            name = member.family.parameter
            options[name] = torch.full((), member.parameter, device=DEVICE, requires_grad=True)
            inputs.append(options[name])
        p = member.function(z, **options)
        return [p.detach(), *torch.autograd.grad(p.square().sum(), inputs)]

    return step


def _loss_step(text: str, smoothing: float) -> Callable[[torch.Tensor], list[torch.Tensor]]:
    target = torch.arange(16, device=DEVICE)
    weight = torch.linspace(0.5, 2, 300, device=DEVICE)

    def step(z: torch.Tensor) -> list[torch.Tensor]:
        z = z.detach().requires_grad_()
        loss = px.fenchel_young_loss(z, target, text, weight, label_smoothing=smoothing)
        return [loss.detach(), torch.autograd.grad(loss, z)[0]]

    return step


def _alpha_loss_step(z: torch.Tensor) -> list[torch.Tensor]:
    z = z.detach().requires_grad_()
    alpha = torch.full((16, 1), 1.3, device=DEVICE, requires_grad=True)
    loss = px.entmax_loss(z, torch.arange(16, device=DEVICE), alpha)
    return [loss.detach(), *torch.autograd.grad(loss, (z, alpha))]


STEPS = {str(member): _mapping_step(member, False) for member in ON_GPU}
STEPS |= {f"tensor {member}": _mapping_step(member, True) for member in PARAMETERS_ON_GPU}
if torch.cuda.is_available():
    texts = ["softmax", "entmax(1.3)", "entmax(1.5)", "sparsemax", "entmax(3.0)"]
    texts += ["sparsegen(0.5)", "normmax(1.5)", "budget(1)"]
    STEPS |= {f"loss of {text}": _loss_step(text, 0.0) for text in texts}
    STEPS |= {f"smoothed loss of {text}": _loss_step(text, 0.1) for text in texts}
    STEPS["loss with a tensor alpha"] = _alpha_loss_step


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_forward_and_backward_do_not_wait_for_the_gpu(step):
    z = _scores(16, 300, torch.float32)
    step(z)  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(z)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_forward_and_backward_in_a_cuda_graph(step, dtype):
    """Captured once, replayed on new scores: the same bits as without."""
    z = _scores(16, 300, dtype)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step(z)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(z)
    z.copy_(_scores(16, 300, dtype))
    graph.replay()
    for found, expected in zip(captured, step(z), strict=True):
        assert torch.equal(found, expected)


# --- the rest of torch ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_training_compiled_by_inductor(mode):
    """Kernels between operations that inductor fuses; with CUDA graphs of its own, too."""
    linear = torch.nn.Linear(64, 300, device=DEVICE)
    raw = torch.nn.Parameter(torch.tensor(0.3, device=DEVICE))

    def function(x, target):
        z = linear(x)
        alpha = 1 + raw.sigmoid()
        weights = px.entmax(z, alpha) + sum(member.mapping(z.tanh()) for member in ON_GPU)
        return px.entmax_loss(z, target, 1.5) + (weights * z).mean() + weights.square().mean()

    compiled = torch.compile(function, fullgraph=True, mode=mode)
    parameters = [*linear.parameters(), raw]
    for _ in range(3):
        x = torch.randn(16, 64, device=DEVICE)
        target = torch.randint(0, 300, (16,), device=DEVICE)
        results = []
        for f in (function, compiled):
            loss = f(x, target)
            results.append((loss.detach().clone(), *torch.autograd.grad(loss, parameters)))
        for found, expected in zip(*results, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_auto_takes_triton():
    z = _scores(5, 100, torch.float32)
    for member in ON_GPU:
        assert torch.equal(member.mapping(z), member.function(z, backend="triton"))


def test_autocast():
    linear = torch.nn.Linear(64, 300, device=DEVICE)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        z = linear(torch.randn(16, 64, device=DEVICE))
        p = px.entmax(z, 1.5)
        loss = px.entmax_loss(z, torch.arange(16, device=DEVICE))
        assert p.dtype == torch.softmax(z, -1).dtype
        assert loss.dtype == torch.float32
    (p.square().sum() + loss).backward()
    assert linear.weight.grad.isfinite().all()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_gpu_that_is_not_the_current_one():
    z = torch.randn(5, 100)
    for member in ON_GPU:
        here, there = (member.mapping(z.to(f"cuda:{i}")) for i in range(2))
        assert there.device.index == 1
        assert torch.equal(here.cpu(), there.cpu())
