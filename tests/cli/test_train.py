"""``parsimax train``: what it prints, where it writes, how mistakes reach the user."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.seq2seq.training.runs import write_config

from parsimax._runs.display import Display
from parsimax.cli import main


def test_train_writes_a_run_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = write_config(tmp_path)
    arguments = ["train", str(config), "--training.max_steps", "2", "--training.keep=2"]
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert "Ended at step 2: training.max_steps = 2 reached." in said.out
    assert "The run is in runs/small." in said.out
    assert "train: 60 examples" in said.err
    assert "validation loss" in said.err
    assert (tmp_path / "runs/small/checkpoints/best.ckpt").exists()
    assert main(arguments) == 1
    assert "holds a run already; go on with it by --resume" in capsys.readouterr().err
    assert main([*arguments, "--training.max_steps", "4", "--resume", "--quiet"]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")
    assert main(["average", "runs/small", "--n", "2"]) == 0
    assert "average.ckpt" in capsys.readouterr().out


def test_show_prints_all_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path)
    assert main(["train", str(config), "--show", "--optimizer.lr", "3e-4"]) == 0
    options = yaml.safe_load(capsys.readouterr().out)
    assert options["optimizer"]["lr"] == 3e-4
    assert options["search"]["beam"] == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.yaml"], "there is no config file missing.yaml"),
        (["{}", "--optimizer.learning_rate", "1"], "did you mean optimizer.lr?"),
        (["{}", "--model.output", "sparsmax"], "did you mean 'sparsemax'?"),
        (["{}", "--data.train", "no_such.tsv"], "no_such.tsv"),
        (["{}", "--resume"], "run the same command without --resume"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    config = write_config(tmp_path)
    assert main(["train", *(a.format(config) for a in arguments)]) != 0
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.startswith("parsimax: ")
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err


def test_help_imports_no_torch() -> None:
    code = (
        "import sys; from parsimax.cli import main; "
        "main(['train', '--help']); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_shows_tokens_a_second() -> None:
    terminal = Terminal()
    display = Display(stream=terminal)
    with display.counting("reading") as count:
        count(1000)
    display.start(total=10, done=2)
    display.step(3, "1,234 tokens/s  loss 0.5000  lr 0.001")
    display.line("validated")
    display.stop()
    shown = terminal.getvalue()
    for part in ("3/10", "1,234 tokens/s", "loss 0.5000", "lr 0.001", "validated"):
        assert part in shown


def test_without_a_terminal_there_are_only_lines() -> None:
    stream = io.StringIO()
    display = Display(stream=stream)
    display.start(total=10, done=0)
    display.step(3, "text")
    display.line("validated")
    display.stop()
    assert stream.getvalue() == "validated\n"
