"""The command line: quick help, friendly errors, and commands that do what they say."""

import resource
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from parsimax import __version__
from parsimax.cli import main
from parsimax.cli.bench import parse_shape


def parsimax(*arguments: str) -> "subprocess.CompletedProcess[str]":
    code = "import sys; from parsimax.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_help_is_quick_and_names_the_commands() -> None:
    seconds = []
    for _ in range(3):  # of the processor, not of the clock: the machine may be busy
        start = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = parsimax("--help")
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime)
    assert done.returncode == 0
    for command in ("demo", "train", "decode", "complete", "support", "evaluate", "bench"):
        assert command in done.stdout
    assert min(seconds) < 1.0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["demo", "--help"],
        ["demo", "family", "--help"],
        ["decode", "--help"],
        ["complete", "--help"],
        ["support", "--help"],
        ["evaluate", "--help"],
        ["score", "--help"],
        ["bench", "rows", "--help"],
        ["bench", "plot", "--help"],
    ],
)
def test_help_imports_no_torch(arguments: list[str]) -> None:
    code = (
        "import sys; from parsimax.cli import main; "
        f"main({arguments!r}); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"parsimax {__version__}"


def test_unknown_command() -> None:
    done = parsimax("demoo")
    assert done.returncode != 0
    assert 'Did you mean "demo"?' in done.stderr
    assert "Traceback" not in done.stderr


def test_unknown_option_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--outt", "x"]) != 0
    assert "Did you mean --out?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "family", "--sentence", "alone"], "sentence: expected 2 to 24 words, got 1"),
        (["demo", "--minutes", "0"], "minutes: expected more than 0, got 0"),
        (["bench", "rows", "--shapes", "10y10"], "shapes: expected ROWSxCOLUMNS"),
        (["bench", "rows", "--repeats", "0"], "repeats: expected at least 1, got 0"),
        (["bench", "loss", "--words", "5", "0"], "words: expected at least 1, got 0"),
    ],
)
def test_user_error_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_gpu_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for what in ("rows", "loss"):
        assert main(["bench", what, "--device", "cuda"]) == 1
        assert "parsimax: device: cuda was asked for" in capsys.readouterr().err


def test_out_that_cannot_be_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for command in (["demo"], ["demo", "family"]):
        assert main([*command, "--out", str(tmp_path / "file")]) == 1
        assert "file" in capsys.readouterr().err


def test_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("parsimax.viz")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["demo", "family"]) == 1
    assert "pip install 'parsimax[viz]'" in capsys.readouterr().err


def test_family_writes_the_page_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "family", "--out", str(tmp_path / "new"), "--sentence", "two words"]) == 0
    page = tmp_path / "new" / "demo.html"
    assert page.is_file()
    assert str(page.resolve()) in capsys.readouterr().out


def _fake_bench(monkeypatch: pytest.MonkeyPatch, name: str) -> dict[str, Any]:
    """A benchmark that only remembers what it was asked for."""
    seen: dict[str, Any] = {}

    def main(todo: dict[str, Any], out: Path | None) -> int:
        seen.update(todo, out=out)
        return 3

    module: Any = SimpleNamespace(plan=dict, main=main)
    monkeypatch.setitem(sys.modules, "parsimax.bench", ModuleType("parsimax.bench"))
    monkeypatch.setitem(sys.modules, f"parsimax.bench.{name}", module)
    return seen


def test_bench_rows_passes_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _fake_bench(monkeypatch, "rows")
    line = (
        "bench rows --device cpu --dtype float64 bfloat16 --shapes 8x4 2x3 --alphas 1.5 2 tensor "
        "--std 1 --repeats 5 --only parsimax ada --minutes 2.5 --out r"
    )
    assert main(line.split()) == 3  # the status of the benchmark is the status of the command
    assert seen == {
        "device": "cpu",
        "dtypes": ("float64", "bfloat16"),
        "shapes": [(8, 4), (2, 3)],
        "alphas": (1.5, 2.0, "tensor"),
        "std": (1.0,),
        "repeats": 5,
        "only": ("parsimax", "ada"),
        "minutes": 2.5,
        "out": Path("r"),
    }


def test_bench_loss_passes_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _fake_bench(monkeypatch, "loss")
    line = "bench loss --dtype bfloat16 --tokens 8 --hidden 4 --words 30 50 --std 1 8 --alphas 2"
    assert main(line.split()) == 3
    assert seen == {
        "device": "auto",
        "dtype": "bfloat16",
        "tokens": 8,
        "hidden": 4,
        "words": (30, 50),
        "std": (1.0, 8.0),
        "alphas": (2.0,),
        "repeats": None,
        "out": None,
    }


@pytest.mark.parametrize("text", ["", "4", "4x", "x4", "4x0", "-4x4", "4x4x4", "axb"])
def test_bad_shapes(text: str) -> None:
    with pytest.raises(ValueError, match="shapes: expected ROWSxCOLUMNS"):
        parse_shape(text)
