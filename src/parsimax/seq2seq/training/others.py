"""What happens to the other processes of a run when one of them fails."""

from __future__ import annotations

import signal
import subprocess
import time
from typing import Any

import pytorch_lightning as lightning

_SECONDS = 10.0


class EndOthers(lightning.Callback):
    """Ends the processes that this one started when it fails, before they wait for it in vain.

    A process that is told of an error by a broken connection is not the one that has something to
    say: it waits for the one that does.
    """

    failed = False  # another process did, on its own

    def on_exception(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, error: BaseException
    ) -> None:
        """Lightning's hook."""
        processes: list[subprocess.Popen[Any]] = getattr(trainer.strategy.launcher, "procs", [])
        if not processes:
            return
        broken = isinstance(error, RuntimeError) and not isinstance(error, NotImplementedError)
        until = time.monotonic() + (_SECONDS if broken else 0.0)
        while time.monotonic() < until and not self.failed:
            self.failed = any(p.poll() for p in processes)
            time.sleep(0.1)
        for process in processes:
            process.send_signal(signal.SIGKILL)
