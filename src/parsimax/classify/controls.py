"""Runs to compare a run with: other seeds, uniform attention, an adversary of its attention.

Each function gives what the controls of an audit take: a function that trains a model and returns
its four functions. The runs are written beside each other in a folder, and one that is there
already is loaded and not trained again. If it belongs to other options, data or weights, that is an
error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from torch import Tensor

from parsimax._core.auditable import Auditable
from parsimax._runs import checkpoint
from parsimax._runs.errors import TrainingError

from . import run as runs
from .auditing import auditable
from .batches import Batch
from .config import AttentionSettings, Config
from .folder import NO_MATTER, RunFolder, changed
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
        return auditable(_trained(run, config, Path(folder) / f"seed-{seed}", quiet))

    return with_seed


def uniform(run: Run, folder: str | Path, *, quiet: bool = True) -> Callable[..., Auditable]:
    """Trains the same model with attention that is always uniform.

    The function that it returns takes, and has no need of, a function that gives such weights.
    """

    def with_uniform(attend: Callable[[Tensor, Tensor], Tensor] | None = None) -> Auditable:
        model = replace(run.config.model, attention=AttentionSettings(kind="uniform"))
        config = replace(run.config, model=model)
        return auditable(_trained(run, config, Path(folder) / "uniform", quiet))

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

        lam = float(criterion.lam)
        short = f"{lam:g}" if float(f"{lam:g}") == lam else repr(lam)
        place = Path(folder) / f"adversarial-{short}"
        origin = f"{_fingerprint(run)} {lam!r}"
        return auditable(
            _trained(run, run.config, place, quiet, objective, origin, checkpoint.LAST)
        )

    return with_criterion


def _fingerprint(run: Run) -> str:
    """A hash of a model's words and weights."""
    whole = hashlib.sha256(run.vocabulary.fingerprint.encode())
    for name, value in run.model.state_dict().items():
        whole.update(name.encode())
        whole.update(value.detach().cpu().contiguous().view(-1).numpy().tobytes())
    return whole.hexdigest()


def _trained(
    run: Run,
    config: Config,
    folder: Path,
    quiet: bool,
    objective: Objective | None = None,
    origin: str = "",
    which: str = checkpoint.BEST,
) -> Run:
    """The run of a folder, trained to its end if it was not.

    Raises:
        TrainingError: the folder holds a control of other options, data or weights.
    """
    place = RunFolder(folder)
    resume = place.checkpoint(checkpoint.LAST).exists()
    if resume:
        differ = [words for key, words in changed(place, config).items() if key not in NO_MATTER]
        if differ:
            raise _stale(folder, f"it was trained with other values of {', '.join(differ)}")
        last = checkpoint.read(place.checkpoint(checkpoint.LAST))
        if last.get("origin", "") != origin:
            raise _stale(folder, "it was trained beside other weights than the run has now")
        if run.data is not None and last.get("data") != run.data:
            raise _stale(folder, "it was trained on other data than the run")
    done = train(
        config,
        folder,
        resume=resume,
        quiet=quiet,
        objective=objective,
        origin=origin,
        data_of=run.data,
    )
    device = done.run.model.out.weight.device
    return runs.load(folder, which, device)


def _stale(folder: Path, why: str) -> TrainingError:
    return TrainingError(
        f"{folder} holds a control that does not belong to this run: {why}; remove that folder, "
        "or give another by --out"
    )
