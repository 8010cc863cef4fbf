"""``parsimax demo``: a sparse model trained before your eyes; ``parsimax demo family``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

app = App(name="demo", help="Train a sparse model in minutes and report what it can prove.")

_out = Parameter(help="Directory that receives the page.")


@app.default
def demo(
    *,
    out: Annotated[Path, _out] = Path("out"),
    minutes: Annotated[float, Parameter(help="Training ends after this at the latest.")] = 2.75,
    seed: Annotated[int, Parameter(help="Of the model and the order of the data.")] = 1,
    reuse: Annotated[
        bool, Parameter(negative=(), help="Take the model of an earlier demo; train none.")
    ] = False,
) -> None:
    """Train a sparse model of English verbs on the CPU and write one HTML report.

    The verbs come from the lexicon in the package lemminflect. The model learns from most of them,
    is asked for forms of the others, and the report shows what it gets right, what it can prove,
    and everything that it might say. It takes less than four minutes. The run is kept:
    parsimax complete OUT/run.
    """
    if minutes <= 0:
        raise ValueError(f"minutes: expected more than 0, got {minutes:g}")
    if out.is_file():
        raise ValueError(f"out: {out} is a file; give a directory")
    from parsimax.cli.inflection_demo import main

    page = main(out, minutes=minutes, seed=seed, reuse=reuse).resolve()
    print(f"The report, one page ({page.stat().st_size / 1000:.0f} kB):")
    print(f"  {page}")
    print(f"  {page.as_uri()}")
    print("Try the model by hand:")
    print(f"  parsimax complete {out / 'run'}")


@app.command
def family(
    *,
    out: Annotated[Path, _out] = Path("out"),
    sentence: Annotated[
        str | None, Parameter(help="Words to spread attention over (2 to 24 of them).")
    ] = None,
) -> None:
    """Draw the family of mappings into one self-contained HTML page."""
    from parsimax.viz import write_demo

    page = write_demo(out, sentence=sentence).resolve()
    print(f"The family, drawn on one page ({page.stat().st_size / 1000:.0f} kB):")
    print(f"  {page}")
    print(f"  {page.as_uri()}")
