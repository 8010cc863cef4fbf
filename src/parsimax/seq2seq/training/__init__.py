"""Training on pytorch-lightning: runs that can be killed, resumed and spread over machines."""

from typing import TYPE_CHECKING, Any

from parsimax._runs.errors import TrainingError

if TYPE_CHECKING:
    from .averaging import average
    from .fit import Outcome, train

__all__ = ["Outcome", "TrainingError", "average", "train"]


def __getattr__(name: str) -> Any:
    """Lightning takes seconds to import, and reading a checkpoint does not need it."""
    if name in ("Outcome", "train"):
        from . import fit

        return getattr(fit, name)
    if name == "average":
        from .averaging import average

        return average
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
