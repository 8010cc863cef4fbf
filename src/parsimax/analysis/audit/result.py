"""The result of an audit, as a frozen dataclass, and as JSON and CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from .bootstrap import Column, Estimate
from .measures import Measure
from .observe import Exclusion
from .quality import Quality
from .trained import Comparison
from .verdict import Verdict


@dataclass(frozen=True)
class Example:
    """One text with attention beside importance, token by token.

    Args:
        index: Among the texts as given.
        chosen_for: Why it is shown.
        words: As a reader sees them.
        label: If known.
        prediction: Probabilities of the classes.
        attention: (n,).
        importance: Shares (n,) by name.
        adversarial: Other weights (n,) with nearly the same prediction, by name of the search;
            NaN where none were found.
        jsd: Of those from attention, in nats.
    """

    index: int
    chosen_for: str
    words: tuple[str, ...]
    label: int | None
    prediction: tuple[float, ...]
    attention: tuple[float, ...]
    importance: Mapping[str, tuple[float, ...]]
    adversarial: Mapping[str, tuple[float, ...]]
    jsd: Mapping[str, float]


@dataclass(frozen=True)
class Audit:
    """Everything that was measured.

    Args:
        estimates: Mean and interval of every measure.
        columns: The same text by text, for ``kept``.
        texts: How many were given.
        kept: Where the audited ones stand among them.
        excluded: The others, with reasons.
        quality: How well the model predicts.
        examples: Texts to look at.
        controls: Other models beside this one, if any were trained.
        verdict: What this means, in words.
        settings: How it was measured.
        seconds: What took how long.
    """

    estimates: Mapping[Measure, Estimate]
    columns: Mapping[Measure, Column]
    texts: int
    kept: tuple[int, ...]
    excluded: tuple[Exclusion, ...]
    quality: Quality
    examples: tuple[Example, ...]
    controls: tuple[Comparison, ...]
    verdict: Verdict
    settings: Mapping[str, Any]
    seconds: Mapping[str, float]

    def estimate(self, name: str, subject: str = "attention", reference: str = "") -> Estimate:
        """One measure, e.g. ``estimate("tau_b", "attention", "leave_one_out:inputs")``."""
        key = Measure(name, subject, reference)
        if key not in self.estimates:
            known = ", ".join(str(m) for m in self.estimates if m.name == name)
            raise KeyError(f"{key} was not measured; " + (known or "no measure has that name"))
        return self.estimates[key]

    def table(self) -> list[dict[str, Any]]:
        """One row a measure: what it is, mean, interval, spread, texts and exclusions."""
        return [
            {
                "measure": key.name,
                "subject": key.subject,
                "reference": key.reference,
                "mean": value.mean,
                "low": value.low,
                "high": value.high,
                "std": value.std,
                "median": value.median,
                "texts": value.count,
                "excluded": dict(value.excluded),
            }
            for key, value in self.estimates.items()
        ]

    def as_dict(self) -> dict[str, Any]:
        """All of it in lists, dicts, numbers and text; what is not defined is None."""
        columns = {
            str(key): {
                "values": column.values,
                "excluded": {i: reason for i, reason in enumerate(column.reasons) if reason},
            }
            for key, column in self.columns.items()
        }
        return dict(
            _plain(
                {
                    "table": self.table(),
                    "verdict": self.verdict,
                    "quality": self.quality,
                    "controls": self.controls,
                    "examples": self.examples,
                    "texts": self.texts,
                    "kept": self.kept,
                    "excluded": self.excluded,
                    "columns": columns,
                    "settings": self.settings,
                    "seconds": self.seconds,
                }
            )
        )

    def to_json(self, path: str | Path | None = None) -> str:
        """As JSON without NaN, also written to ``path`` if given."""
        return _written(json.dumps(self.as_dict(), ensure_ascii=False, allow_nan=False), path)

    def to_csv(self, path: str | Path | None = None) -> str:
        """The table as CSV; exclusions read "2 × reason; 1 × other reason"."""
        rows = [
            {**row, "excluded": "; ".join(f"{n} × {why}" for why, n in row["excluded"].items())}
            for row in self.table()
        ]
        return _written(_csv(rows), path)

    def texts_to_csv(self, path: str | Path | None = None) -> str:
        """One row a text, one column a measure; undefined values are empty."""
        rows: list[dict[str, Any]] = [{"text": i} for i in self.kept]
        for key, column in self.columns.items():
            for row, value in zip(rows, column.values.tolist(), strict=True):
                row[str(key)] = value
        return _written(_csv(rows), path)


def _written(content: str, path: str | Path | None) -> str:
    if path is not None:
        Path(path).write_text(content, encoding="utf-8", newline="")
    return content


def _csv(rows: list[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: "" if _undefined(v) else v for k, v in row.items()})
    return out.getvalue()


def _undefined(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _plain(value.tolist())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value))
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, float):
        return None if _undefined(value) else value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)
