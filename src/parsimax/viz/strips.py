"""One sentence under every mapping: a strip of bars each, with exact zeros marked as such."""

import dataclasses
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

import parsimax as px
from parsimax.viz import svg
from parsimax.viz.sentence import ScoredSentence

# Settings worth seeing side by side. A mapping that is not named here shows its defaults.
SETTINGS: dict[str, tuple[dict[str, float], ...]] = {
    "entmax": ({"alpha": 1.25}, {"alpha": 1.5}, {"alpha": 3.0}),
    "sparsegen": ({"lam": -3.0}, {"lam": -1.0}, {"lam": 0.5}),
    "normmax": ({"alpha": 1.5}, {"alpha": 2.0}, {"alpha": 5.0}),
    "budget": ({"k": 2.0}, {"k": 3.0}),
    "fusedmax": ({"lam": 0.1}, {"lam": 0.5}),
    "oscarmax": ({"lam": 0.01}, {"lam": 0.1}),
    "constrained_softmax": ({"upper": 0.15},),
    "constrained_sparsemax": ({"upper": 0.4},),
}

_LABEL_SPACE, _SUMMARY_SPACE = 2.5, 0.9  # in words' widths, left and right of the bars
_BAR = 0.66  # a bar's width, of a word's
_LONGEST_LABEL = 22  # letters that fit beside the bars
_LETTERS_A_WORD = 8.0  # letters that fit in a word's width


@dataclasses.dataclass(frozen=True)
class Strip:
    """A mapping with its settings, and what it gives for the sentence."""

    name: str
    label: str
    probabilities: NDArray[np.float64]

    @property
    def lines(self) -> tuple[str, ...]:
        """The label, with its settings in a second line where it would be too long for one."""
        name, bracket, settings = self.label.partition("(")
        fits = len(self.label) <= _LONGEST_LABEL
        return (self.label,) if fits else (name, bracket + settings)

    @property
    def support(self) -> int:
        """How many words have a probability above zero."""
        return int((self.probabilities > 0).sum())


def strips(sentence: ScoredSentence) -> list[Strip]:
    """Apply every registered mapping to the sentence's scores."""
    scores = torch.tensor(sentence.scores, dtype=torch.float64)
    found = []
    for name, mapping in _members(len(sentence.words)):
        found.append(Strip(name, str(mapping), mapping(scores).numpy()))
    return found


def _members(words: int) -> Iterator[tuple[str, Any]]:
    """Each registered mapping at the settings to show; one that needs more than numbers is left."""
    registry: dict[str, Any] = dict(px.mappings.registry())
    for name, cls in registry.items():
        required = [f.name for f in dataclasses.fields(cls) if _has_no_default(f)]
        for settings in SETTINGS.get(name, ({},)):
            infeasible = settings.get("k", 0) > words or settings.get("upper", 1) * words < 1
            if not infeasible and set(required) <= set(settings):
                yield name, cls(**settings)


def _has_no_default(field: "dataclasses.Field[Any]") -> bool:
    missing = dataclasses.MISSING
    return field.init and field.default is missing and field.default_factory is missing


def strips_figure(sentence: ScoredSentence, members: list[Strip]) -> str:
    """Draw the scores, then one strip of bars a mapping on a common scale from 0 to 1."""
    count = len(sentence.words)
    width = max(11.0, 0.72 * (count + _LABEL_SPACE + _SUMMARY_SPACE))
    rows = len(members) + 1
    with svg.drawing():
        figure = Figure(figsize=(width, 0.62 * rows + 0.5), layout="constrained")
        all_axes = figure.subplots(rows, sharex=True)
        _draw_scores(all_axes[0], sentence)
        previous = ""
        for row, (axes, strip) in enumerate(zip(all_axes[1:], members, strict=True)):
            _draw_strip(axes, strip, row=row, starts_group=strip.name != previous)
            previous = strip.name
        names = ", ".join(strip.label for strip in members)
        return svg.to_svg(figure, name="strips", label=f"Probabilities of each word under {names}")


