"""``parsimax bench``: how fast mappings and losses are beside torch and other packages."""

import importlib
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

app = App(name="bench", help="Time parsimax against its peers; a wrong result is never timed.")

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["float64", "float32", "bfloat16", "float16"]

_many = Parameter(consume_multiple=True, negative=())
_device = Parameter(help="Where to run; auto takes a GPU if there is one.")
_repeats = Parameter(help="Timed runs of each; the median counts.")
_std = Parameter(help="Standard deviations of the scores.")
_out = Parameter(help="File for the results, as JSON, or a directory for it.")
_resume = Parameter(
    negative=(),
    help="Go on with the file at --out: what it has, by the same code, is not timed again.",
)


@app.command
def rows(
    *,
    device: Annotated[Device, _device] = "auto",
    dtype: Annotated[tuple[Dtype, ...], _many, Parameter(help="Types of the scores.")] = (),
    shapes: Annotated[
        tuple[str, ...], _many, Parameter(help="Shapes to time, as ROWSxCOLUMNS.")
    ] = (),
    alphas: Annotated[
        tuple[float | Literal["tensor"], ...],
        _many,
        Parameter(help="Values of alpha to time; tensor: one a row, with its gradient."),
    ] = (),
    std: Annotated[tuple[float, ...], _many, _std] = (),
    only: Annotated[
        tuple[str, ...], _many, Parameter(help="Parts of the names of those who take part.")
    ] = (),
    minutes: Annotated[
        float | None, Parameter(help="When to leave the peers out, so that a run ends.")
    ] = None,
    repeats: Annotated[int | None, _repeats] = None,
    out: Annotated[Path | None, _out] = None,
) -> int | None:
    """Time the mappings over the rows of a matrix, forward and forward+backward.

    On a CPU, one thread computes. On a GPU, work is replayed from CUDA graphs, eager times stand
    beside, and all is compared with the memory floor: the bytes to move over the bandwidth of a
    copy. What is not said suits the device.
    """
    _check_positive(repeats=repeats)
    parsed = [parse_shape(text) for text in shapes]
    # By name, because the benchmarks bring torch with them.
    bench = importlib.import_module("parsimax.bench.rows")
    todo = bench.plan(
        device=device,
        dtypes=dtype,
        shapes=parsed,
        alphas=alphas,
        std=std,
        repeats=repeats,
        only=only,
        minutes=minutes,
    )
    status: int | None = bench.main(todo, out)
    return status


@app.command
def loss(
    *,
    device: Annotated[Device, _device] = "auto",
    dtype: Annotated[Dtype | None, Parameter(help="Type of the layer.")] = None,
    tokens: Annotated[int | None, Parameter(help="Rows of the hidden states.")] = None,
    hidden: Annotated[int | None, Parameter(help="Columns of the hidden states.")] = None,
    words: Annotated[tuple[int, ...], _many, Parameter(help="Outputs of the layer.")] = (),
    alphas: Annotated[tuple[float, ...], _many, Parameter(help="Values of alpha to time.")] = (),
    std: Annotated[tuple[float, ...], _many, _std] = (),
    repeats: Annotated[int | None, _repeats] = None,
    out: Annotated[Path | None, _out] = None,
) -> int | None:
    """Time the loss of a linear layer, forward+backward, and measure its memory.

    On a GPU, losses of logits that exist already are timed, too. What is not said suits the device.
    """
    _check_positive(tokens=tokens, hidden=hidden, repeats=repeats)
    for count in words:
        _check_positive(words=count)
    bench = importlib.import_module("parsimax.bench.loss")
    todo = bench.plan(
        device=device,
        dtype=dtype,
        tokens=tokens,
        hidden=hidden,
        words=words,
        std=std,
        alphas=alphas,
        repeats=repeats,
    )
    status: int | None = bench.main(todo, out)
    return status


