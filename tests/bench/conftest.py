"""What the benchmark of rows stores on a GPU, made up here."""

from __future__ import annotations

from typing import Any

import pytest


def _measured(multiple: float, floor_ms: float) -> dict[str, Any]:
    return {
        "ms": multiple * floor_ms,
        "ratio": multiple / 3,
        "eager_ms": multiple * floor_ms + 0.05,
        "graph": True,
        "floor_ms": floor_ms,
        "floor_fraction": 1 / multiple,
    }


@pytest.fixture
def gpu_report() -> dict[str, Any]:
    """Two shapes, one dtype, two deviations, and one peer that was refused."""

    def row(
        shape: tuple[int, int], std: float, alpha: float | str, name: str, multiple: float | None
    ) -> dict[str, Any]:
        timed = multiple is not None
        return {
            "dtype": "bfloat16",
            "shape": list(shape),
            "std": std,
            "alpha": alpha,
            "contender": name,
            "sets": 1,
            "refused": None if timed else "off by 2e-02",
            "backward_refused": None if timed else "off by 2e-02",
            "forward": _measured(multiple, 0.1) if multiple else None,
            "backward": _measured(multiple, 0.25) if multiple else None,
        }

    rows = []
    for shape in ((64, 512), (64, 4096)):
        for std in (1.0, 8.0):
            rows.append(row(shape, std, 1.0, "torch.softmax", 3.0))
            for alpha in (2.0, 1.5, "tensor"):
                rows.append(row(shape, std, alpha, "parsimax", 1.3))
                rows.append(row(shape, std, alpha, "entmax.anything", None))
                rows.append(row(shape, std, alpha, "entmax.anything, float32 inside", 90.0))
            rows.append(row(shape, std, 1.5, "adasplash", None))
    return {
        "date": "2026-11-15",
        "gpu": "NVIDIA H200",
        "torch": "2.11.0",
        "copy_bytes_per_second": 4.2e12,
        "rows": rows,
    }
