"""The picture of results: one panel for each shape, dtype and pass."""

import json

import pytest

from parsimax.bench import plot
from parsimax.cli import main


def test_the_picture_lies_beside_the_results(gpu_report, tmp_path, capsys):
    source = tmp_path / "rows-nvidia-h200.json"
    source.write_text(json.dumps(gpu_report), encoding="utf-8")
    assert main(["bench", "plot", str(source)]) == 0
    picture = tmp_path / "rows-nvidia-h200.svg"
    assert str(picture) in capsys.readouterr().out
    svg = picture.read_text(encoding="utf-8")
    for words in ("NVIDIA H200", "torch.softmax", "memory floor", "adasplash", "64 × 4,096"):
        assert words in svg


@pytest.mark.parametrize("ending", [".png", ".svg"])
def test_its_ending_says_which_kind(ending, gpu_report, tmp_path):
    source = tmp_path / "rows.json"
    source.write_text(json.dumps(gpu_report), encoding="utf-8")
    picture = plot.write(source, tmp_path / "new" / f"picture{ending}")
    assert picture.stat().st_size > 1000


def test_panels_alphas_and_limits(gpu_report):
    figure = plot.draw(gpu_report)
    assert len(figure.axes) == 4  # two shapes, one dtype, forward and with backward
    axes = figure.axes[-1]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1.5", "2", "one a\nrow"]
    assert axes.get_yscale() == "log"
    low, high = axes.get_ylim()
    assert low < 1 < 90 < high


def test_what_cannot_be_drawn_is_said_in_one_line(tmp_path, capsys):
    source = tmp_path / "loss.json"
    source.write_text('{"rows": [{"forward": null}]}', encoding="utf-8")
    assert main(["bench", "plot", str(source)]) == 1
    assert "expected results of `bench rows` on a GPU" in capsys.readouterr().err
    source.write_text("nothing", encoding="utf-8")
    assert main(["bench", "plot", str(source)]) == 1
    assert "expected results as JSON" in capsys.readouterr().err
    assert main(["bench", "plot", str(tmp_path / "missing.json")]) == 1
    assert "missing.json" in capsys.readouterr().err


@pytest.fixture
def attention_report():
    """Two lengths, causal and not; one result of ours and one of a peer were refused."""
    rows = []
    for tokens in (4096, 65536):
        for causal in (False, True):
            for empty, ratio in ((0.0, 2.1), (0.5, 1.2), (0.9, 0.45)):
                for name, times in (
                    ("torch: softmax, cuDNN", 1 / ratio),
                    ("parsimax: alpha 1.5", 1.0),
                    ("parsimax: one learned alpha a head", 1.4 if causal else None),
                    ("adasplash v1", 8.0),
                ):
                    rows.append(
                        {
                            "tokens": tokens, "batch": 65536 // tokens, "size": 64,
                            "causal": causal, "empty": empty, "dtype": "bfloat16",
                            "contender": name, "ms": 3.0,
                            "refused": None if times else "gradient of q is off by 2e-02",
                            "ratio": times and ratio * times,
                        }
                    )  # fmt: skip
    return {
        "date": "2026-11-15",
        "gpu": "NVIDIA H200",
        "torch": "2.11.0",
        "heads": 16,
        "rows": rows,
    }


def test_attention_against_the_share_of_empty_blocks(attention_report, tmp_path):
    source = tmp_path / "attention-nvidia-h200.json"
    source.write_text(json.dumps(attention_report), encoding="utf-8")
    assert main(["bench", "plot", str(source)]) == 0
    svg = (tmp_path / "attention-nvidia-h200.svg").read_text(encoding="utf-8")
    for words in ("65,536 tokens", "heads of 64, causal", "adasplash v1", "wrong or failed", "90%"):
        assert words in svg
    assert "adasplash v2" not in svg  # takes no part here
    axes = plot.draw(attention_report).axes
    assert len(axes) == 4
    lines = {tuple(line.get_ydata()) for line in axes[0].get_lines()}
    assert (2.1, 1.2, 0.45) in lines
    assert axes[0].get_ylim()[1] > 8 * 2.1


def test_what_a_run_that_was_cut_short_has_not_measured(attention_report):
    rows = attention_report["rows"]
    kept = [row for row in rows if not (row["causal"] and row["tokens"] == 65536)]
    axes = plot.draw(attention_report | {"rows": kept}).axes
    assert [text.get_text() for text in axes[3].texts] == ["not measured"]
    for panel in axes[2:]:
        assert [label.get_text() for label in panel.get_xticklabels()] == ["0%", "50%", "90%"]
    assert not axes[2].texts
