"""``parsimax support``: everything that a model may say, as a tree."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from parsimax.cli import runs
from parsimax.cli.runs import Device, Line, Models

if TYPE_CHECKING:
    from rich.tree import Tree

    from parsimax.seq2seq.search import Support
    from parsimax.viz.tree import Branch


_PRINTED = 20  # sequences of a source in a tree in the terminal; JSON has them all


def support(
    *paths: Annotated[
        Path,
        Parameter(
            name="RUN [INPUT]",
            help="Folder of a run; of several, the probabilities are averaged. A last path that is "
            "a file is the input, one source a line; standard input without one.",
        ),
    ],
    limit: Annotated[
        int, Parameter(help="Stop at this many of a source; not always the likeliest.")
    ] = 100,
    mass: Annotated[
        float, Parameter(help="Be content with sequences that have this probability together.")
    ] = 1.0,
    format: Annotated[
        Literal["text", "jsonl"], Parameter(help="Trees in the terminal, or JSON objects.")
    ] = "text",
    html: Annotated[Path | None, Parameter(help="File for a page with the trees drawn.")] = None,
    max_length: Annotated[int | None, Parameter(help=runs.MAX_LENGTH)] = None,
    checkpoint: Annotated[str, Parameter(help="best, last, average, or a name.")] = "best",
    device: Annotated[Device, Parameter(help="Where to compute; auto takes a GPU.")] = "auto",
    skip_bad: Annotated[
        bool, Parameter(negative=(), help="Leave bad lines out and go on.")
    ] = False,
) -> int:
    """List all sequences of positive probability, with their probabilities, as a tree.

    Of a dense model these are far too many: limits cut, and what was not followed is said.
    """
    folders, source = runs.split_paths(paths)
    if limit < 1:
        raise ValueError(f"limit: expected at least 1, got {limit}")
    models = runs.load(folders, checkpoint=checkpoint, device=device)
    longest = models.runs[0].config.search.max_length if max_length is None else max_length
    from parsimax.seq2seq import search

    lines = runs.stop_at_bad(
        runs.encode_lines(models.codec, source), source, skip_bad=skip_bad or format == "jsonl"
    )
    pictures: list[tuple[str, str]] = []
    count = 0
    strange: list[int] = []
    for line in lines:
        count += 1
        if line.strange:
            strange.append(line.number)
        if line.error:
            _print_error(line, format)
            continue
        batch = runs.to_batch([line.symbols], models.device)
        (found,) = search.support(
            models.stepper, batch.source, batch.source_lengths, limit=limit, mass=mass,
            max_length=longest,
        )  # fmt: skip
        if format == "jsonl":
            print(_json(models, line, found))
        else:
            _print_tree(models, line, found)
        if html is not None and found.sequences:
            pictures.append((line.text, _picture(models, found, len(pictures))))
        sys.stdout.flush()
    runs.say_strange(strange)
    if not count:
        name = "standard input" if source == runs.STDIN else source
        raise ValueError(f"{name} is empty: give one source a line")
    if html is not None:
        from parsimax.viz.tree_page import write_tree_page

        print(f"written to {write_tree_page(html, pictures)}", file=sys.stderr)
    return 0


def _print_error(line: Line, format: str) -> None:
    import json

    if format == "jsonl":
        print(json.dumps({"line": line.number, "error": line.error}, ensure_ascii=False))
    else:
        print(f"parsimax: line {line.number}: {line.error}", file=sys.stderr)


def _json(models: Models, line: Line, found: Support) -> str:
    import json

    return json.dumps(
        {
            "line": line.number,
            "source": line.text,
            "sequences": [
                {
                    "text": models.codec.decode_target(h.symbols),
                    "probability": h.probability,
                    "log_probability": h.log_probability,
                }
                for h in found.sequences
            ],
            "covered": found.covered,
            "complete": found.complete,
            "remaining": found.remaining,
        },
        ensure_ascii=False,
        allow_nan=False,
    )


def _leaves(models: Models, found: Support) -> list[Any]:
    from parsimax.viz.tree import Leaf

    symbols = models.codec.target_symbols
    return [Leaf(tuple(symbols(h.symbols)), h.probability) for h in found.sequences]


def _picture(models: Models, found: Support, number: int) -> str:
    from parsimax.viz.tree import tree_figure

    return tree_figure(
        _leaves(models, found), name=f"tree-{number}", joiner=_joiner(models), most=30
    )


def _joiner(models: Models) -> str:
    return "" if models.codec.target_segmentation.kind == "characters" else " "


def _print_tree(models: Models, line: Line, found: Support) -> None:
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    from parsimax.viz.canvas import percent
    from parsimax.viz.tree import grow

    count = len(found.sequences)
    hidden = found.sequences[_PRINTED:]
    what = "1 sequence" if count == 1 else f"{count} sequences"
    rest = "" if found.complete else f", {percent(found.remaining)} was not followed"
    title = Text(line.text.replace("\t", " "), style="bold")
    title.append(f"  {what}, {percent(found.covered)}{rest}", style="dim")
    tree = Tree(title, guide_style="dim")
    if found.sequences:
        root = grow(_leaves(models, found), _PRINTED)
        # where the first symbol is a choice already, there is no common beginning to show
        for branch in [root] if root.symbols or root.leaf is not None else root.children:
            _add(tree, branch, _joiner(models))
    if hidden:
        share = percent(sum(h.probability for h in hidden))
        tree.add(Text(f"… and {len(hidden)} more with {share} together", style="dim"))
    Console(highlight=False).print(tree)


def _add(tree: Tree, branch: Branch, joiner: str) -> None:
    from rich.text import Text

    from parsimax.viz.canvas import percent, shown

    text = Text(f"{percent(branch.probability):>8}  ", style="cyan")
    text.append(joiner.join(map(shown, branch.symbols)), style="bold")
    if branch.leaf is not None:
        text.append(" ⏎", style="green")
        text.append(f"   {joiner.join(map(shown, branch.leaf.symbols))}", style="default")
        text.append(f"  {percent(branch.leaf.probability)}", style="dim")
    node = tree.add(text)
    for child in branch.children:
        _add(node, child, joiner)
