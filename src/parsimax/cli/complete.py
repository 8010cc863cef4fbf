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

    from parsimax.seq2seq.data.textcodec import TextCodec
    from parsimax.seq2seq.text_completion import TextCompletion

_HELP = (
    "Type a source. Then type text to go on; an empty line takes the forced run, or the most "
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
            help='Read {"source", "prefix"} and answer {"next": [{"token", "p", "text"}], '
            '"forced": [...]}, one object a line.',
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

    A prefix is text, which may end inside a word, or a list of the model's own symbols. A JSON line
    that cannot be answered gives {"error", "line"}, and the next one is read.
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
        from parsimax.seq2seq.text_completion import TextCompleter

        self.models = models
        self._texts = TextCompleter(
            models.stepper, models.codec, models.device, top=top, max_forced=max_forced
        )

    def prefix_symbols(self, prefix: list[str]) -> list[int]:
        """Numbers of listed symbols; what the model cannot say is an error that names it."""
        from parsimax.seq2seq.data.symbols import EOS, NAMES, UNK

        vocabulary = self.models.codec.target_vocabulary
        known = {**vocabulary.of_text, NAMES[UNK]: UNK}
        for symbol in prefix:
            if symbol == NAMES[EOS]:
                raise ValueError(
                    f"prefix: expected symbols before the end, got {symbol!r}, after which nothing "
                    "can follow; leave it out, and next says whether the output may end there"
                )
            if symbol not in known:
                raise ValueError(f"prefix: expected symbols that the model can say, got {symbol!r}")
        return [known[symbol] for symbol in prefix]

    def complete(self, source: str, prefix: str | list[str]) -> TextCompletion:
        """How the prefix may go on: a text may end inside a word, a list has whole symbols."""
        symbols = runs.encode_source(self.models.codec, source)
        if isinstance(prefix, str):
            return self._texts.complete(symbols, prefix)
        return self._texts.complete_symbols(symbols, self.prefix_symbols(prefix))

    def answer(self, question: object) -> dict[str, Any]:
        """What JSON lines get for one object.

        Raises:
            ValueError: the question is not one.
        """
        codec = self.models.codec
        source, prefix = _question(question, codec.format)
        found = self.complete(source, prefix)
        if isinstance(prefix, str):
            begun = self._texts.normal(prefix)
        else:
            begun = codec.decode_target(self.prefix_symbols(prefix))
        return {
            "next": [{"token": n.token, "p": n.probability, "text": n.text} for n in found.next],
            "forced": list(found.forced),
            "ended": found.ended,
            "possible": found.possible,
            "exhaustive": found.exhaustive,
            "text": begun + found.forced_text,
        }


def _question(value: object, format: str) -> tuple[str, str | list[str]]:
    """The source and the prefix of an object; a source may be an object of its own."""
    if not isinstance(value, dict):
        raise ValueError('expected an object such as {"source": "...", "prefix": "..."}')
    unknown = sorted(value.keys() - {"source", "prefix"})
    if "source" not in value or unknown:
        got = ", ".join(map(str, value)) or "none"
        raise ValueError(f'expected the keys "source" and "prefix", got {got}')
    source, prefix = value["source"], value.get("prefix", "")
    if isinstance(source, dict):
        if format != "inflection":
            raise ValueError(
                "source: expected text; an object is a lemma and its tags, and this is no model of "
                "inflection"
            )
        source = json.dumps(source, ensure_ascii=False)
    if not isinstance(source, str):
        raise ValueError(f"source: expected text, got {json.dumps(source)}")
    is_list = isinstance(prefix, list) and all(isinstance(s, str) for s in prefix)
    if not isinstance(prefix, str) and not is_list:
        raise ValueError(f"prefix: expected text or a list of symbols, got {json.dumps(prefix)}")
    for name, text in (("source", source), ("prefix", "".join(prefix))):
        if any("\ud800" <= c <= "\udfff" for c in text):
            raise ValueError(f"{name}: expected Unicode text, got half of a surrogate pair")
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
        except ValueError as error:
            answer = {"error": str(error), "line": number}
        except Exception as error:  # noqa: BLE001 whoever asks in lines waits for every answer
            answer = {"error": f"{type(error).__name__}: {error}", "line": number}
        print(json.dumps(answer, ensure_ascii=False, allow_nan=False))
        sys.stdout.flush()


# --- in a terminal --------------------------------------------------------------------------------


def _talk(completer: Completer, console: Console) -> None:
    """Ask for sources and show what may follow, until the input ends."""
    with contextlib.suppress(ImportError):  # where there is one, lines can be edited and recalled
        import readline  # noqa: F401
    console.print(_HELP, style="dim", markup=False)
    codec = completer.models.codec
    if codec.format == "inflection":
        language = f" {codec.languages[0]}" if codec.languages else ""
        what = "a lemma, its tags and the language" if language else "a lemma and its tags"
        console.print(f"A source is {what}: draw V;V.PTCP;PST{language}", style="dim", markup=False)
    while True:
        source = _ask(console, "source> ")
        if source is None or source.strip() == "/quit":
            return
        if not source.strip() or source.strip() == "/new":
            continue
        try:
            source = _as_source(source, codec)
            completer.complete(source, "")
        except ValueError as error:
            console.print(str(error), style="red", markup=False)
            continue
        if not _one_source(completer, console, source):
            return


def _as_source(text: str, codec: TextCodec) -> str:
    """Tabs are hard to type: the last word of an inflection may be its tags, or its language."""
    if codec.format != "inflection" or "\t" in text or text.lstrip().startswith("{"):
        return text

    def are_tags(word: str) -> bool:
        return any(f"<tag:{tag}>" in codec.source_vocabulary for tag in word.split(";"))

    words = text.split()
    if len(words) >= 3 and are_tags(words[-2]) and not are_tags(words[-1]):
        return f"{' '.join(words[:-2])}\t{words[-2]}\t{words[-1]}"
    lemma, _, tags = text.strip().rpartition(" ")
    return f"{lemma.strip()}\t{tags}" if lemma else text


def _one_source(completer: Completer, console: Console, source: str) -> bool:
    """Complete one source; False if the user wants to go."""
    said = ""
    before: list[str] = []
    found = completer.complete(source, said)
    while True:
        _show(console, said, found)
        text = _ask(console, "  next> ")
        if text is None or text.strip() == "/quit":
            return False
        if text.strip() == "/new":
            return True
        longer = said + text
        if text.strip() == "/undo":
            longer = before[-1] if before else ""
        elif text == "":
            longer = said + (found.forced_text or (found.next[0].text if found.next else ""))
            if longer == said:
                console.print("  the end", style="green")
                return True
        try:
            found = completer.complete(source, longer)
        except ValueError as error:
            console.print(f"  {error}", style="red", markup=False)
            continue
        if text.strip() == "/undo":
            before = before[:-1]
        else:
            before.append(said)
        said = longer


def _show(console: Console, said: str, found: TextCompletion) -> None:
    from rich.text import Text

    from parsimax.seq2seq.data.symbols import EOS, NAMES
    from parsimax.viz.canvas import percent, shown

    line = Text("  ")
    line.append(said, style="bold")
    line.append(found.forced_text, style="green")
    line.append(" ⏎" if found.ended else "", style="green")
    console.print(line)
    if found.possible is False:
        console.print("  the model gives this beginning no probability", style="yellow")
    choices = found.after or found.next
    if found.ended:
        return
    line = Text("  ")
    for choice in choices[:20]:
        name = "⏎" if choice.token == NAMES[EOS] else shown(choice.token)
        line.append(f"{name} ", style="bold cyan")
        line.append(f"{percent(choice.probability)}   ", style="dim")
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
