"""The four functions of a model, called with checks that name the function that is wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .auditable import Auditable, Pull
from .rows import Footprint, Tokens, most_rows, pad

DEFAULT_MEMORY = 512 * 2**20  # bytes
HALF = (torch.float16, torch.bfloat16)


def rounding(dtype: torch.dtype) -> float:
    """How far a prediction may differ between batches by rounding alone.

    Errors of float32 add up over a model's sums. Half precision is summed in float32 and rounded at
    the end, so that a few of its much coarser units are enough.
    """
    return (2 if dtype in HALF else 16) * torch.finfo(dtype).eps


class Checked:
    """An :class:`Auditable` on a device, with a memory budget.

    Args:
        auditable: The four functions.
        device: Where tokens are put; the model has to be there already.
        memory: Bytes that a batch may take. One row is always taken, whatever it needs.
    """

    def __init__(
        self,
        auditable: Auditable,
        device: torch.device | str = "cpu",
        memory: int = DEFAULT_MEMORY,
    ) -> None:
        for name in ("embed", "encode", "attend", "decode"):
            function = getattr(auditable, name, None)
            if not callable(function):
                hint = (
                    "; a model without attention weights has nothing to audit"
                    if name == "attend"
                    else ""
                )
                raise TypeError(
                    f"auditable.{name} must be a function, got {type(function).__name__}{hint}"
                )
        self._pull = getattr(auditable, "pull", None)
        if self._pull is not None and not callable(self._pull):
            raise TypeError(
                f"auditable.pull must be a function or None, got {type(self._pull).__name__}"
            )
        if isinstance(memory, bool) or not isinstance(memory, int) or memory <= 0:
            raise ValueError(f"memory must be a positive number of bytes, got {memory!r}")
        self._auditable = auditable
        self.device = torch.device(device)
        self.memory = memory
        self.most = most_rows(self.device)
        self.dtype = torch.get_default_dtype()  # of predictions, once there are any
        self._footprint: Footprint | None = None
        self._pull_checked = False

    @property
    def filler(self) -> int:
        """The padding token."""
        return self._auditable.pad

    def batch(self, rows: Sequence[Tokens]) -> tuple[Tensor, Tensor]:
        """Tokens and mask on the device."""
        return pad(rows, self.filler, self.device)

    def embed(self, tokens: Tensor) -> Tensor:
        """Vectors (B, L, E)."""
        try:
            x = self._auditable.embed(tokens)
        except IndexError as error:
            raise ValueError(
                f"auditable.embed must take every token of the texts and the padding token "
                f"{self.filler}, got tokens from {int(tokens.min())} to {int(tokens.max())} and "
                f"an IndexError ({error}); are the texts numbered by another vocabulary?"
            ) from error
        return _expect(x, "embed", (*tokens.shape, None))

    def encode(self, x: Tensor, mask: Tensor) -> Tensor:
        """Hidden states (B, L, H)."""
        with self._differentiable():
            h = self._auditable.encode(x, mask)
        return _expect(h, "encode", (*mask.shape, None))

    @property
    def pulls(self) -> bool:
        """Whether the model has a faster way back from single states, here."""
        return self._pull is not None and self.device.type == "cpu"

    def pull(self, x: Tensor) -> Pull:
        """The way of texts of one length through the encoder, and back; compared with it once."""
        assert self._pull is not None
        way: Pull = self._pull(x)
        if not self._pull_checked:
            self._compare(way, x)
            self._pull_checked = True
        return way

    def pull_back(self, way: Pull, at: Tensor, vectors: Tensor, x: Tensor) -> Tensor:
        """Gradients (B, P, n, E)."""
        batch, length, size = x.shape
        return _expect(way(at, vectors), "pull(x)(at, vectors)", (batch, len(at), length, size))

    def _compare(self, way: Pull, x: Tensor) -> None:
        """States and the gradient of the first one are those of ``encode``."""
        first, at = x[:1], torch.zeros(1, dtype=torch.long, device=x.device)
        with torch.enable_grad():
            leaf = first.detach().requires_grad_()
            h = self.encode(leaf, torch.ones(first.shape[:2], dtype=torch.bool, device=x.device))
            vector = torch.ones_like(h[0, 0])
            (grad,) = torch.autograd.grad(h[0, 0], leaf, vector)
        states = _expect(way.states, "pull(x).states", (len(x), x.shape[1], h.shape[-1]))
        vectors = vector.expand(len(x), 1, -1)
        found = self.pull_back(way, at, vectors, x)[0, 0]
        for what, ours, theirs in (
            ("the states that encode returns", states[0], h.detach()[0]),
            ("the gradients that encode has", found, grad[0]),
        ):
            far = float((ours - theirs).abs().max())
            if not far <= 1e-3 * max(1.0, float(theirs.abs().max())):
                raise ValueError(
                    f"auditable.pull must lead to {what}, got others that are up to {far:.2g} away"
                )

    def attend(self, h: Tensor, mask: Tensor) -> Tensor:
        """Weights (B, L)."""
        a = self._auditable.attend(h, mask)
        if a is None:
            raise TypeError(
                "auditable.attend must return weights (B, L), got None; a model without "
                "attention weights has nothing to audit (some models return them only if asked "
                "for, e.g. need_weights=True or output_attentions=True)"
            )
        return _expect(a, "attend", tuple(mask.shape))

    def decode(self, h: Tensor, a: Tensor, mask: Tensor) -> Tensor:
        """Probabilities (B, C)."""
        with self._differentiable():
            y = self._auditable.decode(h, a, mask)
        y = _expect(y, "decode", (mask.shape[0], None))
        if y.shape[1] < 2:
            raise ValueError(
                f"auditable.decode must return probabilities of at least two classes, got "
                f"{y.shape[1]}; for one sigmoid output p give torch.stack([1 - p, p], -1)"
            )
        self.dtype = y.dtype
        return y

    def predict(self, rows: Sequence[Tokens]) -> tuple[Tensor, Tensor, Tensor]:
        """Probabilities, weights and mask of one batch, without a graph."""
        with torch.no_grad():
            tokens, mask = self.batch(rows)
            h = self.encode(self.embed(tokens), mask)
            a = self.attend(h, mask)
            return self.decode(h, a, mask), a, mask

    def footprint(self, rows: Sequence[Tokens]) -> Footprint:
        """What one row costs, measured once on pieces of the given texts."""
        if self._footprint is None:
            self._footprint = self._measure(rows)
        return self._footprint

    def _measure(self, rows: Sequence[Tokens]) -> Footprint:
        sample = max(rows, key=len)
        short, long = sample[:8], sample[:64]
        # twice what is saved: gradients of the same sizes exist while the graph is walked
        cost = {len(row): 2.0 * self._saved_bytes(row) for row in (short, long)}
        if len(cost) == 1:
            return Footprint(cost[len(long)] / len(long))
        n, m = len(short), len(long)
        pair = max(0.0, (cost[m] / m - cost[n] / n) / (m - n))
        return Footprint(max(1.0, cost[m] / m - pair * m), pair)

    def _saved_bytes(self, row: Tokens) -> int:
        """Bytes that a second copy of a row adds to the graph of one; parameters cancel."""
        sizes = []
        for copies in (1, 2):
            seen: dict[int, int] = {}

            def note(tensor: Tensor, seen: dict[int, int] = seen) -> Tensor:
                storage = tensor.untyped_storage()
                seen[storage.data_ptr()] = storage.nbytes()
                return tensor

            tokens, mask = self.batch([row] * copies)
            with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
                x = self.embed(tokens).detach().requires_grad_()
                h = self.encode(x, mask)
                y = self.decode(h, self.attend(h, mask), mask)
                sizes.append(sum(seen.values()) + x.nbytes + h.nbytes)
            if not y.requires_grad and not self._depends(tokens, mask):
                raise ValueError(
                    "auditable.decode returns the same prediction whatever the hidden states and "
                    "weights are: a constant has nothing to explain"
                )
            if not y.requires_grad:
                raise ValueError(
                    "the prediction does not depend on embed's output as far as autograd sees; "
                    "encode and decode must be differentiable (no .detach(), no torch.no_grad())"
                )
        return max(sizes[1] - sizes[0], x.nbytes // 2)

    def _depends(self, tokens: Tensor, mask: Tensor) -> bool:
        """Whether other hidden states lead to another prediction, gradients aside."""
        with torch.no_grad():
            h = self.encode(self.embed(tokens), mask)
            a = self.attend(h, mask)
            generator = torch.Generator().manual_seed(0)
            other = torch.randn(h.shape, generator=generator, device="cpu").to(h)
            changed = self.decode(10 * other, a, mask)
            return not torch.equal(changed, self.decode(h, a, mask))

    @contextlib.contextmanager
    def _differentiable(self) -> Iterator[None]:
        """cuDNN has no backward of recurrent layers in eval mode; torch's own kernels have."""
        if self.device.type == "cuda" and torch.is_grad_enabled():
            with torch.backends.cudnn.flags(enabled=False):
                yield
        else:
            yield


def _expect(value: object, name: str, shape: tuple[int | None, ...]) -> Tensor:
    wanted = tuple("any" if size is None else size for size in shape)
    if not isinstance(value, Tensor):
        raise TypeError(
            f"auditable.{name} must return a tensor of shape {wanted}, got {type(value).__name__}"
        )
    if not value.is_floating_point():
        raise TypeError(f"auditable.{name} must return floating-point numbers, got {value.dtype}")
    fits = value.ndim == len(shape) and all(
        want in (None, have) for want, have in zip(shape, value.shape, strict=True)
    )
    if not fits:
        raise ValueError(
            f"auditable.{name} must return a tensor of shape {wanted}, got {tuple(value.shape)}"
        )
    return value
