"""Runs to compare a run with: other seeds, uniform attention, an adversary of its attention.

Each function gives what the controls of an audit take: a function that trains a model and returns
its four functions. The runs are written beside each other in a folder, and one that is there
already is loaded and not trained again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from parsimax._core.auditable import Auditable
from parsimax._runs import checkpoint

from . import run as runs
from .auditing import auditable
from .batches import Batch
from .config import AttentionSettings, Config
from .folder import RunFolder
from .model import Classifier, Prediction
from .run import Run
from .training import Objective, train


class Criterion(Protocol):
    """What an adversary minimises, a mean over the texts of a batch; ``lam`` is in its name."""

    lam: float

    def __call__(
        self, tokens: Tensor, mask: Tensor, prediction: Tensor, attention: Tensor
    ) -> Tensor:
        """From tokens and mask (B, L), probabilities (B, C) and weights (B, L) to one number."""


def seeds(run: Run, folder: str | Path, *, quiet: bool = True) -> Callable[[int], Auditable]:
    """Trains the same model with another seed."""

    def with_seed(seed: int) -> Auditable:
        config = replace(run.config, seed=seed)
        return auditable(_trained(config, Path(folder) / f"seed-{seed}", quiet))

    return with_seed


def uniform(run: Run, folder: str | Path, *, quiet: bool = True) -> Callable[..., Auditable]:
    """Trains the same model with attention that is always uniform.

    The function that it returns takes, and has no need of, a function that gives such weights.
    """

    def with_uniform(attend: Callable[[Tensor, Tensor], Tensor] | None = None) -> Auditable:
        model = replace(run.config.model, attention=AttentionSettings(kind="uniform"))
        return auditable(
            _trained(replace(run.config, model=model), Path(folder) / "uniform", quiet)
        )

    return with_uniform


def adversaries(
    run: Run, folder: str | Path, *, quiet: bool = True
) -> Callable[[Criterion], Auditable]:
    """Trains a model of the same kind to minimise something else than its loss.

    The last epoch is taken: what makes an epoch the best of an ordinary run says nothing of how far
    an adversary's attention has moved.
    """

    def with_criterion(criterion: Criterion) -> Auditable:
        def objective(model: Classifier, found: Prediction, batch: Batch) -> Tensor:
            probabilities = model.output(found.scores)
            mean = criterion(batch.tokens, batch.mask, probabilities, found.weights)
            return mean.expand(len(batch.rows))

        place = Path(folder) / f"adversarial-{criterion.lam:g}"
        return auditable(_trained(run.config, place, quiet, objective, checkpoint.LAST))

    return with_criterion


def _trained(
    config: Config,
    folder: Path,
    quiet: bool,
    objective: Objective | None = None,
    which: str = checkpoint.BEST,
) -> Run:
    """The run of a folder, trained to its end if it was not."""
    resume: dict[str, Any] = {"resume": RunFolder(folder).checkpoint(checkpoint.LAST).exists()}
    done = train(config, folder, quiet=quiet, objective=objective, **resume)
    device = done.run.model.out.weight.device
    return runs.load(folder, which, device)
