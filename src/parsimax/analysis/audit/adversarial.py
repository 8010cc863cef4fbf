"""Jain & Wallace's adversarial attention: other weights, as far away as can be, same prediction.

For each text K distributions are looked for at once,

    max Σ_k JSD(α_k, α̂) + 1/(K(K−1)) Σ_{k<l} JSD(α_k, α_l)   subject to   TVD(ŷ(α_k), ŷ) ≤ ε,

with the constraint as a penalty λ/K Σ_k max(0, TVD − ε) while searching. Hidden states stay as they
are and are computed once: only ``decode`` is called.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from parsimax._core.validation import check_number
from parsimax.mappings import Mapping, Softmax, parse

from .auditable import Auditable, Text
from .checked import DEFAULT_MEMORY, Checked, rounding
from .divergence import jensen_shannon, total_variation
from .observe import Encoded, encoded
from .rows import Progress, Reporter, Tokens, generator_of, tokens_of
from .swaps import decode_many

# Rows of hidden states that stay in a core's cache: the search reads them at every step.
_ROWS = 512
_TINY = 1e-12
# How far a distribution that moves the prediction too much is moved back to attention itself.
_BACK = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 0.9375, 0.96875, 0.984375, 0.9921875)


@dataclass(frozen=True)
class Search:
    """How adversarial attention is looked for.

    Args:
        count: Distributions a text, K.
        steps: Of Adam on their logits.
        epsilon: How far a prediction may move, in total variation.
        lr: Step size of Adam (amsgrad).
        penalty: λ on what exceeds epsilon.
        mapping: From logits to weights: "softmax" as in the paper, or one with sparse values,
            such as "entmax(alpha=1.5)" or "sparsemax", for sparse distributions only. Where none
            of those keeps the prediction, none is found.
        on_support: Whether only tokens that have attention may have weight.
        seed: Of the logits to begin with.
    """

    count: int = 5
    steps: int = 500
    epsilon: float = 0.01
    lr: float = 0.01
    penalty: float = 500.0
    mapping: str | Mapping = "softmax"
    on_support: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("count", 1), ("steps", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be an int of at least {least}, got {value!r}")
        check_number(self.epsilon, "epsilon", lambda e: 0 <= e <= 1, "between 0 and 1")
        check_number(self.lr, "lr", lambda v: v > 0, "positive")
        check_number(self.penalty, "penalty", lambda v: v >= 0, "at least 0")
        parse(self.mapping)


@dataclass(frozen=True)
class Adversarial:
    """The farthest distribution of each text that leaves its prediction within epsilon.

    Args:
        attention: For each text (n,), float64: on the simplex, and on the support if asked for;
            attention itself where nothing was found.
        jsd: (N,): its Jensen–Shannon divergence from attention, in nats, at most log 2.
        tvd: (N,): how far the prediction moves, at most epsilon.
        mixed: (N,) bool: every distribution of the search moved the prediction too far, and
            this one was mixed with attention itself (on the words that it had, if it was
            sparse) until it did not.
        found: (N,) bool: False where no distribution of the kind that was asked for is within
            epsilon; only a search among sparse ones can end like that.
        search: How it was looked for.
    """

    attention: tuple[Tensor, ...]
    jsd: Tensor
    tvd: Tensor
    mixed: Tensor
    found: Tensor
    search: Search


def adversarial_attention(
    auditable: Auditable,
    texts: Sequence[Text],
    search: Search | None = None,
    *,
    device: torch.device | str = "cpu",
    memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
) -> Adversarial:
    """Look for weights that differ from attention and lead to the same prediction.

    >>> Search(epsilon=2.0)
    Traceback (most recent call last):
        ...
    ValueError: epsilon must be between 0 and 1, got 2.0
    """
    rows = tokens_of(texts)
    for i, row in enumerate(rows):
        if len(row) == 0:
            raise ValueError(f"texts must have at least one token each, text {i} has none")
    model = Checked(auditable, device, memory)
    return search_all(model, rows, search or Search(), progress=progress)


def search_all(
    model: Checked, rows: Sequence[Tokens], search: Search, *, progress: Progress | None = None
) -> Adversarial:
    """The same for rows of tokens."""
    attention: list[Tensor] = [torch.empty(0, device="cpu")] * len(rows)
    numbers = torch.zeros(4, len(rows), dtype=torch.float64, device="cpu")
    where = " on the support" if search.on_support else ""
    stage = f"adversarial attention, {parse(search.mapping)}{where}"
    report = Reporter(progress, stage, len(rows))
    for part in encoded(model, rows, search.count, max(1, _ROWS // search.count)):
        found = _Batch(model, part, search).run()
        for row, i in enumerate(part.index):
            attention[i] = found.attention[row][: len(rows[i])].cpu().clone()
        numbers[:, part.index] = found.numbers.cpu()
        report.add(len(part.index))
    return Adversarial(
        tuple(attention), numbers[0], numbers[1], numbers[2] > 0, numbers[3] > 0, search
    )


@dataclass(frozen=True)
class _Found:
    attention: Tensor  # (B, L)
    numbers: Tensor  # (4, B): jsd, tvd, mixed, found


class _Batch:
    """The search for one batch of texts."""

    def __init__(self, model: Checked, part: Encoded, search: Search) -> None:
        self.model, self.part, self.search = model, part, search
        self.mapping = parse(search.mapping)
        self.texts, self.length = part.mask.shape
        self.original = part.a
        allowed = part.mask & (part.a > 0) if search.on_support else part.mask
        self.allowed = allowed[:, None].expand(-1, search.count, -1)
        self.h = part.h.repeat_interleave(search.count, 0)
        self.row_mask = part.mask.repeat_interleave(search.count, 0)
        # other batch sizes are rounded differently: what we keep has to hold in those as well
        self.within = max(search.epsilon - rounding(part.y.dtype), 0.0)

    def run(self) -> _Found:
        search = self.search
        # a normal of width 3, as in the paper's own search: most of the weight on a few tokens
        logits = torch.zeros(self.texts, search.count, self.length, device="cpu")
        for row, (i, n) in enumerate(zip(self.part.index, self.part.mask.sum(1), strict=True)):
            generator = generator_of(search.seed, i)
            shape = (search.count, int(n))
            logits[row, :, :n] = 3.0 * torch.randn(shape, generator=generator, device="cpu")
        logits = logits.to(self.h)
        logits.requires_grad_()
        adam = torch.optim.Adam([logits], lr=search.lr, amsgrad=True)
        best = self._weights(logits).detach().clone()
        best_jsd = torch.full(best.shape[:2], -1.0, dtype=best.dtype, device=best.device)
        for step in range(search.steps + 1):
            weights = self._weights(logits)
            fixed = weights.detach().requires_grad_()
            with torch.enable_grad():
                moved = total_variation(self._predict(fixed), self.part.y[:, None])
                excess = (moved - search.epsilon).clamp(min=0.0).sum()
            jsd, grad = self._divergence(fixed.detach())
            better = (moved.detach() <= self.within) & (jsd > best_jsd)
            best_jsd = torch.where(better, jsd, best_jsd)
            best = torch.where(better[..., None], fixed.detach(), best)
            if step == search.steps:
                break
            if excess.requires_grad and float(excess.detach()) > 0:
                (push,) = torch.autograd.grad(excess, fixed, allow_unused=True)
                if push is not None:
                    grad = grad - push * (search.penalty / search.count)
            (logits.grad,) = torch.autograd.grad(weights, logits, -grad)
            with torch.device("cpu"):  # where its count of steps is, which the host reads
                adam.step()
        # what never was within epsilon goes on from where it ended
        lost = best_jsd < 0
        best = torch.where(lost[..., None], self._weights(logits).detach(), best)
        return self._choose(best)

    def _weights(self, logits: Tensor) -> Tensor:
        with torch.enable_grad():
            if isinstance(self.mapping, Softmax):
                return torch.softmax(logits.masked_fill(~self.allowed, -math.inf), -1)
            return self.mapping(logits, mask=self.allowed)

    def _predict(self, weights: Tensor) -> Tensor:
        y = self.model.decode(self.h, weights.reshape(-1, self.length), self.row_mask)
        return y.reshape(self.texts, self.search.count, -1)

    def _divergence(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """JSD from attention (B, K), and the gradient of the whole objective in the weights.

        ∂JSD(p, q)/∂p = ½ log(p/m) with m = (p + q)/2. It is written out because the gradient of
        p log p is infinite at the exact zeros of sparse weights; there it is cut off.
        """
        q = self.original[:, None]
        m = (p + q) / 2
        log_p = p.clamp(min=_TINY).log()
        jsd = jensen_shannon(p, q)
        grad = (log_p - m.clamp(min=_TINY).log()) / 2
        count = self.search.count
        if count > 1:
            between = (p[:, :, None] + p[:, None]) / 2  # (B, K, K, L)
            apart = (log_p[:, :, None] - between.clamp(min=_TINY).log()).sum(2) / 2
            grad = grad + apart / (count * (count - 1))
        return jsd, grad

    def _choose(self, best: Tensor) -> _Found:
        """Of K distributions the farthest that is within epsilon, after a last check of all."""
        original = self.original.double()
        original = original / original.sum(-1, keepdim=True)
        candidates = best.double()
        candidates = candidates / candidates.sum(-1, keepdim=True)
        jsd, tvd = self._judge(candidates)
        mixed = torch.zeros_like(jsd, dtype=torch.bool)
        plain = isinstance(self.mapping, Softmax)
        # a mixture with dense attention is dense: sparse ones are mixed on their own support
        shared = original[:, None] * (1.0 if plain else candidates > 0)
        total = shared.sum(-1, keepdim=True)
        toward = torch.where(total > 0, shared / total.clamp(min=_TINY), candidates)
        for back in _BACK:
            failed = tvd > self.within
            if not bool(failed.any()):
                break
            nearer = (1 - back) * best.double() + back * toward
            nearer = nearer / nearer.sum(-1, keepdim=True)
            candidates = torch.where(failed[..., None], nearer, candidates)
            mixed |= failed
            jsd, tvd = self._judge(candidates)
        # attention itself moves nothing, whatever else fails
        failed = tvd > self.within
        candidates = torch.where(failed[..., None], original[:, None], candidates)
        jsd, tvd = jsd.masked_fill(failed, 0.0), tvd.masked_fill(failed, 0.0)
        first = jsd.argmax(1, keepdim=True)
        attention = candidates.gather(1, first[..., None].expand(-1, -1, self.length))[:, 0]
        # attention that has zeros is itself one of the sparse ones
        own = ((self.original == 0) & self.part.mask).any(1) | (self.part.mask.sum(1) == 1)
        found = ~failed | own[:, None] | plain
        values = (jsd, tvd, mixed | failed, found)
        numbers = [v.double().gather(1, first)[:, 0] for v in values]
        return _Found(attention, torch.stack(numbers))

    def _judge(self, candidates: Tensor) -> tuple[Tensor, Tensor]:
        weights = candidates.to(self.h.dtype)
        moved = decode_many(self.model, self.part.h, weights, self.part.mask).double()
        original = self.original.double()[:, None]
        original = original / original.sum(-1, keepdim=True)
        tvd = total_variation(moved, self.part.y.double()[:, None])
        return jensen_shannon(candidates, original), tvd
