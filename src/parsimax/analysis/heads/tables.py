"""A report as plain values: one row a head, one row a layer, JSON and CSV."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from .agreement import Agreement
from .alphas import histogram
from .report import HeadReport, ModuleReport

Row = dict[str, Any]


def head_rows(report: HeadReport) -> list[Row]:
    """One row a head; layers and heads count from 1, and what is not known is None."""
    rows = []
    for name, module in report.modules.items():
        columns = _columns(module)
        for layer in range(module.layers):
            for head in range(module.heads):
                row: Row = {"model": report.name, "module": name}
                row |= {"layer": layer + 1, "head": head + 1}
                for column, values in columns.items():
                    value = None if values is None else plain(values[layer, head])
                    row[column] = value
                rows.append(row)
    return rows


def _columns(module: ModuleReport) -> dict[str, Tensor | None]:
    positional, merging, asking = module.positional, module.merging, module.interrogation
    best = (None, None) if positional is None else positional.best()
    columns: dict[str, Tensor | None] = {
        "alpha": module.alphas,
        "density": module.density.density,
        "attended": module.density.attended,
        "best_offset": best[0],
        "best_confidence": best[1],
    }
    for name, offset in (("before", -1), ("same", 0), ("after", 1)):
        known = positional is not None and offset in positional.offsets
        columns[f"confidence_{name}"] = positional.at(offset) if positional and known else None
    columns["merging"] = merging.score if merging else None
    columns["merging_split"] = merging.score_split if merging else None
    columns["within_word"] = merging.within if merging else None
    columns["question_mark"] = asking.questions.scores if asking else None
    columns["statement_end"] = asking.statements.scores if asking else None
    return columns


def layer_rows(report: HeadReport) -> list[Row]:
    """One row a layer: mean density, and diversity with its 95 % interval."""
    rows = []
    for name, module in report.modules.items():
        each = zip(
            module.density.layers(),
            module.diversity.diversity,
            module.diversity.low,
            module.diversity.high,
            strict=True,
        )
        for layer, (density, diversity, low, high) in enumerate(each, start=1):
            rows.append(
                {
                    "model": report.name,
                    "module": name,
                    "layer": layer,
                    "density": plain(density),
                    "diversity": plain(diversity),
                    "diversity_low": plain(low),
                    "diversity_high": plain(high),
                }
            )
    return rows


def to_dict(reports: Sequence[HeadReport], agreements: Sequence[Agreement] = ()) -> Row:
    """Everything that was measured, as JSON has it."""
    return {
        "models": [_model(report) for report in reports],
        "agreement": [
            {
                "module": each.module,
                "models": [reports[each.first].name, reports[each.second].name],
                "matched": plain(each.matched),
                "any_pair": plain(each.any_pair),
                "sentences": each.sentences,
                "held_out": each.held_out,
                "pairs": [
                    {"first": str(one), "second": str(two), "likeness": plain(value)}
                    for one, two, value in each.pairs
                ],
            }
            for each in agreements
        ],
    }


def _model(report: HeadReport) -> Row:
    return {
        "name": report.name,
        "sentences": report.sentences,
        "interrogatives": list(report.interrogatives),
        "modules": {name: _module(module) for name, module in report.modules.items()},
        "heads": head_rows(report),
        "layers": layer_rows(report),
        "trajectories": {
            name: {"steps": each.steps.tolist(), "alphas": plain(each.alphas)}
            for name, each in report.trajectories.items()
        },
        "examples": [
            {
                "kind": each.kind,
                "head": str(each.head),
                "tokens": list(each.tokens),
                "queries": list(each.queries),
                "weights": plain(each.weights),
                "score": plain(each.score),
                "mean": plain(each.mean),
            }
            for each in report.examples
        ],
    }


def _module(module: ModuleReport) -> Row:
    row: Row = {
        "layers": module.layers,
        "heads": module.heads,
        "sentences": module.sentences,
        "density": plain(module.density.overall()),
        "density_interval": [plain(end) for end in module.density.interval()],
        "density_histogram": module.density.histogram().tolist(),
        "excluded_queries": module.density.excluded.tolist(),
        "excluded_from_diversity": module.diversity.excluded.tolist(),
    }
    if module.alphas is not None:
        counts, edges = histogram(module.alphas)
        row["alpha_histogram"] = {"counts": counts.tolist(), "edges": edges.tolist()}
    if module.positional is not None:
        row["positional"] = {
            "offsets": list(module.positional.offsets),
            "queries": module.positional.queries.tolist(),
            "confidence": plain(module.positional.confidence),
            "top": plain(module.positional.top),
        }
    if module.merging is not None:
        row["words"] = {"all": module.merging.words, "of_several_pieces": module.merging.split}
    if module.interrogation is not None:
        asking = module.interrogation
        row["interrogation"] = {
            "in_questions": asking.questions.queries,
            "in_statements": asking.statements.queries,
            "uniform": plain(asking.questions.uniform),
        }
    return row


def plain(value: Any) -> Any:
    """Numbers and lists as JSON has them, None for what is not a number."""
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_json(
    path: str | Path, reports: Sequence[HeadReport], agreements: Sequence[Agreement] = ()
) -> None:
    """Write everything that was measured into a file."""
    text = json.dumps(to_dict(reports, agreements), ensure_ascii=False, allow_nan=False)
    Path(path).write_text(text + "\n", encoding="utf-8")


def write_csv(path: str | Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows into a file; an empty cell is what is not known."""
    if not rows:
        raise ValueError("rows: expected at least one, got none")
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
