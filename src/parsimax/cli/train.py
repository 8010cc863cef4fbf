"""``parsimax train`` and ``parsimax average``."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

_INTERRUPTED = 130


def train(
    config: Annotated[Path, Parameter(help="YAML file with the options of the run.")],
    /,
    *overrides: Annotated[
        str,
        Parameter(
            name="OPTIONS",
            allow_leading_hyphen=True,
            help="Options of the config by dotted name, such as --optimizer.lr 1e-3.",
        ),
    ],
    out: Annotated[
        Path | None, Parameter(help="Folder of the run; by default runs/ and the config's name.")
    ] = None,
    resume: Annotated[
        bool, Parameter(negative=(), help="Go on from the last checkpoint of the run.")
    ] = False,
    show: Annotated[
        bool, Parameter(negative=(), help="Print all options with their values, and stop.")
    ] = False,
    quiet: Annotated[bool, Parameter(negative=(), help="Show no progress.")] = False,
) -> int:
    """Train a sequence-to-sequence model, or a text classifier (task: classification).

    The same command trains on one CPU or GPU, on several (--training.devices 4) and on several
    machines (started there by torchrun or SLURM, with --training.num_nodes 2). A run that was
    killed goes on with --resume, as if nothing had happened. Classifiers train on one device, and
    go on after their last whole epoch.
    """
    from parsimax._runs.task import task_of

    folder = Path("runs") / config.stem if out is None else out
    if task_of(config, overrides) is not None:
        from parsimax.cli import classifiers

        return classifiers.train(
            config, overrides, folder=folder, resume=resume, show=show, quiet=quiet
        )
    from parsimax.seq2seq import config as configs

    options = configs.load(config, overrides)
    if show:
        print(options.to_yaml(), end="")
        return 0
    _let_others_start()
    from parsimax.seq2seq.training import train as fit

    outcome = fit(options, folder, resume=resume, quiet=quiet)
    if outcome.interrupted:
        again = ["parsimax", "train", str(config), *overrides, "--out", str(folder), "--resume"]
        if outcome.first:
            print(f"Stopped at step {outcome.step:,}, which is saved. Go on with")
            print(f"  {shlex.join(again)}")
        return _INTERRUPTED
    if not quiet and outcome.first:
        print(f"Ended at step {outcome.step:,}: {outcome.stopped}.")
        if outcome.best is not None:
            step, value = outcome.best
            metric = options.training.validation.metric
            shown = f"{100 * value:.2f} %" if metric == "accuracy" else f"{value:.4f}"
            print(f"Best at step {step:,}, with {metric} {shown} of symbols.")
        print(f"The run is in {folder}.")
    return 0


def average(
    run: Annotated[Path, Parameter(help="Folder of the run.")],
    /,
    *,
    n: Annotated[int, Parameter(help="How many checkpoints.")] = 5,
    which: Annotated[
        Literal["best", "last"], Parameter(help="The best ones, or the latest.")
    ] = "best",
) -> None:
    """Average the weights of a run's checkpoints into one more, named average.

    training.keep and training.keep_last say how many a run keeps.
    """
    from parsimax.seq2seq.training import average as mean

    print(f"written to {mean(run, n, which)}")


def _let_others_start() -> None:
    """Make the command line one that can be repeated for each process of several.

    Lightning starts the others with this process's own ``sys.argv``, whose first part is no file
    where the command was not started as a script.
    """
    if not Path(sys.argv[0]).is_file():
        import parsimax

        sys.argv[0] = str(Path(parsimax.__file__).with_name("__main__.py"))
