"""The examples of docs/structured.md run, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import torch

GUIDE = Path(__file__).parents[2] / "docs" / "structured.md"


def test_examples_run():
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec"), names)  # our own text
    assert names["r"].converged.all()
    assert names["weights"].shape == (2, 6, 9)
    assert (names["weights"][1, :, 7:] == 0).all()
    # what the guide calls the best segment is the best of all segments
    for _ in range(50):
        scores = torch.randn(6, dtype=torch.float64)
        found = (names["best_segment"](scores) * scores).sum()
        ends = [(a, b) for b in range(1, 7) for a in range(b)]
        torch.testing.assert_close(found, max(scores[a:b].sum() for a, b in ends))
