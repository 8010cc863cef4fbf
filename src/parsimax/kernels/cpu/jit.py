"""How every kernel is compiled: serial, without the GIL, cached on disk, IEEE division."""

from __future__ import annotations

import hashlib
import logging
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache


def _fingerprint() -> str:
    """A hash of all kernel sources together.

    Numba renews a cached kernel when the file it stands in changes, not when a function that it
    calls from another file does; without this an upgrade could run a mixture of old and new.
    """
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


_SOURCES = _fingerprint()
_log = logging.getLogger("parsimax")


class _Cache(FunctionCache):
    def _index_key(self, sig, codegen):
        return (*super()._index_key(sig, codegen), _SOURCES)


@cache
def _say_uncached(why: str) -> None:
    _log.info("kernels are compiled anew in every process: %s", why)


def _compiler(**options: object) -> Any:
    compile_: Any = njit(nogil=True, error_model="numpy", **options)  # type: ignore[call-overload]

    def decorate(function: Any) -> Any:
        dispatcher = compile_(function)
        try:
            dispatcher.enable_caching()
            dispatcher._cache = _Cache(function)
        except RuntimeError as error:  # no folder to write to, as in a read-only container
            _say_uncached(str(error))
        return dispatcher

    return decorate


# fastmath=False is said aloud: left unsaid, a function inherits it from the first caller that
# happens to compile it, and the compensated subtractions are optimised away.
kernel = _compiler(fastmath=False)
# A loop that only adds things up: LLVM may reorder the sum, and so vectorise it, but may assume
# nothing about NaN and infinity, because masked scores are infinite.
reduction = _compiler(fastmath={"reassoc", "nsz", "contract", "arcp"})
