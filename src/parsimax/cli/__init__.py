"""The command line: ``parsimax demo``, ``train``, ``decode``, ``complete``, ``evaluate`` and more.

Nothing heavy is imported until a command runs, so ``parsimax --help`` answers at once.
"""

import io
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line on ``argv`` (default: the process's own) and return the exit status."""
    for stream in (sys.stdout, sys.stderr):
        # Text is UTF-8, as files are, even where the locale knows nothing but ASCII.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=stream.errors)
    try:
        from parsimax.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in {"cyclopts", "rich"}:
            raise
        print(
            f"parsimax: the command line needs {error.name}; pip install 'parsimax[cli]'",
            file=sys.stderr,
        )
        return 1
    return run(argv)
