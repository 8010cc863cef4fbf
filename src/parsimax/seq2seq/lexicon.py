"""English verbs and their forms, from the lexicon inside the package ``lemminflect`` (MIT).

The rows are those of an inflection table, ``lemma TAB form TAB TAG;TAG``, with UniMorph's tags, in
three files that share no lemma: what is measured on ``english-dev`` and ``english-test`` is said of
verbs that the model has never seen in any form. Related verbs are not kept together: ``withdraw``
may be learned from and ``draw`` asked for, which is why a model can hesitate between *drawn* and
*drawed*. What is left out, and why:

- Lemmas and forms that are not plain lower-case letters (``E-mail``, ``over-hang``, ``O.K.'d``).
- A cell with several spellings in use (*traveled*, *travelled*), because a model that gives the
  other one is not wrong. If the past has several (*dreamed*, *dreamt*), then the participle goes,
  too: the lexicon lists only its irregular spelling there.
- The few lemmas that the lexicon has wrong (:data:`MISTAKEN`).
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

LANGUAGE = "english"

PAST, PARTICIPLE, GERUND, THIRD = "V;PST", "V;V.PTCP;PST", "V;V.PTCP;PRS", "V;3;SG;PRS"
TAGS = (PAST, PARTICIPLE, GERUND, THIRD)  # in the lexicon's order
TAG_NAMES = {
    PAST: "past",
    PARTICIPLE: "past participle",
    GERUND: "present participle",
    THIRD: "third person",
}

HELD_OUT = (
    "draw",
)  # in english-test whatever the seed: the verb of Figure 1, Peters et al. (2019)
LEARNED = ("go", "do", "have")

# Read by eye: typos, nouns, and forms of another verb.
MISTAKEN = frozenset(
    {
        "bestride", "bide", "consisted", "enrol", "hiccough", "joyride", "lightning",
        "moire", "outbreak", "outgo", "quid", "tar", "torpedo", "typeset", "wrought",
    }
)  # fmt: skip
_CORRECTED = {"run": ("ran", "run", "running", "runs")}  # the lexicon's participle is "ran"

_PLAIN = re.compile(r"[a-z]{2,14}")
_RESOURCE = "resources/infl_lu.csv.gz"  # lemma,category,form/form,...: an empty cell repeats


@dataclass(frozen=True)
class Row:
    """One cell of a verb's table."""

    lemma: str
    form: str
    tags: str

    def __str__(self) -> str:
        return f"{self.lemma}\t{self.form}\t{self.tags}"


@dataclass(frozen=True)
class Lexicon:
    """Files of inflection rows, and how many rows and lemmas each has."""

    train: Path
    dev: Path
    test: Path
    rows: dict[str, int]
    lemmas: dict[str, int]


def verbs() -> Iterator[Row]:
    """All rows, lemma by lemma in alphabetical order.

    Raises:
        ModuleNotFoundError: ``lemminflect`` is not installed.
    """
    for lemma, cells in sorted(_entries()):
        past_is_certain = len(_spellings(cells[0])) == 1
        for tags, cell in zip(TAGS, cells, strict=True):
            spellings = _spellings(cell)
            if len(spellings) == 1 and (past_is_certain or tags != PARTICIPLE):
                yield Row(lemma, spellings[0], tags)


def _entries() -> Iterator[tuple[str, tuple[str, ...]]]:
    with gzip.open(_lexicon_path(), "rt", encoding="utf-8") as lines:
        for line in lines:
            lemma, category, *cells = line.rstrip("\n").split(",")
            if category != "verb" or not _PLAIN.fullmatch(lemma) or lemma in MISTAKEN:
                continue
            past, participle, gerund, third = cells
            yield lemma, _CORRECTED.get(lemma, (past, participle or past, gerund, third))


def _lexicon_path() -> Path:
    spec = find_spec("lemminflect")  # found, not imported: its code is not needed
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            "the English lexicon is in lemminflect; pip install 'parsimax[train]'",
            name="lemminflect",
        )
    path = Path(spec.submodule_search_locations[0]) / _RESOURCE
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: this version of lemminflect keeps its lexicon elsewhere; "
            "pip install 'lemminflect>=0.2.3,<0.3'"
        )
    return path


def _spellings(cell: str) -> list[str]:
    """The different plain spellings in a cell."""
    return list(dict.fromkeys(s for s in cell.split("/") if _PLAIN.fullmatch(s)))


def side_of(lemma: str, *, dev: float = 0.04, test: float = 0.08, seed: int = 0) -> str:
    """Where a lemma belongs: ``train``, ``dev`` or ``test``.

    It depends on the lemma and the seed alone, so a lemma that comes or goes moves no other.

    >>> side_of("draw"), side_of("go")
    ('test', 'train')
    """
    if lemma in HELD_OUT:
        return "test"
    if lemma in LEARNED:
        return "train"
    draw = int.from_bytes(sha256(f"{seed}:{lemma}".encode()).digest()[:8], "big") / 2**64
    return "test" if draw < test else "dev" if draw < test + dev else "train"


def build(folder: str | Path, *, dev: float = 0.04, test: float = 0.08, seed: int = 0) -> Lexicon:
    """Write ``english-train``, ``english-dev`` and ``english-test`` into a folder.

    Args:
        folder: made if need be; files of these names are replaced.
        dev: share of the lemmas to choose a model by.
        test: share of the lemmas to measure it on.
        seed: which lemmas; the same seed gives the same files.
    """
    for name, value in (("dev", dev), ("test", test)):
        if not 0 < value < 0.5:
            raise ValueError(f"{name}: expected a share between 0 and 0.5, got {value}")
    lines: dict[str, list[str]] = {"train": [], "dev": [], "test": []}
    lemmas: dict[str, set[str]] = {side: set() for side in lines}
    for row in verbs():
        side = side_of(row.lemma, dev=dev, test=test, seed=seed)
        lines[side].append(str(row))
        lemmas[side].add(row.lemma)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    paths = {side: target / f"{LANGUAGE}-{side}" for side in lines}
    for side, path in paths.items():
        path.write_text("\n".join(lines[side]) + "\n", encoding="utf-8")
    return Lexicon(
        **paths,
        rows={side: len(found) for side, found in lines.items()},
        lemmas={side: len(found) for side, found in lemmas.items()},
    )
