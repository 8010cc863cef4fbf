"""The command line: ``parsimax demo``, ``train``, ``decode``, ``complete``, ``evaluate`` and more.

Nothing heavy is imported until a command runs, so ``parsimax --help`` answers at once.
"""

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line on ``argv`` (default: the process's own) and return the exit status."""
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
