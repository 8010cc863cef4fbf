"""Means over texts with bootstrap intervals; what is undefined is counted and named."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

_CHUNK = 2**23  # numbers of a block of resamples


@dataclass(frozen=True)
class Column:
    """One number a text, NaN where it is not defined, and there the reason why."""

    values: Tensor
    reasons: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.values) != len(self.reasons):
            raise ValueError(
                f"values and reasons must be as many, got {len(self.values)}, {len(self.reasons)}"
            )
        for i, (value, reason) in enumerate(zip(self.values.tolist(), self.reasons, strict=True)):
            if math.isnan(value) != bool(reason):
                raise ValueError(f"text {i} has value {value} and reason {reason!r}")

    @classmethod
    def of(cls, values: Tensor, reason: str = "not defined") -> Column:
        """A column whose undefined values all have one reason."""
        values = values.double()
        return cls(values, tuple(reason if math.isnan(v) else "" for v in values.tolist()))


@dataclass(frozen=True)
class Estimate:
    """A mean over texts, with its interval.

    Args:
        mean: Over the texts that count.
        low: Lower end of the interval, NaN for fewer than two texts.
        high: Upper end.
        std: Standard deviation over texts, not of the mean.
        median: Over texts.
        count: Texts that count.
        excluded: How many do not, by reason.
    """

    mean: float
    low: float
    high: float
    std: float
    median: float
    count: int
    excluded: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.count == 0:
            return "not defined for any text"
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def estimates(
    columns: Mapping[str, Column],
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Estimate]:
    """The mean of each column, with percentile intervals from the same resamples of texts.

    Args:
        columns: Of equal length, one entry a text.
        level: Of the interval.
        resamples: How many times texts are drawn with replacement.
        seed: Of the draws.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level!r}")
    if resamples < 1:
        raise ValueError(f"resamples must be positive, got {resamples!r}")
    if not columns:
        return {}
    table = torch.stack([column.values.double() for column in columns.values()], 1)  # (N, M)
    low, high = intervals(table, level=level, resamples=resamples, seed=seed)
    found = {}
    for m, (name, column) in enumerate(columns.items()):
        values = table[:, m]
        defined = values[~values.isnan()]
        count = len(defined)
        found[name] = Estimate(
            mean=float(defined.mean()) if count else math.nan,
            low=float(low[m]) if count > 1 else math.nan,
            high=float(high[m]) if count > 1 else math.nan,
            std=float(defined.std()) if count > 1 else math.nan,
            median=float(defined.quantile(0.5)) if count else math.nan,
            count=count,
            excluded=dict(Counter(reason for reason in column.reasons if reason)),
        )
    return found


def intervals(
    table: Tensor, *, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Percentile intervals (M,) of the means of the columns of ``table`` (N, M); NaN is left out.

    A resample is a vector of how often each text was drawn, so that all means of all resamples
    are one matrix product.
    """
    texts = table.shape[0]
    generator = torch.Generator().manual_seed(seed)
    defined = (~table.isnan()).double()
    filled = table.nan_to_num(0.0, math.inf, -math.inf)
    means: list[Tensor] = []
    block = max(1, _CHUNK // max(texts, 1))
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        drawn = torch.randint(texts, (rows, texts), generator=generator, device="cpu")
        times = torch.zeros(rows, texts, dtype=torch.float64, device="cpu")
        times.scatter_add_(1, drawn, torch.ones(rows, texts, dtype=torch.float64, device="cpu"))
        means.append((times @ filled) / (times @ defined))  # NaN if no text was drawn that counts
    every = torch.cat(means)
    tail = (1 - level) / 2
    ends = torch.tensor([tail, 1 - tail], dtype=torch.float64, device="cpu")
    bounds = every.nanquantile(ends, dim=0)
    return bounds[0], bounds[1]


def difference(first: Column, second: Column) -> Column:
    """first − second text by text, undefined where either is."""
    reasons: Sequence[str] = [a or b for a, b in zip(first.reasons, second.reasons, strict=True)]
    return Column(first.values - second.values, tuple(reasons))
