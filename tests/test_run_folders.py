"""A folder with somebody's files is nobody's run: it is refused, and nothing in it is touched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.runs import make_run

from parsimax._runs import folder as runs
from parsimax._runs.errors import TrainingError
from parsimax.seq2seq import run
from parsimax.seq2seq.training import train


@pytest.fixture
def folder(tmp_path: Path) -> runs.RunPaths:
    return runs.RunPaths(tmp_path / "run")


def test_an_absent_an_empty_and_an_untrained_folder_are_free(folder: runs.RunPaths) -> None:
    runs.check_free(folder)
    folder.path.mkdir()
    runs.check_free(folder)
    runs.write_facts(folder, "seed: 1\n")
    runs.check_free(folder)


@pytest.mark.parametrize("name", ["config.yaml", "checkpoints/model.pt", "data/train.tsv"])
def test_somebodys_files_are_refused(folder: runs.RunPaths, name: str) -> None:
    file = folder.path / name
    file.parent.mkdir(parents=True)
    file.write_text("mine", "utf-8")
    with pytest.raises(TrainingError, match="nothing in it is touched; give another by --out"):
        runs.check_free(folder)


def test_an_edited_config_and_a_trained_run_are_refused(folder: runs.RunPaths) -> None:
    folder.path.mkdir()
    runs.write_facts(folder, "seed: 1\n")
    folder.config.write_text("seed: 2\n", "utf-8")
    with pytest.raises(TrainingError, match="not as the run wrote it"):
        runs.check_free(folder)
    folder.checkpoints.mkdir()
    folder.checkpoint("last").write_bytes(b"x")
    with pytest.raises(TrainingError, match="--resume"):
        runs.check_free(folder)


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    hold = runs.Hold(tmp_path)
    elsewhere = (
        "import sys; from pathlib import Path; from parsimax._runs.folder import Hold\n"
        "Hold(Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", elsewhere, str(tmp_path)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert f"another process is training in {tmp_path}" in refused.stderr
    hold.release()
    subprocess.run(command, capture_output=True, check=True)


def test_what_is_forked_does_not_keep_the_folder(tmp_path: Path) -> None:
    hold = runs.Hold(tmp_path)
    from_parent, to_child = os.pipe()
    from_child, to_parent = os.pipe()
    child = os.fork()
    if not child:
        os.write(to_parent, b"x")
        os.read(from_parent, 1)  # lives on until the parent has tried
        os._exit(0)
    os.read(from_child, 1)
    hold.release()
    try:
        runs.Hold(tmp_path).release()
    finally:
        os.write(to_child, b"x")
        os.waitpid(child, 0)
        for end in (from_parent, to_child, from_child, to_parent):
            os.close(end)


def test_a_trainer_refuses_a_folder_that_is_held(tmp_path: Path) -> None:
    make_run(tmp_path / "run")  # which has let it go at its end
    hold = runs.Hold(tmp_path / "run")
    with pytest.raises(TrainingError, match="another process"):
        train(run.load(tmp_path / "run").config, tmp_path / "run", resume=True, quiet=True)
    hold.release()
