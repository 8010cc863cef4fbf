"""What stops a run and is no mistake of the program; the message says what to do."""

from __future__ import annotations


class TrainingError(ValueError):
    """A run that cannot start, go on or be resumed."""
