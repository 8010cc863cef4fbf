"""The four functions that an audit needs of a model, and the texts it reads.

They are records that any layer can fill, so they are defined with the others.
"""

from __future__ import annotations

from parsimax._core.auditable import Auditable, Pull, Text

__all__ = ["Auditable", "Pull", "Text"]
