"""One page about a sweep."""

from __future__ import annotations

from html import escape
from importlib import resources
from pathlib import Path
from string import Template

import parsimax as px
from parsimax.analysis.audit.sweep import Sweep

from . import figures, tables


def sweep_page(sweep: Sweep, *, origin: str = "") -> str:
    """Return the page as HTML that fetches nothing."""
    if not sweep.points:
        raise ValueError("sweep: expected at least one model, got none")
    files = resources.files("parsimax.viz")
    page = Template(files.joinpath("sweep", "page.html").read_text(encoding="utf-8"))
    style = "".join(
        files.joinpath(*name).read_text(encoding="utf-8")
        for name in (("page.css",), ("report.css",), ("audit", "page.css"))
    )
    letter = {"lam": "λ of sparsegen", "alpha": "α of entmax"}[sweep.parameter]
    return page.substitute(
        style=style,
        version=escape(px.__version__),
        models=f"{len(sweep.points):,}",
        settings=escape(", ".join(sweep.configs)),
        parameter=escape(letter),
        trends=_trends(sweep),
        table_1=tables.html(tables.HEAD_1, tables.rows_1(sweep)),
        table_2=tables.html(tables.HEAD_2, tables.rows_2(sweep)),
        jain_wallace=tables.html(tables.HEAD_3, tables.rows_jain_wallace(sweep)),
        figure_1=_figure(figures.correlation_figure(sweep, "gradient_norm", name="sweep-one")),
        figure_2=_figure(figures.entropy_figure(sweep)),
        figure_3=_figure(figures.trend_figure(sweep)),
        figure_4=_figure(figures.correlation_figure(sweep, "leave_one_out", name="sweep-four")),
        density=_figure(figures.density_figure(sweep)),
        everything=tables.html(tables.HEAD_4, tables.rows_cells(sweep), tall=True),
        origin=escape(origin),
    )


def write_page(path: str | Path, sweep: Sweep, *, origin: str = "") -> Path:
    """Write the page and return where it is; the folder is made if need be."""
    page = sweep_page(sweep, origin=origin)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page, encoding="utf-8")
    return target


def _figure(picture: str) -> str:
    return f'<figure class="card">{picture}</figure>'


def _trends(sweep: Sweep) -> str:
    """What the measured signs say, in a sentence a setting."""
    said = []
    for config in sweep.configs:
        trend = sweep.trend(config)
        if trend is None:
            continue
        if trend.low > 0:
            what = "rises with sparsity: importance is spread over more words"
        elif trend.high < 0:
            what = "falls with sparsity: importance is spread over fewer words"
        else:
            what = "neither clearly rises nor falls with sparsity"
        clear = trend.low > 0 or trend.high < 0
        if clear and not trend.same_for_all_seeds:
            what += "; but not for every seed alone"
        said.append(f"<li><b>{escape(config)}</b>: the entropy of importance {what}.</li>")
    if not said:
        return "<p>Fewer than three degrees of sparsity were tried, so there is no trend.</p>"
    return f"<ul class=cautions>{''.join(said)}</ul>"
