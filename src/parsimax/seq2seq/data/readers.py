r"""From files to examples: inflection tables, parallel text and tables of two columns.

==========  ===============================================  ==============================
format      a row                                            paths
==========  ===============================================  ==============================
inflection  ``lemma TAB form TAB TAG;TAG``                   files, folders, globs
tsv         ``source TAB target``                            files, folders, globs
parallel    a line of each of two files                      [source file, target file]
==========  ===============================================  ==============================

Every file may be compressed (gzip, xz, bzip2). The language of an inflection table is its file's
name before ``-train``, ``-dev`` or ``-test``, or else the name without its endings.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from parsimax._core.validation import check_choice
from parsimax._runs.bad_rows import BadRow, BadRows, DataError
from parsimax._runs.files import check_file, find, fingerprint, read_lines

FORMATS = ("inflection", "parallel", "tsv")
ALL = "all"  # the group of examples that belong to no language
_SPLIT = re.compile(
    r"(?:(?P<name>.+?)[-_.])?(?:train|dev|valid|validation|val|test)(?=[-_.\d]|$)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Example:
    """A source and its target as text.

    Args:
        source: the text, of an inflection the lemma.
        target: None where it is not known.
        tags: of an inflection, such as ``("V", "PST")``.
        group: what results are averaged over, of an inflection its language.
        path: the file it came from, and ``line`` in it, from 1.
    """

    source: str
    target: str | None = None
    tags: tuple[str, ...] = ()
    group: str = ALL
    path: str = ""
    line: int = 0


class Reader:
    """Examples of some files; it can be gone through again and again, one row at a time in memory.

    At the end of a pass bad rows raise one :class:`DataError` that names them by file and line,
    or with ``skip_bad`` are left out: ``skipped`` counts those of the last pass, and ``bad`` has
    the first of them.
    """

    def __init__(self, format: str, paths: Sequence[Path], skip_bad: bool = False) -> None:
        self.format = format
        self.paths = tuple(paths)
        self.skip_bad = skip_bad
        self.skipped = 0
        self.bad: tuple[BadRow, ...] = ()

    def __iter__(self) -> Iterator[Example]:
        bad = BadRows()
        good = 0
        for row in self._rows():
            if isinstance(row, BadRow):
                bad.add(row)
            else:
                good += 1
                yield row
        self.skipped, self.bad = bad.count, tuple(bad.first)
        if bad.count and not self.skip_bad:
            raise bad.error()
        if not good:
            names = ", ".join(map(str, self.paths[:3])) + (", ..." if len(self.paths) > 3 else "")
            left_out = f"; {bad.count:,} bad rows were skipped" if bad.count else ""
            raise DataError(f"there are no examples in {names}{left_out}", bad.first, bad.count)

    def _rows(self) -> Iterator[Example | BadRow]:
        if self.format == "parallel":
            return _parallel(*self.paths)
        return _tables(self.paths, self.format)

    @property
    def fingerprint(self) -> str:
        """A hash of what is read and how: of the files' names and contents, not where they are."""
        how = f"{self.format}\n{self.skip_bad}\n{fingerprint(self.paths)}"
        return hashlib.sha256(how.encode()).hexdigest()


def read(
    format: str, paths: str | Path | Iterable[str | Path], *, skip_bad: bool = False
) -> Reader:
    """Examples of files in a format; files that are not there raise at once.

    Args:
        format: ``inflection``, ``parallel`` or ``tsv``.
        paths: of ``parallel`` the source's and the target's file; else files, folders and globs.
        skip_bad: leave out and count rows that cannot be used, instead of stopping.
    """
    check_choice(format, "format", FORMATS)
    listed = [paths] if isinstance(paths, str | Path) else list(paths)
    if format == "parallel":
        if len(listed) != 2:
            raise ValueError(
                "paths of format 'parallel' must be two files, the source's and the target's, "
                f"got {len(listed)}: {', '.join(map(str, listed)) or 'none'}"
            )
        return Reader(format, [check_file(path) for path in listed], skip_bad)
    files = find(listed)
    if format == "inflection":
        _check_one_split(listed)
    return Reader(format, files, skip_bad)


