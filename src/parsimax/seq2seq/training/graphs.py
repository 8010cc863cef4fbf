"""Forward and backward of a batch as one CUDA graph.

A recurrent decoder launches hundreds of small kernels a batch, and the host takes longer to launch
them than the GPU to run them. A graph is launched at once. It has fixed shapes, so batches are
padded to a few of them; padding changes neither loss nor gradients. What is rare runs as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parsimax.seq2seq.data.batch import Batch
from parsimax.seq2seq.data.symbols import PAD, UNK

Shape = tuple[int, int, int]  # sentences, source symbols, target symbols


class Grid(NamedTuple):
    """Sizes are padded up to multiples of these."""

    sentences: int = 8
    source: int = 4
    target: int = 2

    def shape(self, batch: Batch) -> Shape:
        """The shape that a batch is padded to."""
        assert batch.target is not None
        sizes = (len(batch.source), batch.source.shape[1], batch.target.shape[1])
        rows, source, target = (-(-n // step) * step for n, step in zip(sizes, self, strict=True))
        return rows, source, target


def pad(batch: Batch, shape: Shape) -> Batch:
    """The same batch with more padding; a new row has one source symbol and no target."""
    assert batch.target is not None
    rows, source, target = shape
    more = rows - len(batch.source)

    def padded(x: Tensor, columns: int) -> Tensor:
        return F.pad(x, (0, columns - x.shape[1], 0, more), value=PAD)

    symbols = padded(batch.source, source)
    symbols[len(batch.source) :, 0] = UNK
    return Batch(
        symbols,
        F.pad(batch.source_lengths, (0, more), value=1),
        padded(batch.target, target),
        F.pad(batch.index, (0, more), value=-1),
    )


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    batch: Batch
    loss: Tensor


class GraphedLoss:
    """``loss = model(batch); loss.backward()``, replayed.

    Gradients are added to those that the parameters have. From the first call on they must stay
    where they are: use ``zero_grad(set_to_none=False)``.

    Args:
        model: On a GPU. Its mode (training or not) must not change.
        grid: What shapes are padded to.
        most: How many graphs are kept; further shapes run without.
        context: Called around the forward, for autocast.
    """

    def __init__(
        self,
        model: nn.Module,
        grid: Grid | None = None,
        most: int = 256,
        context: Callable[[], torch.autocast] | None = None,
    ) -> None:
        self._model, self._grid, self._most = model, grid or Grid(), most
        self._context = context
        self._graphs: dict[Shape, _Captured] = {}
        self._seen: set[Shape] = set()
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, batch: Batch) -> Tensor:
        """The batch's loss; its gradients are added to the parameters'."""
        for parameter in self._model.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        shape = self._grid.shape(batch)
        captured = self._graphs.get(shape)
        if captured is None:
            batch = pad(batch, shape)
            if shape not in self._seen or len(self._graphs) >= self._most:
                self._seen.add(shape)
                return self._run(batch)
            captured = self._graphs[shape] = self._capture(batch)
        _fill(captured.batch, batch)
        captured.graph.replay()
        return captured.loss.clone()

    def _run(self, batch: Batch) -> Tensor:
        if self._context is None:
            loss: Tensor = self._model(batch)
        else:
            with self._context():
                loss = self._model(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _capture(self, batch: Batch) -> _Captured:
        """Run once so that everything is compiled and allocated, undo what that did, capture."""
        assert batch.target is not None
        held = Batch(
            batch.source.clone(),
            batch.source_lengths.clone(),
            batch.target.clone(),
            batch.index.clone(),
        )
        grads = [p.grad for p in self._model.parameters() if p.grad is not None]
        before, random = [g.clone() for g in grads], torch.cuda.get_rng_state()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._run(held)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            loss = self._run(held)
        torch._foreach_copy_(grads, before)
        torch.cuda.set_rng_state(random)
        return _Captured(graph, held, loss)


def _fill(held: Batch, batch: Batch) -> None:
    """Copy a batch into a larger one, in place."""
    assert held.target is not None
    assert batch.target is not None
    rows, source, target = len(batch.source), batch.source.shape[1], batch.target.shape[1]
    if rows < len(held.source) or source < held.source.shape[1]:
        held.source.fill_(PAD)
        held.source[rows:, 0] = UNK
        held.source_lengths.fill_(1)
    if rows < len(held.source) or target < held.target.shape[1]:
        held.target.fill_(PAD)
    held.source[:rows, :source].copy_(batch.source, non_blocking=True)
    held.source_lengths[:rows].copy_(batch.source_lengths, non_blocking=True)
    held.target[:rows, :target].copy_(batch.target, non_blocking=True)
