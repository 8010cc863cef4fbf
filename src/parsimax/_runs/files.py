"""Finding, opening and reading text files: plain or compressed, line by line.

A line ends with LF or CRLF and with nothing else, so that line numbers are those of an editor even
where a text holds other separators of Unicode. A byte order mark is no part of the first line. The
text itself is left as it is: it is neither stripped nor normalised.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import hashlib
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from parsimax._core.validation import nearest

from .bad_rows import BadRow, DataError

_BOM = b"\xef\xbb\xbf"
_COMPRESSED: dict[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"\xfd7zXZ\x00": lzma.open,
    b"BZh": bz2.open,
}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def find(paths: Iterable[str | Path]) -> list[Path]:
    """The files that files, folders and globs name, each once, in the order of their names.

    Folders stand for the files in them whose name does not begin with a dot.
    """
    found: dict[Path, None] = {}
    for path in paths:
        found.update(dict.fromkeys(_expand(path)))
    if not found:
        raise ValueError("paths must name at least one file, folder or glob, got none")
    return list(found)


def _expand(path: str | Path) -> list[Path]:
    whole = Path(path).expanduser()
    if whole.is_dir():
        files = sorted(p for p in whole.iterdir() if p.is_file() and not p.name.startswith("."))
        if not files:
            raise FileNotFoundError(f"folder {str(path)!r} holds no files")
        return files
    if whole.exists():
        return [whole]
    if glob.has_magic(str(path)):
        # not Path.glob, which takes no absolute patterns
        names = glob.glob(str(whole), recursive=True)  # noqa: PTH207
        matches = sorted(p for p in map(Path, names) if p.is_file())
        if not matches:
            raise FileNotFoundError(f"no file matches {str(path)!r}{_missing_folder(whole)}")
        return matches
    raise missing(path)


def missing(path: str | Path) -> FileNotFoundError:
    """An error for a file that is not there, with the most similar name beside it."""
    whole = Path(path).expanduser()
    beside = [p.name for p in whole.parent.iterdir()] if whole.parent.is_dir() else []
    close = nearest(whole.name, beside)
    return FileNotFoundError(f"there is no file {str(path)!r}{_missing_folder(whole)}{close}")


def _missing_folder(path: Path) -> str:
    """Which folder on the way is not there, if one is."""
    for parent in reversed(path.parents):
        if glob.has_magic(str(parent)):
            return ""
        if not parent.is_dir():
            return f": there is no folder {str(parent)!r}"
    return ""


def check_file(path: str | Path) -> Path:
    """A file that is there."""
    whole = Path(path).expanduser()
    if whole.is_dir():
        raise IsADirectoryError(f"{str(path)!r} must be a file, and it is a folder")
    if not whole.exists():
        raise missing(path)
    return whole


def _open(path: Path) -> IO[bytes]:
    """The bytes of a file; whether it is compressed is read from its first bytes."""
    with path.open("rb") as file:
        begin = file.read(6)
    opened: IO[bytes]
    for magic, opener in _COMPRESSED.items():
        if begin.startswith(magic):
            opened = opener(path)
            return opened
    return path.open("rb", buffering=1 << 18)


def read_lines(path: str | Path) -> Iterator[tuple[int, str | BadRow]]:
    """Numbered lines of a file, from 1; one that is not UTF-8 comes as a :class:`BadRow`."""
    path = check_file(path)
    with _open(path) as file:
        number = 0
        try:
            for number, line in enumerate(file, 1):
                if number == 1 and line.startswith(_BOM):
                    line = line[len(_BOM) :]
                    if not line:  # a file of nothing but the mark
                        return
                line = line.removesuffix(b"\n").removesuffix(b"\r")
                try:
                    yield number, line.decode()
                except UnicodeDecodeError as error:
                    yield number, BadRow(str(path), number, _undecodable(error, number))
        except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(
                f"{path}: the compressed file is damaged or incomplete after line {number}: {error}"
            ) from error


def _undecodable(error: UnicodeDecodeError, number: int) -> str:
    line = error.object
    if number == 1 and line.startswith(_UTF16):
        return "invalid UTF-8: the file seems to be UTF-16; convert it to UTF-8"
    return f"invalid UTF-8: byte 0x{line[error.start]:02x} at byte {error.start + 1} of the line"


def read_text(path: str | Path) -> Iterator[str]:
    """The lines of a file of which every one must be UTF-8."""
    for _, line in read_lines(path):
        if isinstance(line, BadRow):
            raise DataError(str(line), [line], 1)
        yield line


def fingerprint(paths: Iterable[Path]) -> str:
    """A hash of the names and contents of files, not of the folders they are in."""
    whole = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        whole.update(f"{path.name}\0{digest}\n".encode())
    return whole.hexdigest()
