"""Sparse, structured and adaptive attention and outputs for PyTorch.

    import parsimax as px

    px.entmax(scores, alpha=1.5)                 # scores -> probabilities, many exactly zero
    px.entmax_loss(scores, target, alpha=1.5)    # its loss, with cross_entropy's arguments
    px.attention(q, k, v, alpha=1.5)             # attention that uses it
    px.sparsemap(scores, px.structured.Matching())    # few whole structures, with probabilities

Importing this package imports nothing heavy: each public name loads its module, and with it torch,
when it is first used.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where each public name lives. A name whose home is itself a module is that module.
_EXPORTS = {
    "analysis": "parsimax.analysis",
    "attention": "parsimax.attention",
    "budget": "parsimax.mappings",
    "constrained_softmax": "parsimax.mappings",
    "constrained_sparsemax": "parsimax.mappings",
    "entmax": "parsimax.mappings",
    "entmax_loss": "parsimax.losses",
    "fenchel_young_loss": "parsimax.losses",
    "fusedmax": "parsimax.mappings",
    "huggingface": "parsimax.huggingface",
    "linear_entmax_loss": "parsimax.losses",
    "losses": "parsimax.losses",
    "mappings": "parsimax.mappings",
    "nn": "parsimax.nn",
    "normmax": "parsimax.mappings",
    "oscarmax": "parsimax.mappings",
    "softmax": "parsimax.mappings",
    "sparsegen": "parsimax.mappings",
    "sparsemap": "parsimax.structured",
    "sparsemap_loss": "parsimax.structured",
    "sparsemax": "parsimax.mappings",
    "sparsemax_loss": "parsimax.losses",
    "structured": "parsimax.structured",
}
_MODULES = frozenset({"analysis", "huggingface", "losses", "mappings", "nn", "structured"})

# What a type checker reads; tests check that it lists the same names as _EXPORTS.
if TYPE_CHECKING:
    from parsimax import analysis, huggingface, losses, mappings, nn, structured
    from parsimax.attention.front import attention
    from parsimax.losses import (
        entmax_loss,
        fenchel_young_loss,
        linear_entmax_loss,
        sparsemax_loss,
    )
    from parsimax.mappings import (
        budget,
        constrained_softmax,
        constrained_sparsemax,
        entmax,
        fusedmax,
        normmax,
        oscarmax,
        softmax,
        sparsegen,
        sparsemax,
    )
    from parsimax.structured import sparsemap, sparsemap_loss

__all__ = [
    "__version__",
    "analysis",
    "attention",
    "budget",
    "constrained_softmax",
    "constrained_sparsemax",
    "entmax",
    "entmax_loss",
    "fenchel_young_loss",
    "fusedmax",
    "huggingface",
    "linear_entmax_loss",
    "losses",
    "mappings",
    "nn",
    "normmax",
    "oscarmax",
    "softmax",
    "sparsegen",
    "sparsemap",
    "sparsemap_loss",
    "sparsemax",
    "sparsemax_loss",
    "structured",
]


if not TYPE_CHECKING:  # hidden from type checkers, so that they report names that do not exist

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first asked for (PEP 562)."""
        if name not in _EXPORTS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = importlib.import_module(_EXPORTS[name])
        value = module if name in _MODULES else getattr(module, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Keeps ``parsimax.attention`` the function, although a package has the same name.

    Importing ``parsimax.attention`` makes the import system set that attribute to the package,
    whichever import comes first. We store the function instead. (A callable module would do for
    plain Python, but torch.compile cannot trace a call to a module.) The package's names are put
    on the function, so that ``import parsimax.attention as attention`` reaches them too, and
    ``from parsimax.attention import ...`` never looks at this attribute.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name == "attention" and isinstance(value, ModuleType):
            package, value = value, value.attention
            public = {key: item for key, item in vars(package).items() if not key.startswith("__")}
            vars(value).update(public)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
