"""The application: its commands, and how an error reaches the user."""

import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from parsimax import __version__
from parsimax.cli import (
    audit,
    bench,
    complete,
    decode,
    demo,
    evaluate,
    heads,
    score,
    support,
    sweep,
    train,
)

# Packages that only an extra brings, and the extra that brings them.
_EXTRAS = {
    "entmax": "bench",
    "lemminflect": "train",
    "matplotlib": "viz",
    "pytorch_lightning": "train",
    "rich": "cli",
    "sacrebleu": "train",
    "tensorboard": "train",
    "tokenizers": "train",
    "transformers": "huggingface",
    "yaml": "train",
}

_USAGE_ERROR = 2
_INTERRUPTED = 130

app = App(
    name="parsimax",
    help="Sparse, structured and adaptive attention and outputs for PyTorch.",
    version=f"parsimax {__version__}",
)
app.command(demo.app)
app.command(train.train)
app.command(decode.decode)
app.command(complete.complete)
app.command(support.support)
app.command(evaluate.evaluate)
app.command(score.score)
app.command(heads.heads)
app.command(audit.audit)
app.command(sweep.sweep)
app.command(train.average)
app.command(bench.app)


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    A mistake of the user's is told in one line. Anything else keeps its traceback, because it is a
    mistake of ours.
    """
    given = sys.argv[1:] if argv is None else argv
    try:
        result = app(
            # cyclopts takes the hyphen that stands for standard input for an option
            ["/dev/stdin" if argument == "-" else argument for argument in given],
            exit_on_error=False,
            print_error=True,
            result_action="return_value",
        )
    except CycloptsError:  # already printed, with the nearest valid name
        return _USAGE_ERROR
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        extra = _EXTRAS.get(name)
        if extra is None:
            raise
        return _fail(f"this command needs {name}; pip install 'parsimax[{extra}]'")
    except BrokenPipeError:  # `parsimax decode ... | head`: nobody reads on, which is no mistake
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except ValueError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return _INTERRUPTED
    return result if isinstance(result, int) else 0


def _fail(message: str) -> int:
    print(f"parsimax: {message}", file=sys.stderr)
    return 1
