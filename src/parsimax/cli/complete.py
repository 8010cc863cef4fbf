"""``parsimax complete``: what may come next, typed by hand or asked in JSON lines."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from parsimax.cli import runs
from parsimax.cli.runs import Device, Models

if TYPE_CHECKING:
    from rich.console import Console

    from parsimax.seq2seq.search import Completion

_HELP = (
    "Type a source. Then type symbols to go on; an empty line takes the forced run, or the most "
    "probable symbol.\n/undo takes back, /new begins with another source, /quit ends."
)


def complete(
    *paths: Annotated[
        Path,
        Parameter(
            name="RUN [INPUT]",
            help="Folder of a run; of several, the probabilities are averaged. With --jsonl a last "
            "path that is a file is the input.",
        ),
    ],
    jsonl: Annotated[
        bool,
        Parameter(
            negative=(),
            help='Read {"source", "prefix"} and answer {"next": [{"token", "p"}], "forced": [...]},'
            " one object a line.",
        ),
    ] = False,
    top: Annotated[
        int | None, Parameter(help="List at most this many next tokens; all by default.")
    ] = None,
    max_forced: Annotated[int, Parameter(help="Tokens a forced run may have.")] = 200,
    checkpoint: Annotated[str, Parameter(help="best, last, average, or a name.")] = "best",
    device: Annotated[Device, Parameter(help="Where to compute; auto takes a GPU.")] = "auto",
) -> int:
    """Show the few next tokens of positive probability, and the run until the next real choice.

    A prefix is text, or a list of the model's own symbols. A JSON line that cannot be answered
    gives {"error", "line"}, and the next one is read.
    """
    folders, source = runs.split_paths(paths)
    if source != runs.STDIN and not jsonl:
        raise ValueError(f"{source}: an input file needs --jsonl; without it, sources are typed")
    for name, value, least in (("top", top, 1), ("max_forced", max_forced, 0)):
        if value is not None and value < least:
            raise ValueError(f"{name}: expected at least {least}, got {value}")
    models = runs.load(folders, checkpoint=checkpoint, device=device)
    completer = Completer(models, top, max_forced)
    if jsonl:
        _answer_lines(completer, source)
        return 0
    from rich.console import Console

    _talk(completer, Console(highlight=False))
    return 0


class Completer:
    """Text in, completion out.

    Args:
        models: one run or several.
        top: next tokens to list at most.
        max_forced: tokens a forced run may have.
    """

    def __init__(self, models: Models, top: int | None = None, max_forced: int = 200) -> None:
        self.models, self.top, self.max_forced = models, top, max_forced

    def prefix_symbols(self, prefix: str | list[str]) -> list[int]:
        """Numbers of a prefix; what the model does not know is an error that names it."""
        vocabulary = self.models.codec.target_vocabulary
        split = self.models.codec.target_segmentation.split
        symbols = split(prefix) if isinstance(prefix, str) else prefix
        unknown = [s for s in symbols if s not in vocabulary.of_text]
        if unknown:
            raise ValueError(f"prefix: expected symbols that the model can say, got {unknown[0]!r}")
        return [vocabulary.of_text[s] for s in symbols]

    def complete(self, source: str, prefix: list[int]) -> Completion:
        """How the prefix may go on."""
        from parsimax.seq2seq import search

        batch = runs.to_batch([runs.encode_source(self.models.codec, source)], self.models.device)
        (found,) = search.complete(
            self.models.stepper, batch.source, batch.source_lengths, [prefix], top=self.top,
            max_forced=self.max_forced,
        )  # fmt: skip
        return found

    def tokens(self, symbols: Any) -> list[str]:
        """The names of symbols."""
        return list(self.models.codec.target_symbols(symbols))

    def answer(self, question: object) -> dict[str, Any]:
        """What JSON lines get for one object.

        Raises:
            ValueError: the question is not one.
        """
        source, prefix = _question(question)
        symbols = self.prefix_symbols(prefix)
        found = self.complete(source, symbols)
        names = self.tokens([n.symbol for n in found.next])
        return {
            "next": [
                {"token": name, "p": n.probability}
                for name, n in zip(names, found.next, strict=True)
            ],
            "forced": self.tokens(found.forced),
            "ended": found.ended,
            "possible": found.possible,
            "text": self.models.codec.decode_target([*symbols, *found.forced]),
        }


def _question(value: object) -> tuple[str, str | list[str]]:
    """The source and the prefix of an object; a source may be an object of its own."""
    if not isinstance(value, dict):
        raise ValueError('expected an object such as {"source": "...", "prefix": "..."}')
    unknown = sorted(value.keys() - {"source", "prefix"})
    if "source" not in value or unknown:
        got = ", ".join(map(str, value)) or "none"
        raise ValueError(f'expected the keys "source" and "prefix", got {got}')
    source, prefix = value["source"], value.get("prefix", "")
    if isinstance(source, dict):
        source = json.dumps(source, ensure_ascii=False)
    if not isinstance(source, str):
        raise ValueError(f"source: expected text, got {json.dumps(source)}")
    is_list = isinstance(prefix, list) and all(isinstance(s, str) for s in prefix)
    if not isinstance(prefix, str) and not is_list:
        raise ValueError(f"prefix: expected text or a list of symbols, got {json.dumps(prefix)}")
    return source, prefix


def _answer_lines(completer: Completer, source: str) -> None:
    for number, text, fault in runs.read_lines(source):
        if not fault and not text.strip():
            continue  # a blank line between objects asks nothing
        try:
            if fault:
                raise ValueError(fault)
            answer = completer.answer(json.loads(text))
        except json.JSONDecodeError as error:
            answer = {"error": f"not JSON: {error.msg} at column {error.colno}", "line": number}
        except (ValueError, RecursionError) as error:
            answer = {"error": str(error), "line": number}
        print(json.dumps(answer, ensure_ascii=False, allow_nan=False))
        sys.stdout.flush()


# --- in a terminal --------------------------------------------------------------------------------


def _talk(completer: Completer, console: Console) -> None:
    """Ask for sources and show what may follow, until the input ends."""
    with contextlib.suppress(ImportError):  # where there is one, lines can be edited and recalled
        import readline  # noqa: F401
    console.print(_HELP, style="dim", markup=False)
    if completer.models.codec.format == "inflection":
        console.print("A source is a lemma and its tags: draw V;V.PTCP;PST", style="dim")
    while True:
        source = _ask(console, "source> ")
        if source is None or source.strip() == "/quit":
            return
        if not source.strip() or source.strip() == "/new":
            continue
        try:
            source = _as_source(source, completer.models.codec.format)
            completer.complete(source, [])
        except ValueError as error:
            console.print(str(error), style="red", markup=False)
            continue
        if not _one_source(completer, console, source):
            return


def _as_source(text: str, format: str) -> str:
    """Tabs are hard to type: the last word of an inflection may be its tags."""
    if format != "inflection" or "\t" in text or text.lstrip().startswith("{"):
        return text
    lemma, _, tags = text.strip().rpartition(" ")
    return f"{lemma.strip()}\t{tags}" if lemma else text


def _one_source(completer: Completer, console: Console, source: str) -> bool:
    """Complete one source; False if the user wants to go."""
    said: list[int] = []
    before: list[list[int]] = []
    while True:
        found = completer.complete(source, said)
        _show(completer, console, said, found)
        text = _ask(console, "  next> ")
        if text is None or text.strip() == "/quit":
            return False
        if text.strip() == "/new":
            return True
        if text.strip() == "/undo":
            said = before.pop() if before else []
            continue
        if text == "":
            added = list(found.forced) or _best(found)
            if not added:
                console.print("  the end", style="green")
                return True
        else:
            try:
                added = completer.prefix_symbols(text)
            except ValueError as error:
                console.print(f"  {error}", style="red", markup=False)
                continue
        before.append(said)
        said = [*said, *added]


def _best(found: Completion) -> list[int]:
    """The most probable next symbol; nothing if that is the end."""
    from parsimax.seq2seq.data.symbols import EOS

    best = found.next[0].symbol if found.next else EOS
    return [] if best == EOS else [best]


def _show(completer: Completer, console: Console, said: list[int], found: Completion) -> None:
    from rich.text import Text

    from parsimax.seq2seq.data.symbols import EOS
    from parsimax.viz.canvas import shown

    decode = completer.models.codec.decode_target
    whole = decode([*said, *found.forced])
    line = Text("  ")
    start = decode(said)
    line.append(start, style="bold")
    line.append(whole[len(start) :] if whole.startswith(start) else f" {whole}", style="green")
    line.append(" ⏎" if found.ended else "", style="green")
    console.print(line)
    if not found.possible:
        console.print("  the model gives this beginning no probability", style="yellow")
    choices = found.after or found.next
    if found.ended:
        return
    line = Text("  ")
    for choice in choices[:20]:
        name = "⏎" if choice.symbol == EOS else shown(completer.tokens([choice.symbol])[0])
        line.append(f"{name} ", style="bold cyan")
        line.append(f"{100 * choice.probability:.1f} %   ", style="dim")
    if len(choices) > 20:
        line.append(f"and {len(choices) - 20} more", style="dim")
    console.print(line)


def _ask(console: Console, prompt: str) -> str | None:
    """A line that the user typed; None at the end of the input."""
    try:
        return console.input(f"[dim]{prompt}[/dim]")
    except EOFError:
        console.print()
        return None
