"""Controls that need training: other seeds, frozen uniform weights, adversarially trained models.

Training is the caller's: each control takes a function that trains and returns a model's four
functions. Wiegreffe & Pinter (2019) argue that weights found for one text at a time prove little,
and ask whether a *model* can be trained that predicts the same and attends elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from parsimax._core.validation import check_choice, check_number

from .auditable import Auditable, Text
from .bootstrap import Column, Estimate, estimates
from .checked import DEFAULT_MEMORY, Checked
from .divergence import jensen_shannon, smoothed_kl, total_variation
from .observe import Observed, observe
from .quality import quality
from .rows import Progress

DIVERGENCES = ("jsd", "smoothed_kl")


class AdversarialObjective:
    """The loss of an adversarially trained model: TVD(ŷ_a, ŷ_b) − λ·D(α_a ‖ α_b), mean over texts.

    It is called with the new model's prediction and weights, and asks the base model for its own.
    Wiegreffe & Pinter take KL for D, which is not finite on sparse weights; "jsd" is, and is
    bounded by log 2, so that their values of λ do not carry over.

    Args:
        base: The model to be imitated; it is not changed.
        lam: λ.
        divergence: "jsd" or "smoothed_kl".
    """

    def __init__(self, base: Auditable, lam: float, divergence: str = "jsd") -> None:
        self.lam = check_number(lam, "lam", lambda v: v >= 0, "at least 0")
        self.divergence = check_choice(divergence, "divergence", DIVERGENCES)
        self._base = base

    def __call__(
        self, tokens: Tensor, mask: Tensor, prediction: Tensor, attention: Tensor
    ) -> Tensor:
        """A scalar to be minimised; (B, L), (B, L), (B, C) and (B, L)."""
        with torch.no_grad():
            h = self._base.encode(self._base.embed(tokens), mask)
            a = self._base.attend(h, mask)
            y = self._base.decode(h, a, mask)
        if self.divergence == "jsd":
            # the gradient of p log p is infinite at zero; a little above, it is finite
            apart = _jensen_shannon_with_gradient(attention, a, mask)
        else:
            apart = smoothed_kl(attention, a, mask)
        return (total_variation(prediction, y) - self.lam * apart).mean()


def _jensen_shannon_with_gradient(p: Tensor, q: Tensor, mask: Tensor) -> Tensor:
    tiny = 1e-8 * uniform_attention(p, mask)
    p, q = p + tiny, q + tiny
    m = (p + q) / 2

    def plogp(v: Tensor) -> Tensor:
        return torch.xlogy(v, torch.where(mask, v, 1.0)).sum(-1)

    return (plogp(p) + plogp(q)) / 2 - plogp(m)


def uniform_attention(h: Tensor, mask: Tensor) -> Tensor:
    """Weights 1/n, to stand in for ``attend`` in training.

    >>> uniform_attention(torch.zeros(1, 3, 2), torch.tensor([[True, True, False]]))
    tensor([[0.5000, 0.5000, 0.0000]])
    """
    return mask.to(h.dtype) / mask.sum(-1, keepdim=True).clamp(min=1)


@dataclass(frozen=True)
class Comparison:
    """Another model beside the audited one, on the texts that both can read.

    Args:
        name: Which control, e.g. "seed 2".
        kind: "seed", "uniform" or "adversarial".
        jsd: Between their attention weights, in nats.
        tvd: Between their predictions.
        agreement: Share of texts with the same predicted class.
        accuracy: Of the audited model and of the other one; NaN without labels.
    """

    name: str
    kind: str
    jsd: Estimate
    tvd: Estimate
    agreement: Estimate
    accuracy: tuple[float, float]


def compare(
    base: Auditable,
    other: Auditable,
    texts: Sequence[Text],
    *,
    name: str = "other model",
    kind: str = "other",
    device: torch.device | str = "cpu",
    memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
) -> Comparison:
    """Attention and predictions of two models; texts that either cannot be audited on count out."""
    seen = [observe(Checked(m, device, memory), texts, progress) for m in (base, other)]
    return _compare(seen[0], seen[1], texts, name, kind)


def seed_control(
    base: Auditable,
    texts: Sequence[Text],
    train: Callable[[int], Auditable],
    seeds: Sequence[int],
    *,
    device: torch.device | str = "cpu",
    memory: int = DEFAULT_MEMORY,
) -> tuple[Comparison, ...]:
    """How far attention moves between runs that differ in nothing but their seed.

    An adversarial model whose attention is no farther away than this shows nothing.
    """
    first = observe(Checked(base, device, memory), texts)
    return tuple(
        _compare(
            first,
            observe(Checked(train(seed), device, memory), texts),
            texts,
            f"seed {seed}",
            "seed",
        )
        for seed in seeds
    )


def uniform_control(
    base: Auditable,
    texts: Sequence[Text],
    train: Callable[[Callable[[Tensor, Tensor], Tensor]], Auditable],
    *,
    device: torch.device | str = "cpu",
    memory: int = DEFAULT_MEMORY,
) -> Comparison:
    """A model trained with uniform weights in place of ``attend``: is attention needed here?

    ``train`` is given the function to attend with. Where this model does as well, attention is not
    what the predictions rest on, and what it shows explains little.
    """
    other = observe(Checked(train(uniform_attention), device, memory), texts)
    first = observe(Checked(base, device, memory), texts)
    return _compare(first, other, texts, "uniform attention, trained", "uniform")


def adversarial_control(
    base: Auditable,
    texts: Sequence[Text],
    train: Callable[[AdversarialObjective], Auditable],
    lambdas: Sequence[float],
    *,
    divergence: str = "jsd",
    device: torch.device | str = "cpu",
    memory: int = DEFAULT_MEMORY,
) -> tuple[Comparison, ...]:
    """Models trained to predict alike and attend elsewhere, one for each λ.

    ``train`` is given an :class:`AdversarialObjective` to minimise.
    """
    first = observe(Checked(base, device, memory), texts)
    found = []
    for lam in lambdas:
        other = train(AdversarialObjective(base, lam, divergence))
        seen = observe(Checked(other, device, memory), texts)
        found.append(_compare(first, seen, texts, f"adversarial, λ = {lam:g}", "adversarial"))
    return tuple(found)


def _compare(
    base: Observed, other: Observed, texts: Sequence[Text], name: str, kind: str
) -> Comparison:
    if base.predictions.shape[1] != other.predictions.shape[1]:
        raise ValueError(
            f"both models must have the same classes, got {base.predictions.shape[1]} and "
            f"{other.predictions.shape[1]}"
        )
    place = {i: j for j, i in enumerate(other.kept)}
    pairs = [(j, place[i]) for j, i in enumerate(base.kept) if i in place]
    if not pairs:
        raise ValueError("no text can be audited on both models")
    mine, theirs = (list(side) for side in zip(*pairs, strict=True))
    y, z = base.predictions[mine], other.predictions[theirs]
    jsd = torch.stack([jensen_shannon(base.attention[j], other.attention[k]) for j, k in pairs])
    found = estimates(
        {
            "jsd": Column.of(jsd),
            "tvd": Column.of(total_variation(y, z)),
            "agreement": Column.of((y.argmax(-1) == z.argmax(-1)).double()),
        }
    )
    labels = [texts[base.kept[j]].label for j in mine]
    return Comparison(
        name,
        kind,
        found["jsd"],
        found["tvd"],
        found["agreement"],
        (quality(y, labels).accuracy, quality(z, labels).accuracy),
    )
