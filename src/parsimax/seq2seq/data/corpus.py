"""Encoded examples in memory-mapped files: written once, then read without holding them in memory.

A folder holds, for each side, all symbols one after another (``source.ids``, int32) and where
each sentence begins (``source.offsets``, int64, one more than there are sentences); the group of
each sentence (``groups``, int32); and ``corpus.json``. It is written beside its place and renamed,
so that a folder of that name is always whole.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
import socket
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from parsimax._runs.bad_rows import BadRow, BadRows, DataError

from .readers import Example, Reader
from .symbols import EOS, UNK
from .textcodec import TextCodec

_VERSION = 1  # of the files
_FACTS = "corpus.json"
_WAITING = 4096  # examples that wait in memory to be written
_FILES: dict[str, np.dtype[Any]] = {
    "source.ids": np.dtype("<i4"),
    "source.offsets": np.dtype("<i8"),
    "target.ids": np.dtype("<i4"),
    "target.offsets": np.dtype("<i8"),
    "groups": np.dtype("<i4"),
}


@dataclass(frozen=True)
class CorpusFacts:
    """What was counted while a corpus was encoded.

    Args:
        examples: in the corpus.
        skipped: bad rows that were left out.
        too_long: examples that were left out for their length.
        unknown_source: symbols that are not in the vocabulary; ``unknown_target`` likewise.
    """

    examples: int
    skipped: int
    too_long: int
    source_symbols: int
    target_symbols: int
    unknown_source: int
    unknown_target: int


class Corpus:
    """Encoded examples on disk. ``corpus[i]`` is (source, target), the target ending with ``EOS``.

    Lengths of targets count ``EOS``. Sent to another process it opens the same files there.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        saved = _read_facts(self.folder)
        self.fingerprint: str = saved["fingerprint"]
        self.group_names: tuple[str, ...] = tuple(saved["group_names"])
        self.facts = CorpusFacts(**saved["facts"])
        arrays = {name: _map(self.folder / name, saved["sizes"][name]) for name in _FILES}
        self.source_ids: NDArray[np.int32] = arrays["source.ids"]
        self.source_offsets: NDArray[np.int64] = arrays["source.offsets"]
        self.target_ids: NDArray[np.int32] = arrays["target.ids"]
        self.target_offsets: NDArray[np.int64] = arrays["target.offsets"]
        self.groups: NDArray[np.int32] = arrays["groups"]

    @classmethod
    def open(cls, folder: str | Path) -> Corpus:
        """Open what :func:`build` wrote."""
        return cls(folder)

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, index: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index must lie in [0, {len(self) - 1}], got {index}")
        index %= len(self)
        source = self.source_ids[self.source_offsets[index] : self.source_offsets[index + 1]]
        target = self.target_ids[self.target_offsets[index] : self.target_offsets[index + 1]]
        return source, target

    def __iter__(self) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        return (self[index] for index in range(len(self)))

    @property
    def source_lengths(self) -> NDArray[np.int32]:
        """Symbols of each source."""
        return np.diff(self.source_offsets).astype(np.int32)

    @property
    def target_lengths(self) -> NDArray[np.int32]:
        """Symbols of each target, with ``EOS``."""
        return np.diff(self.target_offsets).astype(np.int32)

    def __reduce__(self) -> tuple[type[Corpus], tuple[Path]]:
        return Corpus, (self.folder.absolute(),)  # numpy would send the whole file


