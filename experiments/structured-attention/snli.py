"""Textual entailment with structured alignments, and Figure 2 of Peters, Niculae & Martins (2018).

    python experiments/structured-attention/snli.py --data DATA/snli --out out/snli

Trains one model for each attention on ``dev.jsonl.xz`` (the premises of its last tenth choose the
epoch), tests it once on ``test.jsonl.xz``, and draws the alignments of chosen test pairs. Written
are snli.json (settings, versions, times, accuracies) and figure-2.html.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from entailment import ATTENTIONS, Entailment, Sizes
from pairs import LABELS, Batch, Pair, batches, make_batch, number_words, read_pairs, split
from torch import nn

from parsimax.bench.results import machine
from parsimax.viz.alignment import alignment_figure
from parsimax.viz.figure_page import write_figure_page


@dataclass(frozen=True)
class Settings:
    """Of a run; the same for every attention."""

    attentions: tuple[str, ...]
    seeds: tuple[int, ...]
    epochs: int
    batch_size: int = 64
    lr: float = 1e-3
    weight_decay: float = 1e-5
    least: int = 2  # occurrences of a word that gets a vector
    held_out: float = 0.1
    sizes: Sizes = field(default_factory=Sizes)


@dataclass(frozen=True)
class Scores:
    """Of a model on some pairs."""

    accuracy: float
    structures: float  # with probability, a pair, on average
    nonzero: float  # share of weights above zero
    converged: float  # share of pairs whose gap is within the tolerance


@torch.no_grad()
def evaluate(model: Entailment, data: Sequence[Batch]) -> Scores:
    """Accuracy, and how sparse the alignments are."""
    model.eval()
    right = structures = above = cells = converged = 0
    for batch in data:
        logits, found = model(batch)
        right += int((logits.argmax(-1) == batch.label).sum())
        structures += int((found.probabilities > 0).sum())
        above += int((found.weights > 0).sum())
        cells += int((batch.premise_mask.sum(1) * batch.hypothesis_mask.sum(1)).sum())
        converged += int(found.converged.sum())
    count = sum(len(batch.label) for batch in data)
    return Scores(right / count, structures / count, above / cells, converged / count)


def train(
    attention: str, seed: int, settings: Settings, pairs: Sequence[Pair], words: dict[str, int]
) -> tuple[Entailment, dict[str, Any]]:
    """The model of the best epoch on pairs that were held out, and how it got there."""
    torch.manual_seed(seed)
    shuffle = torch.Generator().manual_seed(seed)
    known, held = split(pairs, settings.held_out)
    unseen = list(batches(held, words, settings.batch_size, None))
    model = Entailment(len(words) + 2, attention, settings.sizes)
    adam = torch.optim.Adam(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
    model(unseen[0])[0].sum().backward()  # kernels are compiled before the clock starts
    best, kept, curve = -1.0, model.state_dict(), []
    began, cpu = time.perf_counter(), time.process_time()
    for epoch in range(1, settings.epochs + 1):
        model.train()
        total = 0.0
        for batch in batches(known, words, settings.batch_size, shuffle):
            loss = nn.functional.cross_entropy(model(batch)[0], batch.label)
            adam.zero_grad()
            loss.backward()
            adam.step()
            total += loss.item() * len(batch.label)
        accuracy = evaluate(model, unseen).accuracy
        curve.append(round(accuracy, 4))
        say(f"{attention:9} seed {seed} epoch {epoch:2}  loss {total / len(known):.3f}  "
            f"held out {accuracy:.3f}  {time.perf_counter() - began:.0f} s")  # fmt: skip
        if accuracy > best:
            best, kept = accuracy, copy.deepcopy(model.state_dict())
    model.load_state_dict(kept)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return model, {
        "held_out": curve,
        "epoch": curve.index(max(curve)) + 1,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),
    }


@torch.no_grad()
def pictures(
    models: dict[str, Entailment], pairs: Sequence[Pair], words: dict[str, int]
) -> list[tuple[str, str]]:
    """Figure 2: the premise beside the rows, the hypothesis over the columns."""
    drawn = []
    for pair in pairs:
        batch = make_batch([pair], words)
        for attention, model in models.items():
            logits, found = model.eval()(batch)
            guess = LABELS[int(logits.argmax())]
            title = f"{attention}: “{' '.join(pair.hypothesis)}”"
            drawn.append(
                (
                    f"{title}; it is {LABELS[pair.label]}, the model says {guess}",
                    alignment_figure(
                        found.weights[0].mT.tolist(),
                        found.structures[0].mT.tolist(),
                        found.probabilities[0].tolist(),
                        pair.premise,
                        pair.hypothesis,
                        title=title,
                    ),
                )
            )
    return drawn


def say(line: str) -> None:
    """To the terminal, at once."""
    print(line, flush=True)  # noqa: T201


def main() -> None:
    """Train, test, write, draw."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with dev and test files")
    parser.add_argument("--out", type=Path, default=Path("out/snli"))
    parser.add_argument("--attention", nargs="+", choices=ATTENTIONS, default=list(ATTENTIONS))
    parser.add_argument("--seed", nargs="+", type=int, default=[1])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--limit", type=int, help="use only so many pairs of each file")
    parser.add_argument(
        "--pair", nargs="*", type=int, default=[99, 97, 354], help="test pairs to draw, from 0"
    )
    options = parser.parse_args()
    for name in ("dev.jsonl.xz", "test.jsonl.xz"):
        if not (options.data / name).is_file():
            parser.error(
                "--data must be a folder with dev.jsonl.xz and test.jsonl.xz: "
                f"there is no {options.data / name}"
            )
    settings = Settings(tuple(options.attention), tuple(options.seed), options.epochs)

    pairs = read_pairs(options.data / "dev.jsonl.xz")[: options.limit]
    unseen = read_pairs(options.data / "test.jsonl.xz")[: options.limit]
    words = number_words(split(pairs, settings.held_out)[0], settings.least)
    tests = list(batches(unseen, words, settings.batch_size, None))
    options.out.mkdir(parents=True, exist_ok=True)
    models, runs = {}, []
    for attention in settings.attentions:
        for seed in settings.seeds:
            model, course = train(attention, seed, settings, pairs, words)
            scores = evaluate(model, tests)
            say(f"{attention:9} seed {seed} test accuracy {scores.accuracy:.4f}")
            runs.append({"attention": attention, "seed": seed, "test": asdict(scores), **course})
            models.setdefault(attention, model)
    result = {
        "settings": asdict(settings),
        "pairs": {"dev": len(pairs), "test": len(unseen), "words": len(words)},
        "machine": {**machine(), "threads": torch.get_num_threads()},
        "runs": runs,
    }
    text = json.dumps(result, indent=1, ensure_ascii=False)
    (options.out / "snli.json").write_text(text + "\n", encoding="utf-8")
    write_figure_page(
        options.out / "figure-2.html",
        pictures(models, [unseen[i] for i in options.pair], words),
        title="parsimax: structured alignments",
        heading="Structured alignments",
        lede="The premise beside the rows, the hypothesis over the columns; weights above zero are "
        "outlined. Beside each alignment stand the whole structures it is a mixture of, with "
        "their probabilities. Softmax has none: every word attends on its own.",
    )
    say(f"wrote {options.out / 'snli.json'} and {options.out / 'figure-2.html'}")


if __name__ == "__main__":
    main()
