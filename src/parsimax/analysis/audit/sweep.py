"""What sparsity does: audits of many models that differ in their mapping and seed, put together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parsimax.mappings import Entmax, Softmax, Sparsegen, Sparsemax, parse

from .bootstrap import Column, Estimate, estimates
from .rank import kendall_tau

GRADIENT = "gradient_norm"
LEAVE_ONE_OUT = "leave_one_out"


def tau(method: str, source: str) -> str:
    """The key of τ-b between attention and an importance."""
    return f"tau_b/attention/{method}:{source}"


def ceiling(method: str, source: str) -> str:
    """The key of the largest τ-b that ties allow."""
    return f"tau_b_ceiling/attention/{method}:{source}"


def entropy(subject: str) -> str:
    """The key of a normalised entropy."""
    return f"entropy/{subject}"


TABLE_1_KEY = entropy(f"{GRADIENT}:inputs-to-hidden")
TABLE_2_KEY = entropy(f"{GRADIENT}:inputs")


@dataclass(frozen=True)
class Place:
    """Where a mapping stands in a sweep.

    Args:
        parameter: "lam", "alpha", or "" for one that has neither.
        value: Of the parameter.
        strength: Grows with sparsity. For sparsegen −log(1 − λ): it is sparsemax of scores times
            1/(1 − λ), so that equal steps multiply the scores by equal factors.
    """

    parameter: str
    value: float
    strength: float


def place_of(mapping: str) -> Place:
    """The place of a mapping.

    >>> place_of("sparsegen(lam=0.5)")
    Place(parameter='lam', value=0.5, strength=0.6931471805599453)
    >>> place_of("sparsemax").value, place_of("softmax").parameter
    (0.0, '')
    """
    found = parse(mapping)
    if isinstance(found, Softmax):
        return Place("", math.nan, math.nan)
    if isinstance(found, Sparsemax):
        return Place("lam", 0.0, 0.0)
    if isinstance(found, Sparsegen):
        lam = float(found.lam)
        return Place("lam", lam, -math.log1p(-lam) + 0.0)
    if isinstance(found, Entmax):
        return Place("alpha", float(found.alpha), float(found.alpha))
    return Place("", math.nan, math.nan)


@dataclass(frozen=True)
class Point:
    """One audited model.

    Args:
        config: Name of the setting it is one of.
        data: Key of the data set in published tables, or None.
        encoder: "bilstm" or "transformer".
        mapping: As in its config.
        seed: It was trained with.
        accuracy: On all test texts.
        auc: The same.
        values: Measures text by text (N,), NaN where undefined or excluded.
    """

    config: str
    data: str | None
    encoder: str
    mapping: str
    seed: int
    accuracy: float
    auc: float
    values: Mapping[str, Tensor]

    @property
    def place(self) -> Place:
        """Of its mapping."""
        return place_of(self.mapping)

    @classmethod
    def read(cls, audit: Mapping[str, Any], **facts: Any) -> Point:
        """From the JSON of an audit."""
        values = {}
        for key, column in audit["columns"].items():
            whole = torch.full((audit["texts"],), math.nan, dtype=torch.float64, device="cpu")
            numbers = [math.nan if v is None else v for v in column["values"]]
            whole[list(audit["kept"])] = torch.tensor(numbers, dtype=torch.float64, device="cpu")
            values[key] = whole
        return cls(values=values, **facts)


@dataclass(frozen=True)
class Cell:
    """One mapping in one setting, all seeds."""

    config: str
    mapping: str
    points: tuple[Point, ...]

    @property
    def place(self) -> Place:
        """Of the mapping."""
        return place_of(self.mapping)

    @property
    def name(self) -> str:
        """The mapping as papers call it."""
        known = {("lam", 0.0): "sparsemax", ("alpha", 1.0): "softmax", ("alpha", 2.0): "sparsemax"}
        return known.get((self.place.parameter, self.place.value), self.mapping)

    def estimate(self, key: str, *, resamples: int = 1000) -> Estimate | None:
        """Mean over texts, each the mean over seeds, with an interval over texts.

        ``std`` is the mean over seeds of the standard deviation over texts, which is what papers
        print.
        """
        if any(key not in point.values for point in self.points):
            return None
        table = torch.stack([point.values[key] for point in self.points])
        column = Column.of(table.nanmean(0), "undefined for every seed")
        found = estimates({key: column}, resamples=resamples)[key]
        spread = [float(row[~row.isnan()].std()) for row in table if int((~row.isnan()).sum()) > 1]
        std = sum(spread) / len(spread) if spread else math.nan
        return dataclasses.replace(found, std=std)

    def by_seed(self, key: str) -> dict[int, float]:
        """The mean over texts of each seed."""
        return {p.seed: float(p.values[key].nanmean()) for p in self.points if key in p.values}


@dataclass(frozen=True)
class Trend:
    """How a measure goes with sparsity in one setting.

    Args:
        correlation: Kendall's τ-b of λ (or α) and the models' means.
        low: Lower end of its interval, from resampled texts.
        high: Upper end.
        sign_share: Share of resamples whose sign is that of ``correlation``.
        models: How many.
        by_seed: The correlation within the models of each seed alone: intervals over texts say
            nothing of other seeds.
    """

    correlation: float
    low: float
    high: float
    sign_share: float
    models: int
    by_seed: Mapping[int, float]

    @property
    def same_for_all_seeds(self) -> bool:
        """Whether every seed alone has the sign of all together."""
        return all(value * self.correlation > 0 for value in self.by_seed.values())


@dataclass(frozen=True)
class Sweep:
    """All models."""

    points: tuple[Point, ...]

    @property
    def configs(self) -> list[str]:
        """Settings, in their order."""
        return list(dict.fromkeys(point.config for point in self.points))

    @property
    def parameter(self) -> str:
        """What was varied: "lam" or "alpha"."""
        kinds = [p.place.parameter for p in self.points if p.place.parameter]
        return max(set(kinds), key=kinds.count) if kinds else "lam"

    def of(self, config: str) -> tuple[str | None, str]:
        """Data set and encoder of a setting."""
        first = next(point for point in self.points if point.config == config)
        return first.data, first.encoder

    def cells(self, config: str) -> list[Cell]:
        """The mappings of a setting: first those without a parameter, then by sparsity."""
        found: dict[str, list[Point]] = {}
        for point in self.points:
            if point.config == config:
                found.setdefault(point.mapping, []).append(point)
        cells = [
            Cell(config, mapping, tuple(sorted(points, key=lambda p: p.seed)))
            for mapping, points in found.items()
        ]
        return sorted(cells, key=lambda c: (bool(c.place.parameter), c.place.strength))

    def cell(self, config: str, name: str) -> Cell | None:
        """One of them by the name that papers have for its mapping."""
        return next((c for c in self.cells(config) if c.name == name), None)

    def trend(
        self, config: str, key: str = TABLE_2_KEY, *, resamples: int = 1000, seed: int = 0
    ) -> Trend | None:
        """Correlation of the parameter with the mean of a measure over models.

        Texts are resampled together for all models, since all read the same.
        """
        points = [
            p
            for p in self.points
            if p.config == config and p.place.parameter == self.parameter and key in p.values
        ]
        if len({p.place.value for p in points}) < 3:
            return None
        table = torch.stack([p.values[key] for p in points], 1)  # (N, M)
        strength = torch.tensor(
            [p.place.strength for p in points], dtype=torch.float64, device="cpu"
        )
        generator = torch.Generator().manual_seed(seed)
        means = [table.nanmean(0)]
        for _ in range(resamples):
            drawn = torch.randint(len(table), (len(table),), generator=generator, device="cpu")
            means.append(table[drawn].nanmean(0))
        found = kendall_tau([strength] * len(means), means).tau
        whole, drawn_taus = float(found[0]), found[1:]
        drawn_taus = drawn_taus[~drawn_taus.isnan()]
        seeds = dict[int, float]()
        for number in sorted({p.seed for p in points}):
            own = torch.tensor([p.seed == number for p in points], device="cpu")
            if len(set(strength[own].tolist())) >= 3:
                seeds[number] = float(kendall_tau([strength[own]], [means[0][own]]).tau[0])
        if not len(drawn_taus):
            return Trend(whole, math.nan, math.nan, math.nan, len(points), seeds)
        ends = drawn_taus.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64, device="cpu"))
        same = float((drawn_taus.sign() == math.copysign(1.0, whole)).double().mean())
        return Trend(whole, float(ends[0]), float(ends[1]), same, len(points), seeds)

    def rows(self) -> list[dict[str, Any]]:
        """One row a model, with the mean of every measure, for CSV."""
        keys = list(dict.fromkeys(key for point in self.points for key in point.values))
        return [
            {
                "config": p.config,
                "data": p.data or "",
                "encoder": p.encoder,
                "mapping": p.mapping,
                "seed": p.seed,
                "accuracy": p.accuracy,
                "auc": p.auc,
                **{k: _mean(p.values.get(k)) for k in keys},
            }
            for p in self.points
        ]

    def as_dict(self) -> dict[str, Any]:
        """Estimates of every cell and the trends, without the numbers of each text."""
        settings = []
        for config in self.configs:
            cells = []
            for cell in self.cells(config):
                keys = sorted(set.intersection(*(set(p.values) for p in cell.points)))
                cells.append(
                    {
                        "mapping": cell.mapping,
                        "seeds": [p.seed for p in cell.points],
                        "accuracy": [_none(p.accuracy) for p in cell.points],
                        "auc": [_none(p.auc) for p in cell.points],
                        "measures": {key: self._entry(cell, key) for key in keys},
                    }
                )
            trend = self.trend(config)
            data, encoder = self.of(config)
            settings.append(
                {
                    "config": config,
                    "data": data,
                    "encoder": encoder,
                    "cells": cells,
                    "trend": None if trend is None else dataclasses.asdict(trend),
                }
            )
        return {"parameter": self.parameter, "settings": settings}

    @staticmethod
    def _entry(cell: Cell, key: str) -> dict[str, Any]:
        found = cell.estimate(key, resamples=400)
        assert found is not None
        return {
            "mean": _none(found.mean),
            "low": _none(found.low),
            "high": _none(found.high),
            "std": _none(found.std),
            "texts": found.count,
            "undefined": sum(found.excluded.values()),
            "by_seed": {str(s): _none(v) for s, v in cell.by_seed(key).items()},
        }


def _none(value: float) -> float | None:
    """Six digits say more than any interval here does."""
    return None if value != value else round(value, 6)


def _mean(values: Tensor | None) -> float:
    return math.nan if values is None else round(float(values.nanmean()), 6)


def published_cells(sweep: Sweep) -> Sequence[tuple[str, Cell]]:
    """Softmax and sparsemax of each setting, which Table 1 has."""
    found = []
    for config in sweep.configs:
        for name in ("softmax", "sparsemax"):
            cell = sweep.cell(config, name)
            if cell is not None:
                found.append((config, cell))
    return found
