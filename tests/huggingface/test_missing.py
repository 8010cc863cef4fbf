"""Without transformers."""

from __future__ import annotations

import sys

import pytest
from torch import nn

import parsimax as px


def test_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install parsimax\[huggingface\]"):
        px.huggingface.enable(nn.Linear(2, 2))
