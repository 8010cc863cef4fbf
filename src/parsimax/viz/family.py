"""Pictures of the entmax family: what alpha does, to two scores and to a sentence."""

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

import parsimax as px
from parsimax.viz import svg
from parsimax.viz.sentence import ScoredSentence

PATH_END = 2.2
CURVE_ALPHAS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
_SMALLEST_NAMED = 0.055  # a smaller share leaves no room for its word
_NAMES = {1.0: " (softmax)", 2.0: " (sparsemax)"}


def curves_figure() -> str:
    """First entry of entmax([t, 0]) against t, for alpha from 1 to 4.

    Figure 3 of Peters, Niculae and Martins (2019). Every curve but softmax reaches 0 and 1, at
    t = ∓1/(α−1), where it carries a dot.
    """
    t = torch.linspace(-4.6, 4.6, 921, dtype=torch.float64)
    scores = torch.stack([t, torch.zeros_like(t)], dim=-1)
    with svg.drawing():
        figure = Figure(figsize=(6.4, 4.3), layout="constrained")
        axes = figure.subplots()
        svg.quiet_axes(axes)
        for alpha, color in zip(CURVE_ALPHAS, svg.SERIES, strict=True):
            p = px.entmax(scores, alpha=alpha)[:, 0]
            label = f"α = {alpha:g}{_NAMES.get(alpha, '')}"
            axes.plot(t.numpy(), p.numpy(), color=color, linewidth=2, label=label)
            if alpha > 1:
                edge = 1 / (alpha - 1)
                axes.plot([-edge, edge], [0, 1], "o", color=color, markersize=4.5, zorder=3)
        axes.set(
            xlim=(-4.7, 4.7), ylim=(-0.04, 1.04), xlabel="t", ylabel="probability of the first"
        )
        axes.set_xticks(range(-4, 5))
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
        axes.legend(loc="upper left", frameon=False, handlelength=1.4, labelspacing=0.45)
        return svg.to_svg(
            figure, name="curves", label="Curves of alpha-entmax of [t, 0] for alpha from 1 to 4"
        )


def path_figure(sentence: ScoredSentence) -> str:
    """How a sentence's unit of probability is shared as alpha grows, and who still has a share."""
    alphas = torch.linspace(1, PATH_END, 241, dtype=torch.float64)
    scores = torch.tensor(sentence.scores, dtype=torch.float64)
    rows = torch.stack([px.entmax(scores, alpha=float(alpha)) for alpha in alphas])
    order = torch.argsort(scores, descending=True, stable=True)
    shares = rows[:, order].T.numpy()
    words = [sentence.labels[index] for index in order.tolist()]
    support = (rows > 0).sum(dim=-1).numpy()
    entropy = torch.special.entr(rows).sum(dim=-1).numpy() / np.log(2)

    with svg.drawing():
        figure = Figure(figsize=(6.4, 4.3), layout="constrained")
        top, bottom = figure.subplots(2, sharex=True, height_ratios=[2.4, 1])
        _draw_shares(top, alphas.numpy(), shares, words)
        svg.quiet_axes(bottom)
        bottom.step(alphas, support, where="post", color=svg.ACCENT, linewidth=2)
        bottom.plot(alphas, entropy, color=svg.SERIES[4], linewidth=2)
        bottom.set(
            xlabel="α", xlim=(1, PATH_END), ylim=(-0.06 * support.max(), support.max() * 1.12)
        )
        bottom.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
        bottom.text(
            0.985, 0.9, "words with a share", color=svg.ACCENT, ha="right", va="top",
            transform=bottom.transAxes,
        )  # fmt: skip
        bottom.text(
            0.985, 0.68, "entropy in bits", color=svg.SERIES[4], ha="right", va="top",
            transform=bottom.transAxes,
        )  # fmt: skip
        return svg.to_svg(
            figure,
            name="path",
            label="Share of each word, number of words with a share, and entropy, against alpha",
        )


def _draw_shares(
    axes: Axes, alphas: NDArray[np.float64], shares: NDArray[np.float64], words: list[str]
) -> None:
    """Stack the words' shares, the largest at the bottom, and name them at the left edge."""
    svg.quiet_axes(axes)
    axes.grid(visible=False)
    fade = np.linspace(0.95, 0.25, len(words))
    bands = axes.stackplot(alphas, shares, colors=[svg.ACCENT] * len(words))
    for band, opacity in zip(bands, fade, strict=True):
        band.set(alpha=opacity, edgecolor=svg.PAPER, linewidth=0.8)
    at_softmax = shares[:, 0]
    middles = np.cumsum(at_softmax) - at_softmax / 2
    named = [index for index in range(len(words)) if at_softmax[index] >= _SMALLEST_NAMED]
    rest = [index for index in range(len(words)) if at_softmax[index] < _SMALLEST_NAMED]
    ticks = [float(middles[index]) for index in named]
    labels = [words[index] for index in named]
    if rest:
        ticks.append(1 - float(at_softmax[rest].sum()) / 2)
        labels.append(words[rest[0]] if len(rest) == 1 else f"{len(rest)} more")
    axes.set_yticks(ticks, labels)
    axes.set_ylim(0, 1)
