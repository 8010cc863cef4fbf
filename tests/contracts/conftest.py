"""One repeatable profile for everything that hypothesis generates."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=15)
settings.load_profile("repeatable")