def _bare(axes: Axes, count: int) -> None:
    axes.set_xlim(-0.5 - _LABEL_SPACE, count - 0.5 + _SUMMARY_SPACE)
    axes.set_axis_off()


def _draw_scores(axes: Axes, sentence: ScoredSentence) -> None:
    """The input: bars above and below zero, and the words over them."""
    scores = np.array(sentence.scores)
    count = len(scores)
    reach = max(1.0, float(np.abs(scores).max()))
    _bare(axes, count)
    axes.set_ylim(-1.5 * reach, 1.5 * reach)
    axes.bar(range(count), scores, width=_BAR, color=svg.MUTED, alpha=0.45)
    axes.plot([-0.5, count - 0.5], [0, 0], color=svg.MUTED, linewidth=0.8)
    lean = _too_tight(sentence.labels)
    for x, (label, score) in enumerate(zip(sentence.labels, scores, strict=True)):
        axes.text(
            x, 2.0 * reach, label, ha="left" if lean else "center", va="bottom",
            rotation=35 if lean else 0, rotation_mode="anchor",
        )  # fmt: skip
        above = score >= 0
        axes.text(
            x, score + (0.12 if above else -0.12) * reach, f"{score:.2f}".replace("-", "−"),
            ha="center", va="bottom" if above else "top", fontsize=8.5, color=svg.MUTED,
        )  # fmt: skip
    axes.text(-0.6 - _LABEL_SPACE, 0, "scores z", va="center", weight="bold")
    axes.text(count - 0.3, 0, "support", va="center", color=svg.MUTED, fontsize=9)


def _too_tight(labels: tuple[str, ...]) -> bool:
    """Whether two neighbours would touch if they were written level."""
    return any((len(a) + len(b)) / 2 > _LETTERS_A_WORD for a, b in pairwise(labels))


def _draw_strip(axes: Axes, strip: Strip, *, row: int, starts_group: bool) -> None:
    """A mapping's output: a bar and its value, or a hatched cell with a 0 for an exact zero."""
    p = strip.probabilities
    count = len(p)
    _bare(axes, count)
    axes.set_ylim(0, 1.36)
    if starts_group:
        axes.axhline(1.36, color=svg.GRID, linewidth=1.0, clip_on=False)
    axes.plot([-0.5, count - 0.5], [0, 0], color=svg.MUTED, linewidth=0.8, clip_on=False)
    for x, value in enumerate(p):
        if value == 0:
            cell = Rectangle(
                (x - _BAR / 2, 0), _BAR, 1.0, facecolor="none", edgecolor=svg.ZERO_FILL,
                hatch="////", linewidth=0,
            )  # fmt: skip
            cell.set_gid(f"zero-{row}-{x}")
            axes.add_patch(cell)
            axes.text(x, 0.5, "0", ha="center", va="center", color=svg.ZERO, weight="bold")
        else:
            axes.bar(x, value, width=_BAR, color=svg.ACCENT)
            axes.text(x, value + 0.06, _number(value), ha="center", va="bottom", fontsize=8.5)
    lines = strip.lines
    for line, text in enumerate(lines):
        height = 0.5 + 0.36 * ((len(lines) - 1) / 2 - line)
        axes.text(-0.6 - _LABEL_SPACE, height, text, va="center")
    axes.text(
        count - 0.3, 0.5, f"{strip.support} of {count}", va="center", color=svg.MUTED,
        fontsize=9,
    )  # fmt: skip


def _number(value: float) -> str:
    """A probability in few characters that never reads as the zero it is not.

    >>> _number(0.2512), _number(0.0004), _number(1.0)
    ('.25', '<.01', '1')
    """
    if value < 0.005:
        return "<.01"
    text = f"{value:.2f}"
    return "1" if text == "1.00" else text.removeprefix("0")
