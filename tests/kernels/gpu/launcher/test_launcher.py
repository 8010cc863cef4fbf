"""Triton's own launcher, with a driver of ours below it that has the interpreter run the kernels.

Elsewhere kernels are interpreted in place of being launched, so that nobody would see an argument
that is missing, has moved, or is not what a kernel was compiled for.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent
COMPILER = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
TOLERANCE = {"rows": 2e-6}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU"),
    pytest.mark.skipif(find_spec("triton") is None, reason="there is no Triton"),
    pytest.mark.skipif(COMPILER is None, reason="Triton's launcher is compiled by a C compiler"),
]


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """What :mod:`.problems` prints, by problem and time."""
    import triton

    assert COMPILER is not None
    folder = tmp_path_factory.mktemp("driver")
    headers = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
    library = folder / "libcuda.so.1"
    command = [COMPILER, "-shared", "-fPIC", f"-I{headers}", f"-Wl,-soname,{library.name}"]
    subprocess.run([*command, "-o", library, HERE / "driver.c"], check=True)
    root = HERE.parents[3]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)]),
        "TRITON_CACHE_DIR": str(folder / "cache"),
    }
    made = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.kernels.gpu.launcher.played", library],
        env=environment, cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    lines = [json.loads(line) for line in made.stdout.splitlines()]
    return {(line["problem"], line["time"]): line for line in lines}


@pytest.mark.parametrize("time", ["first", "again", "not aligned"])
@pytest.mark.parametrize(
    "problem", ["rows", "few_keys", "many_keys", "decoding", "bounded_decoding"]
)
def test_kernels_are_launched_with_what_they_were_compiled_for(solved, problem, time) -> None:
    line = solved[problem, time]
    assert line["off"] <= TOLERANCE.get(problem, 2e-3)
    assert line["launches"] == solved[problem, "first"]["launches"]
    if time == "again":
        assert line["asked"] == 0
    else:
        assert line["asked"] > 0
