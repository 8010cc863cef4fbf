"""What type checkers see in ``px.attention``: a function that has other functions as attributes.

At run time ``parsimax/__init__.py`` puts the names of this package on the function itself.
"""

from __future__ import annotations

from .decoding import decode as _decode
from .functional import attention as _attention
from .key_bounds import KeyBounds as _KeyBounds
from .measuring import statistics as _statistics
from .varlen import packed as _packed


class _Front:
    KeyBounds = _KeyBounds
    __call__ = staticmethod(_attention)
    decode = staticmethod(_decode)
    packed = staticmethod(_packed)
    statistics = staticmethod(_statistics)


attention: _Front