@app.command
def attention(
    *,
    device: Annotated[Device, _device] = "auto",
    dtype: Annotated[Dtype | None, Parameter(help="Type of queries, keys and values.")] = None,
    tokens: Annotated[tuple[int, ...], _many, Parameter(help="Lengths to time.")] = (),
    sizes: Annotated[tuple[int, ...], _many, Parameter(help="Sizes of heads.")] = (),
    empty: Annotated[
        tuple[float, ...],
        _many,
        Parameter(help="Shares of blocks of 64 x 64 that the scores leave without weight."),
    ] = (),
    causal: Annotated[
        bool | None, Parameter(help="Only causal attention, or only the other; both by default.")
    ] = None,
    decode: Annotated[
        bool, Parameter(help="One new query against a cache of so many keys, instead.")
    ] = False,
    only: Annotated[
        tuple[str, ...], _many, Parameter(help="Parts of the names of those who take part.")
    ] = (),
    repeats: Annotated[int | None, _repeats] = None,
    out: Annotated[Path | None, _out] = None,
    resume: Annotated[bool, _resume] = False,
) -> int | None:
    """Time attention, forward and forward+backward, beside dense softmax and adasplash.

    What of ours is wrong by float64, on fewer tokens or on some rows of the problem itself, is not
    timed; others are, with their error.
    With --decode: a step of decoding, beside all backends of torch's softmax.
    """
    _check_positive(repeats=repeats)
    for name, counts in (("tokens", tokens), ("sizes", sizes)):
        for count in counts:
            _check_positive(**{name: count})
    if any(not 0 <= share < 1 for share in empty):
        raise ValueError(f"empty: expected shares from 0 to below 1, got {list(empty)}")
    if decode and causal is not None:
        raise ValueError("causal: a new query sees all that is in the cache; leave it out")
    bench = importlib.import_module(f"parsimax.bench.{'decoding' if decode else 'attention'}")
    todo = bench.plan(
        device=device,
        dtype=dtype,
        tokens=tokens,
        sizes=sizes,
        empty=empty,
        only=only,
        repeats=repeats,
        **({} if decode else {"causal": causal}),
    )
    status: int | None = bench.main(todo, out, resume)
    return status


@app.command
def simplex(
    *,
    only: Annotated[
        tuple[str, ...], _many, Parameter(help="Parts of the names of the mappings to time.")
    ] = (),
    rows: Annotated[int | None, Parameter(help="Rows of scores.")] = None,
    columns: Annotated[tuple[int, ...], _many, Parameter(help="Lengths of the rows.")] = (),
    repeats: Annotated[int | None, _repeats] = None,
    out: Annotated[Path | None, _out] = None,
) -> int | None:
    """Time fusedmax, oscarmax and the constrained mappings on one thread of the CPU.

    Beside them stand what other packages took, as recorded once for 64 rows.
    """
    _check_positive(rows=rows, repeats=repeats)
    for count in columns:
        _check_positive(columns=count)
    bench = importlib.import_module("parsimax.bench.simplex")
    usual = bench.Plan()
    names = [name for name in bench.MAPPINGS if not only or any(part in name for part in only)]
    if not names:
        raise ValueError(f"only: none of {', '.join(bench.MAPPINGS)} has {' or '.join(only)} in it")
    todo = bench.Plan(names, rows or usual.rows, columns or usual.columns, repeats or usual.repeats)
    status: int | None = bench.main(todo, out)
    return status


@app.command
def training(
    *,
    device: Annotated[Device, _device] = "auto",
    only: Annotated[
        tuple[str, ...], _many, Parameter(help="Parts of the names of the models to train.")
    ] = (),
    rounds: Annotated[int | None, _repeats] = None,
    out: Annotated[Path | None, _out] = None,
) -> int | None:
    """Count the target tokens a second of training sequence models, beside torch's own softmax.

    A recurrent model of inflection and a Transformer, each with 1.5-entmax, with learned alphas,
    and with torch's softmax attention and cross-entropy; on a GPU by CUDA graphs, and eagerly
    beside.
    """
    _check_positive(rounds=rounds)
    bench = importlib.import_module("parsimax.bench.training")
    status: int | None = bench.main(bench.plan(device=device, only=only, rounds=rounds), out)
    return status


@app.command
def structured(
    *,
    only: Annotated[
        tuple[str, ...], _many, Parameter(help="Parts of the names of the cases, as matching.")
    ] = (),
    batch: Annotated[int | None, Parameter(help="Instances a batch.")] = None,
    repeats: Annotated[int | None, _repeats] = None,
    out: Annotated[Path | None, _out] = None,
) -> int | None:
    """Time SparseMAP over sequences, matchings and trees beside the C++ it replaces.

    A solution that did not converge, by one more call of its oracle, is not timed.
    """
    _check_positive(batch=batch, repeats=repeats)
    bench = importlib.import_module("parsimax.bench.structured")
    status: int | None = bench.main(bench.plan(only=only, batch=batch, repeats=repeats), out)
    return status


@app.command
def plot(
    results: Annotated[
        Path, Parameter(help="Results of bench rows on a GPU, or of bench attention.")
    ],
    /,
    *,
    out: Annotated[
        Path | None, Parameter(help="File for the picture; its ending says which kind.")
    ] = None,
) -> None:
    """Draw results: of rows as multiples of the memory floor, of attention of softmax's time."""
    bench = importlib.import_module("parsimax.bench.plot")
    picture = bench.write(results, out)
    print(f"written to {picture}")


def _check_positive(**counts: int | None) -> None:
    for name, value in counts.items():
        if value is not None and value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")


def parse_shape(text: str) -> tuple[int, int]:
    """Read a matrix shape.

    >>> parse_shape("4096x1024")
    (4096, 1024)
    """
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"shapes: expected ROWSxCOLUMNS such as 4096x1024, got {text!r}")
    return int(parts[0]), int(parts[1])
