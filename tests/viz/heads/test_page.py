"""The page of heads: fetches nothing, says what was measured, draws every figure."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import torch
from tests.viz.page import Page

import parsimax as px
from parsimax._core.records import AttentionRecord
from parsimax.analysis import heads
from parsimax.viz.heads import heads_page, write_page
from parsimax.viz.heads.alphas import alphas_figure, trajectories_figure
from parsimax.viz.heads.density import densities_figure, layers_figure
from parsimax.viz.heads.diversity import diversity_figure
from parsimax.viz.heads.titles import layer_colors

TOKENS = [
    ("▁what", "▁is", "▁a", "▁bal", "loon", "▁ki", "te", "?"),
    ("▁say", "▁what", "▁a", "▁bal", "loon", "▁ki", "te", "."),
    ("▁<b>", "▁&", "▁bal", "loon", "▁ki", "te", "."),
]


def previous(size: int) -> torch.Tensor:
    weights = torch.eye(size).roll(-1, 1)
    weights[0] = torch.eye(size)[0]
    weights[1:] = torch.eye(size)[:-1]
    return weights


def made(seed: int, mapping: str) -> list[AttentionRecord]:
    torch.manual_seed(seed)
    records = []
    for tokens in TOKENS:
        size = len(tokens)
        weights = px.mappings.parse(mapping)(2 * torch.randn(2, 3, size, size))
        weights[0, 0] = previous(size)
        records.append(AttentionRecord(tokens, weights, "encoder"))
        across = px.mappings.parse(mapping)(torch.randn(2, 3, 4, size))
        records.append(AttentionRecord(tokens, across, "context", tuple("wxyz")))
    return records


def report(name: str, seed: int = 0, mapping: str = "entmax(alpha=1.5)") -> heads.HeadReport:
    lines = [{"step": s, "alphas": {"encoder": [[1.5, 1.6, 1.2], [1.1, s / 50, 2.0]]}}
             for s in (60, 80)]  # fmt: skip
    way = heads.trajectories(lines)
    return heads.analyse(
        made(seed, mapping), name=name, alphas={"encoder": way["encoder"].final}, trajectories=way
    )


@pytest.fixture(scope="module")
def reports() -> list[heads.HeadReport]:
    return [report("ours & <theirs>"), report("second", 1)]


@pytest.fixture(scope="module")
def html(reports: list[heads.HeadReport]) -> str:
    records = [made(0, "sparsemax"), made(1, "sparsemax")]
    return heads_page(reports, heads.agreement(records), data="a test")


def test_nothing_is_fetched(html: str) -> None:
    page = Page(html)
    assert not re.search(r"https?:|//[a-z]", html)
    assert not re.search(r"url\((?!#)", html)
    assert page.values("src") == []
    assert not set(page.tags) & {"script", "link", "iframe", "img"}
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert "$" not in re.sub(r"<svg.*?</svg>", "", html, flags=re.DOTALL)


def test_names_and_tokens_are_text_not_markup(html: str) -> None:
    assert "ours &amp; &lt;theirs&gt;" in html
    assert "<theirs>" not in html
    assert "<b>~" not in html


def test_it_says_what_was_found(html: str) -> None:
    text = " ".join(Page(html).text)
    assert "3 sentences of a test" in text
    assert "1 head looks at one fixed offset: encoder, layer 1, head 1 at -1 (100 %)" in text
    assert "layer 1, head 1 (α 1.50): 100 %" in text
    assert "Do other seeds learn the same heads?" in text
    assert "Every query of every head had some weight" in text
    for number in (2, 3, 4, 5, 6, 7, 10):
        assert f"Figure {number}" in text


def test_grids_outline_exactly_the_nonzeros(reports: list[heads.HeadReport], html: str) -> None:
    grids = re.findall(r'<svg[^>]*class="(?:positional|merging|asking|contrast)-.*?</svg>', html)
    examples = [each for report in reports for each in report.examples]
    assert len(grids) == len(examples) == 16
    outlined = sorted(
        sum(box.get("class") == "nonzero" for box in ET.fromstring(grid).iter("rect"))
        for grid in grids
    )
    assert outlined == sorted(int((each.weights > 0).sum()) for each in examples)


def test_one_model_that_learned_nothing() -> None:
    plain = heads.analyse(made(0, "softmax"), name="softmax")
    page = heads_page([plain])
    assert "No model here learned its α" in page
    assert "Do other seeds" not in page


def test_models_without_self_attention_or_with_one_head(tmp_path: Path) -> None:
    one = AttentionRecord(("a", "b"), torch.full((1, 1, 2, 2), 0.5), "context", ("x", "y"))
    path = write_page(tmp_path / "new" / "heads.html", [heads.analyse([one], name="rnn")])
    text = path.read_text(encoding="utf-8")
    assert "No model here has self-attention" in text
    dead = AttentionRecord(("a", "b"), torch.zeros(1, 2, 2, 2), "encoder")
    assert "left out: dead, encoder: 4" in heads_page([heads.analyse([dead], name="dead")])


def test_every_head_has_its_line(reports: list[heads.HeadReport]) -> None:
    way = reports[0].trajectories
    picture = ET.fromstring(trajectories_figure(way))
    lines = [each.get("id") for each in picture.iter() if "line2d" in (each.get("id") or "")]
    assert len(lines) >= 6
    assert "α of every head" in picture.get("aria-label", "")
    alphas = {"encoder": way["encoder"].final}
    for svg in (
        alphas_figure(alphas),
        densities_figure(reports),
        layers_figure(reports[:1]),
        diversity_figure(reports),
    ):
        assert "var(--series-" in ET.tostring(ET.fromstring(svg), encoding="unicode")


@pytest.mark.parametrize(
    "draw", [densities_figure, layers_figure, diversity_figure, heads_page]
)  # fmt: skip
def test_nothing_cannot_be_drawn(draw: object) -> None:
    assert callable(draw)
    with pytest.raises(ValueError, match="reports: expected at least one, got none"):
        draw([])


def test_no_alphas_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="expected at least one module"):
        trajectories_figure({})
    with pytest.raises(ValueError, match="expected at least one module"):
        alphas_figure({})


def test_layers_have_different_colours() -> None:
    assert len(set(layer_colors(6))) == 6
    assert len(set(layer_colors(3))) == 3
    assert len(layer_colors(24)) == 24
