"""What attention does, and whether it explains anything: heads, and audits of faithfulness.

Everything here works on records (tokens, weights, hidden states, scores) and on callables, never on
a model class of ours, so that any PyTorch model can be studied.

    px.analysis.audit(auditable, texts)    # is attention an explanation? One call, one result
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parsimax.analysis import heads
    from parsimax.analysis.audit import Auditable, Text, audit, importance

__all__ = ["Auditable", "Text", "audit", "heads", "importance"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first asked for (PEP 562)."""
        if name == "heads":
            return importlib.import_module("parsimax.analysis.heads")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module("parsimax.analysis.audit"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Keeps ``analysis.audit`` the function, although a package has the same name.

    Importing the package makes the import system set that attribute to it, whichever import comes
    first. The package's names are put on the function, so that ``px.analysis.audit.Search`` and
    ``import parsimax.analysis.audit as audit`` reach them too.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name == "audit" and isinstance(value, ModuleType):
            package, value = value, value.audit
            public = {key: item for key, item in vars(package).items() if not key.startswith("__")}
            vars(value).update(public)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