def language_of(path: str | Path) -> str:
    """The language that an inflection table's file name says.

    >>> language_of("tables/middle-french-train-medium"), language_of("english-dev.tsv.gz")
    ('middle-french', 'english')
    >>> language_of("verbs.txt"), language_of("train.tsv")
    ('verbs', 'all')
    """
    name = Path(path).name
    split = _SPLIT.match(name)
    if split:
        return split["name"] or ALL
    return name.split(".")[0] or name


def _check_one_split(paths: Iterable[str | Path]) -> None:
    """A folder that mixes, say, train and test of a language is hardly meant as a whole."""
    for path in paths:
        if not Path(path).expanduser().is_dir():
            continue
        files = defaultdict(list)
        for file in find([path]):
            files[language_of(file)].append(file.name)
        language, several = max(files.items(), key=lambda item: len(item[1]))
        if len(several) > 1:
            raise ValueError(
                f"folder {str(path)!r} holds {len(several)} files of {language!r}: "
                f"{', '.join(several[:6])}; say which to read with a glob, such as "
                f"{str(Path(path) / ('*' + several[0].removeprefix(language)))!r}"
            )


def _tables(paths: Iterable[Path], format: str) -> Iterator[Example | BadRow]:
    parse = _inflection if format == "inflection" else _pair
    for path in paths:
        name = str(path)
        group = language_of(path) if format == "inflection" else ALL
        for number, line in read_lines(path):
            yield line if isinstance(line, BadRow) else parse(line, group, name, number)


def _inflection(line: str, group: str, path: str, number: int) -> Example | BadRow:
    columns = line.split("\t")
    if len(columns) != 3:
        return BadRow(path, number, _wrong_columns(columns, "lemma TAB form TAB TAG;TAG"))
    lemma, form, features = columns
    tags = split_tags(features)
    empty = _empty(("lemma", lemma), ("form", form), ("tags", "".join(tags)))
    return BadRow(path, number, empty) if empty else Example(lemma, form, tags, group, path, number)


def split_tags(text: str) -> tuple[str, ...]:
    """``V;PST`` as tags, without spaces around them."""
    return tuple(tag for part in text.split(";") if (tag := part.strip()))


def _pair(line: str, group: str, path: str, number: int) -> Example | BadRow:
    columns = line.split("\t")
    if len(columns) != 2:
        return BadRow(path, number, _wrong_columns(columns, "source TAB target"))
    source, target = columns
    empty = _empty(("source", source), ("target", target))
    return (
        BadRow(path, number, empty) if empty else Example(source, target, (), group, path, number)
    )


def _wrong_columns(columns: list[str], expected: str) -> str:
    if columns == [""]:
        return f"empty line, expected {expected}"
    count = "1 column" if len(columns) == 1 else f"{len(columns)} columns"
    return f"{count}, expected {expected.count('TAB') + 1}: {expected}"


def _empty(*sides: tuple[str, str]) -> str:
    """What is wrong if a side has nothing but white space."""
    return " and ".join(f"empty {name}" for name, text in sides if not text.strip())


def _parallel(source: Path, target: Path) -> Iterator[Example | BadRow]:
    names = str(source), str(target)
    lines = [0, 0]
    for left, right in zip_longest(read_lines(source), read_lines(target)):
        for side, line in enumerate((left, right)):
            if line is not None:
                lines[side] = line[0]
        if left is None or right is None:
            continue  # how many lines there are is known at the end
        number, texts = left[0], (left[1], right[1])
        whys = [text for text in texts if isinstance(text, BadRow)]
        if whys:
            yield whys[0]
            continue
        a, b = (str(text) for text in texts)
        if empty := _empty(("source", a), ("target", b)):
            yield BadRow(names[0] if not a.strip() else names[1], number, empty)
        else:
            yield Example(a, b, (), ALL, names[0], number)
    if lines[0] != lines[1]:
        first, last = min(lines) + 1, max(lines)
        yield BadRow(
            names[int(lines[1] > lines[0])],
            first,
            f"no line beside it: {names[0]} has {lines[0]:,} lines and {names[1]} has {lines[1]:,}",
            rows=last - first + 1,
        )
