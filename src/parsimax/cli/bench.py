"""``parsimax bench``: how fast mappings and losses are beside torch and the entmax package."""

import importlib
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

app = App(name="bench", help="Time parsimax against its peers; a wrong result is never timed.")

_many = Parameter(consume_multiple=True, negative=())


@app.command
def rows(
    *,
    dtype: Annotated[
        Literal["float64", "float32", "bfloat16", "float16"], Parameter(help="Type of the scores.")
    ] = "float32",
    shapes: Annotated[
        tuple[str, ...], _many, Parameter(help="Shapes to time, as ROWSxCOLUMNS.")
    ] = ("4096x1024", "512x32000"),
    alphas: Annotated[tuple[float, ...], _many, Parameter(help="Values of alpha to time.")] = (
        1.3,
        1.5,
        2.0,
    ),
    std: Annotated[
        tuple[float, ...], _many, Parameter(help="Standard deviations of the scores.")
    ] = (1.0, 4.0),
    repeats: Annotated[int, Parameter(help="Timed runs of each; the median counts.")] = 9,
    out: Annotated[Path | None, Parameter(help="File for the results, as JSON.")] = None,
) -> int | None:
    """Time the mappings over the rows of a matrix, forward and forward+backward, one thread."""
    if repeats < 1:
        raise ValueError(f"repeats: expected at least 1, got {repeats}")
    parsed = [parse_shape(text) for text in shapes]
    # By name, because the benchmarks bring torch with them.
    bench_rows = importlib.import_module("parsimax.bench.rows")
    status: int | None = bench_rows.main(
        dtype=dtype, shapes=parsed, alphas=list(alphas), std=list(std), repeats=repeats, out=out
    )
    return status


@app.command
def loss(
    *,
    tokens: Annotated[int, Parameter(help="Rows of the hidden states.")] = 2048,
    hidden: Annotated[int, Parameter(help="Columns of the hidden states.")] = 256,
    words: Annotated[int, Parameter(help="Outputs of the layer.")] = 32000,
    alphas: Annotated[tuple[float, ...], _many, Parameter(help="Values of alpha to time.")] = (
        1.5,
        1.0,
    ),
    repeats: Annotated[int, Parameter(help="Timed runs of each; the median counts.")] = 5,
    out: Annotated[Path | None, Parameter(help="File for the results, as JSON.")] = None,
) -> int | None:
    """Time the loss of a linear layer, forward+backward, one thread, and measure its memory."""
    counts = {"tokens": tokens, "hidden": hidden, "words": words, "repeats": repeats}
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")
    bench_loss = importlib.import_module("parsimax.bench.loss")
    status: int | None = bench_loss.main(**counts, alphas=list(alphas), out=out)
    return status


def parse_shape(text: str) -> tuple[int, int]:
    """Read a matrix shape.

    >>> parse_shape("4096x1024")
    (4096, 1024)
    """
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"shapes: expected ROWSxCOLUMNS such as 4096x1024, got {text!r}")
    return int(parts[0]), int(parts[1])
