"""What is compiled is not taken for exported."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from parsimax._core.validation import exporting


class Asking(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1.0 if exporting() else x - 1.0


X = torch.zeros(2)


def test_compiled() -> None:
    torch._dynamo.reset()
    assert torch.equal(torch.compile(Asking(), fullgraph=True, backend="eager")(X), X - 1.0)
    assert torch.equal(Asking()(X), X - 1.0)


@pytest.mark.parametrize("strict", [False, True])
def test_exported(strict: bool) -> None:
    program = torch.export.export(Asking(), (X,), strict=strict)
    assert torch.equal(program.module()(X), X + 1.0)