def build(
    reader: Reader,
    codec: TextCodec,
    folder: str | Path,
    *,
    max_source_length: int | None = None,
    max_target_length: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Corpus:
    """Encode examples into a folder, or open it if it holds just that.

    Args:
        reader: what to encode; gone through once.
        codec: how.
        folder: where to; what stands there and is not this corpus is replaced.
        max_source_length: sources of more symbols are left out and counted, their language and
            tags counting as well.
        max_target_length: the same for targets, without ``EOS``.
        progress: is told now and then how many examples were encoded.
    """
    folder = Path(folder)
    for name, limit in (("source", max_source_length), ("target", max_target_length)):
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise ValueError(f"max_{name}_length must be at least 1 or None, got {limit!r}")
    if (reader.format == "inflection") != (codec.format == "inflection"):
        raise ValueError(
            f"format of the examples must be that of the codec, {codec.format!r}, "
            f"got {reader.format!r}: an inflection has tags, other sources have none"
        )
    what = [_VERSION, reader.fingerprint, codec.fingerprint, max_source_length, max_target_length]
    fingerprint = hashlib.sha256(json.dumps(what).encode()).hexdigest()
    if _is_there(folder, fingerprint):
        return Corpus(folder)
    _check_replaceable(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder)
    partial = folder.with_name(f".{folder.name}.{socket.gethostname()}.{os.getpid()}.partial")
    partial.mkdir()
    try:
        limits = (max_source_length, max_target_length)
        _write(reader, codec, partial, fingerprint, limits, progress)
        _move(partial, folder, fingerprint)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Corpus(folder)


def _write(
    reader: Reader,
    codec: TextCodec,
    folder: Path,
    fingerprint: str,
    limits: tuple[int | None, int | None],
    progress: Callable[[int], object] | None,
) -> None:
    known = _Known(reader, codec)
    groups: dict[str, int] = {}
    count = too_long = unknown_source = unknown_target = 0
    limit_s, limit_t = (float("inf") if limit is None else limit for limit in limits)
    with ExitStack() as stack:
        files = [
            _Appender(stack.enter_context((folder / name).open("wb")), kind)
            for name, kind in _FILES.items()
        ]
        sources, source_ends, targets, target_ends, members = files
        source_ends.append(0)
        target_ends.append(0)
        for example, source, target in codec.encode(known):
            if len(source) > limit_s or len(target) > limit_t:
                too_long += 1
                continue
            count += 1
            unknown_source += source.count(UNK)
            unknown_target += target.count(UNK)
            sources.extend(source)
            source_ends.append(sources.count)
            targets.extend(target)
            targets.append(EOS)
            target_ends.append(targets.count)
            members.append(groups.setdefault(example.group, len(groups)))
            if count % _WAITING == 0:
                for file in files:
                    file.flush()
                if progress:
                    progress(count)
        for file in files:
            file.close()
    if not count:
        raise DataError(
            f"no examples are left: {too_long:,} are longer than max_source_length={limits[0]} or "
            f"max_target_length={limits[1]}, and {known.skipped:,} were skipped"
        )
    facts = CorpusFacts(
        examples=count,
        skipped=known.skipped,
        too_long=too_long,
        source_symbols=sources.count,
        target_symbols=targets.count,
        unknown_source=unknown_source,
        unknown_target=unknown_target,
    )
    saved = {
        "version": _VERSION,
        "fingerprint": fingerprint,
        "facts": asdict(facts),
        "group_names": list(groups),
        "sizes": {name: file.count for name, file in zip(_FILES, files, strict=True)},
    }
    (folder / _FACTS).write_text(json.dumps(saved, ensure_ascii=False, indent=1) + "\n", "utf-8")


class _Known:
    """The examples of a reader that a codec can encode; the others are bad rows like any."""

    def __init__(self, reader: Reader, codec: TextCodec) -> None:
        self._reader, self._codec = reader, codec
        self.skipped = 0

    def __iter__(self) -> Iterator[Example]:
        bad = BadRows()
        for example in self._reader:
            if why := self._codec.refusal(example):
                bad.add(BadRow(example.path, example.line, why))
            else:
                yield example
        self.skipped = self._reader.skipped + bad.count
        if bad.count and not self._reader.skip_bad:
            raise bad.error()


class _Appender:
    """Numbers that wait in memory until they are flushed to a file."""

    def __init__(self, file: IO[bytes], kind: np.dtype[Any]) -> None:
        self._file, self._kind = file, kind
        self._waiting: array[int] = array("q")
        self.append, self.extend = self._waiting.append, self._waiting.fromlist
        self._written = 0

    @property
    def count(self) -> int:
        return self._written + len(self._waiting)

    def flush(self) -> None:
        self._file.write(np.frombuffer(self._waiting, np.int64).astype(self._kind).tobytes())
        self._written += len(self._waiting)
        del self._waiting[:]

    def close(self) -> None:
        self.flush()
        self._file.flush()
        os.fsync(self._file.fileno())


# --- folders --------------------------------------------------------------------------------------


def _read_facts(folder: Path) -> dict[str, Any]:
    path = folder / _FACTS
    if not path.is_file():
        raise FileNotFoundError(f"{str(folder)!r} holds no encoded corpus: there is no {_FACTS}")
    saved: dict[str, Any] = json.loads(path.read_text("utf-8"))
    if saved.get("version") != _VERSION:
        raise ValueError(
            f"{path}: version {saved.get('version')} of the files is not {_VERSION}, which this "
            "parsimax reads; delete the folder and let it be encoded again"
        )
    return saved


def _map(path: Path, size: int) -> NDArray[Any]:
    kind = _FILES[path.name]
    there = path.stat().st_size if path.exists() else 0
    if there != size * kind.itemsize:
        raise ValueError(
            f"{path} is damaged: it has {there:,} bytes and should have "
            f"{size * kind.itemsize:,}; delete the folder and let it be encoded again"
        )
    if not size:  # nothing cannot be mapped
        return np.empty(0, kind)
    return np.memmap(path, kind, "r", shape=(size,))


def _is_there(folder: Path, fingerprint: str) -> bool:
    """Whether a folder holds this corpus, whole."""
    try:
        return Corpus(folder).fingerprint == fingerprint
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _check_replaceable(folder: Path) -> None:
    """What is not a corpus is the user's, and stays."""
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{str(folder)!r} is a file; a corpus needs a folder of its own")
    if folder.is_dir() and any(p.name not in (*_FILES, _FACTS) for p in folder.iterdir()):
        raise FileExistsError(
            f"{str(folder)!r} holds other files than an encoded corpus; name another folder"
        )


def _remove_abandoned(folder: Path) -> None:
    """What processes of this machine that are no more left unfinished."""
    prefix = f".{folder.name}.{socket.gethostname()}."
    for partial in folder.parent.glob(f"{glob.escape(prefix)}*.partial"):
        process = partial.name.removeprefix(prefix).removesuffix(".partial")
        if process.isdigit() and not _is_alive(int(process)):
            shutil.rmtree(partial, ignore_errors=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is someone else's
        return True
    return process != os.getpid()


def _move(partial: Path, folder: Path, fingerprint: str) -> None:
    """Put a folder into its place, unless another process has just done so."""
    old = partial.with_suffix(".old.partial")
    if folder.exists() and not _is_there(folder, fingerprint):
        folder.rename(old)
        shutil.rmtree(old, ignore_errors=True)
    try:
        partial.rename(folder)
    except OSError:
        if not _is_there(folder, fingerprint):
            raise
