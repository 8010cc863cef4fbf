"""An evaluation as a table in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from parsimax.seq2seq.evaluation import Evaluation

_MOST_GROUPS = 12


def table(evaluation: Evaluation, *, title: str = "", all_groups: bool = False) -> Table:
    """Every number, with what it means.

    Args:
        evaluation: the numbers.
        title: over the table.
        all_groups: also accuracy of each group, however many there are.
    """
    made = Table(title=title or None, title_justify="left", show_edge=False, pad_edge=False)
    made.add_column("measure")
    made.add_column("value", justify="right")
    made.add_column("meaning", style="dim", overflow="fold")
    for name, value, meaning in rows(evaluation, all_groups=all_groups):
        made.add_row(name, value, meaning)
    return made


def rows(evaluation: Evaluation, *, all_groups: bool = False) -> list[tuple[str, str, str]]:
    """Name, value and meaning of each number, in the order of a reader's interest."""
    e, forced, proved = evaluation, evaluation.forced, evaluation.certificates
    groups = e.accuracy.groups
    found = [("sentences", f"{e.sentences:,}", _searched(e))]
    if len(groups) > 1:
        found += [
            ("accuracy, macro", _percent(e.accuracy.macro), f"mean over {len(groups)} groups"),
            ("accuracy, micro", _percent(e.accuracy.micro), "outputs equal to the reference"),
        ]
        if all_groups or len(groups) <= _MOST_GROUPS:
            found += [
                (f"  {name}", _percent(group.accuracy), f"{group.right} of {group.sentences}")
                for name, group in groups.items()
            ]
    else:
        found += [("accuracy", _percent(e.accuracy.micro), "outputs equal to the reference")]
    if e.unfinished:
        found += [("unfinished", f"{e.unfinished:,}", "cut by the length limit, so not right")]
    if e.bleu is not None:
        found += [("BLEU", f"{e.bleu.score:.2f}", e.bleu.signature)]
    found += [
        ("chrF", f"{e.chrf.score:.2f}", e.chrf.signature),
        ("single hypothesis", _percent(proved.single), "all probability is on one sequence"),
        ("exhaustive", _percent(proved.exhaustive), "every possible sequence was found"),
        ("optimal", _percent(proved.optimal), "the output is proved the most probable"),
    ]
    if proved.empty:
        found += [("no output", _percent(proved.empty), "the model lets no sequence end")]
    if forced.attended is not None:
        found += [
            (
                "source positions attended",
                f"{forced.attended:.2f}",
                f"of {forced.attendable:.2f}, a mean over layers and heads",
            )
        ]
    found += [
        ("output symbols possible", f"{forced.support:.2f}", f"of {forced.vocabulary:,}"),
        (
            "gold symbols ruled out",
            _percent(forced.zero_gold),
            f"probability exactly 0; of {forced.tokens:,} symbols",
        ),
        (
            "ε-perplexity",
            f"{forced.epsilon_perplexity:.4g}",
            f"of the references, ε = {forced.epsilon:g}",
        ),
        ("sparsemax score", f"{forced.sparsemax_score:.4f}", "of the references, 1 is best"),
        ("symbol accuracy", _percent(forced.accuracy), "given the right symbols before"),
    ]
    if forced.loss is not None:
        found += [("loss", f"{forced.loss:.4f}", "a symbol")]
    return found


def _searched(evaluation: Evaluation) -> str:
    text = "greedy search" if evaluation.beam == 1 else f"beam {evaluation.beam}"
    if evaluation.length_penalty:
        text += f", length penalty {evaluation.length_penalty:g}"
    return text if evaluation.models == 1 else f"{text}, ensemble of {evaluation.models}"


def _percent(share: float | None) -> str:
    """A share as people read it; only all of them are 100 %, and only none are 0 %.

    >>> _percent(0.83), _percent(1.0), _percent(0.9999), _percent(0.0001), _percent(None)
    ('83.0 %', '100.0 %', '>99.9 %', '<0.1 %', 'not claimed')
    """
    if share is None:
        return "not claimed"
    if 0.9995 <= share < 1:
        return ">99.9 %"
    return "<0.1 %" if 0 < share < 0.0005 else f"{100 * share:.1f} %"
