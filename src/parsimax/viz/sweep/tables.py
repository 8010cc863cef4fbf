"""Tables 1 and 2 of Meister et al. (2021) and the figures of Jain & Wallace (2019), beside ours."""

from __future__ import annotations

from html import escape

from parsimax.analysis.audit.published import (
    DATA_SETS,
    ENCODERS,
    JAIN_WALLACE,
    TABLE_1,
    TABLE_2,
)
from parsimax.analysis.audit.sweep import TABLE_1_KEY, Cell, Sweep, ceiling, published_cells, tau
from parsimax.viz.audit.words import interval, number
from parsimax.viz.table import table

from .figures import short


def rows_1(sweep: Sweep) -> list[tuple[str, ...]]:
    """Table 1: entropy of the influence of words on hidden states."""
    rows: list[tuple[str, ...]] = []
    for config, cell in published_cells(sweep):
        data, encoder = sweep.of(config)
        found = cell.estimate(TABLE_1_KEY)
        if found is None:
            continue
        theirs = TABLE_1.get((data or "", encoder, cell.name))
        rows.append(
            (
                DATA_SETS.get(data or "", config),
                f"{ENCODERS[encoder]} ({cell.name})",
                f"{interval(found, 3)} ± {number(found.std)}",
                "" if theirs is None else f"{theirs[0]:.2f} ± {theirs[1]:.2f}",
                "" if theirs is None else number(found.mean - theirs[0]),
                _seeds(cell, TABLE_1_KEY),
                f"{found.count:,}",
            )
        )
    return rows


def rows_2(sweep: Sweep) -> list[tuple[str, ...]]:
    """Table 2: correlation of λ with the entropy of the importance of words."""
    rows: list[tuple[str, ...]] = []
    for config in sweep.configs:
        data, encoder = sweep.of(config)
        trend = sweep.trend(config)
        if trend is None:
            continue
        theirs = TABLE_2.get((data or "", encoder)) if sweep.parameter == "lam" else None
        same = "" if theirs is None else ("yes" if trend.correlation * theirs > 0 else "no")
        rows.append(
            (
                config,
                f"{number(trend.correlation)} [{number(trend.low)}, {number(trend.high)}]",
                "" if theirs is None else number(theirs, 3),
                same,
                f"{100 * trend.sign_share:.0f} %",
                ", ".join(number(value) for value in trend.by_seed.values()),
                str(trend.models),
            )
        )
    return rows


def rows_jain_wallace(sweep: Sweep) -> list[tuple[str, ...]]:
    """Softmax: accuracy, AUC and τ-b by their definitions."""
    rows: list[tuple[str, ...]] = []
    for config in sweep.configs:
        data, encoder = sweep.of(config)
        cell = sweep.cell(config, "softmax")
        if cell is None:
            continue
        theirs = JAIN_WALLACE.get(data or "") if encoder == "bilstm" and "dot" not in config else (
            None
        )  # fmt: skip
        gradient = cell.estimate(tau("gradient_x_input", "inputs"))
        removal = cell.estimate(tau("leave_one_out", "inputs"))
        rows.append(
            (
                config,
                _range([p.accuracy for p in cell.points]),
                _range([p.auc for p in cell.points]),
                "–" if gradient is None else interval(gradient, 3),
                "–" if removal is None else interval(removal, 3),
                str(len(cell.points)),
            )
        )
        if theirs is not None:
            numbers = (theirs.accuracy, theirs.auc, theirs.tau_gradient, theirs.tau_leave_one_out)
            rows.append(("the same, published", *(number(value, 3) for value in numbers), ""))
    return rows


HEAD_1 = ("data", "model", "ours: mean [interval] ± std over texts", "paper", "difference",
          "by seed", "texts")  # fmt: skip
HEAD_2 = ("setting", "ours, τ-b [interval]", "paper", "same sign",
          "resamples of texts with our sign", "by seed", "models")  # fmt: skip
HEAD_3 = ("setting", "accuracy", "AUC", "τ-b gradient × input", "τ-b leave-one-out", "seeds")
HEAD_4 = ("setting", "mapping", "seeds", "accuracy", "words with attention", "τ-b gradient",
          "most possible", "share of that", "τ-b leave-one-out", "share of what is possible",
          "τ-b gradient, hidden states", "entropy of gradient")  # fmt: skip


def html(head: tuple[str, ...], rows: list[tuple[str, ...]], *, tall: bool = False) -> str:
    """Rows as a table of a page."""
    if not rows:
        return "<p>No model of this sweep belongs here.</p>"
    return table(head, [[escape(cell) for cell in row] for row in rows], tall=tall)


def markdown(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Rows as a table of a text."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def rows_cells(sweep: Sweep) -> list[tuple[str, ...]]:
    """Every mapping of every setting: accuracy, density, agreement."""
    rows: list[tuple[str, ...]] = []
    for config in sweep.configs:
        for cell in sweep.cells(config):
            highest = cell.estimate(ceiling("gradient_norm", "inputs"), resamples=1)
            keys = (
                "density/attention",
                tau("gradient_norm", "inputs"),
                "tau_b_of_ceiling/attention/gradient_norm:inputs",
                tau("leave_one_out", "inputs"),
                "tau_b_of_ceiling/attention/leave_one_out:inputs",
                tau("gradient_norm", "hidden"),
                "entropy/gradient_norm:inputs",
            )
            found = [cell.estimate(key, resamples=400) for key in keys]
            shown = ["–" if e is None else interval(e) for e in found]
            shown.insert(2, "–" if highest is None else number(highest.mean))
            rows.append(
                (
                    config,
                    short(cell),
                    str(len(cell.points)),
                    _range([p.accuracy for p in cell.points]),
                    *shown,
                )
            )
    return rows


def _seeds(cell: Cell, key: str) -> str:
    return ", ".join(number(value, 3) for value in cell.by_seed(key).values())


def _range(values: list[float]) -> str:
    known = [v for v in values if v == v]
    if not known:
        return "–"
    mean = sum(known) / len(known)
    if len(known) == 1:
        return number(mean, 3)
    return f"{number(mean, 3)} ({number(min(known), 3)} to {number(max(known), 3)})"
