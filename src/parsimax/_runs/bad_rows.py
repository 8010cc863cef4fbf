"""Rows that cannot be used, and how the user hears of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

SHOWN = 10  # bad rows that a message lists; the rest are counted


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used: where it stands (lines count from 1) and why.

    The ``rows`` from there on, usually one, are bad for the same reason.
    """

    path: str
    line: int
    why: str
    rows: int = 1

    def __str__(self) -> str:
        through = f"-{self.line + self.rows - 1}" if self.rows > 1 else ""
        return f"{self.path}:{self.line}{through}: {self.why}"


class DataError(ValueError):
    """Data that cannot be used: the first bad ``rows``, and the ``count`` of all."""

    def __init__(self, message: str, rows: Sequence[BadRow] = (), count: int = 0) -> None:
        super().__init__(message)
        self.rows = tuple(rows)
        self.count = count

    def __reduce__(self) -> tuple[type[DataError], tuple[str, tuple[BadRow, ...], int]]:
        return DataError, (str(self), self.rows, self.count)  # it may cross a process


class BadRows:
    """Collects bad rows: the first few whole, the rest as a count."""

    def __init__(self) -> None:
        self.first: list[BadRow] = []
        self.count = 0

    def add(self, row: BadRow) -> None:
        """One more."""
        self.count += row.rows
        last = self.first[-1] if self.first else None
        if last and (row.path, row.line, row.why) == (last.path, last.line + last.rows, last.why):
            self.first[-1] = replace(last, rows=last.rows + row.rows)
            return
        if len(self.first) < SHOWN:
            self.first.append(row)

    def error(self) -> DataError:
        """All of them as one error."""
        listed = "\n".join(f"  {row}" for row in self.first)
        left = self.count - sum(row.rows for row in self.first)
        more = f"\n  ... and {left:,} more" if left else ""
        rows = "1 bad row" if self.count == 1 else f"{self.count:,} bad rows"
        return DataError(
            f"{rows}:\n{listed}{more}\n"
            "Correct them, or leave such rows out and have them counted (data.skip_bad: true in a "
            "config, --skip-bad of the commands that use runs).",
            self.first,
            self.count,
        )
