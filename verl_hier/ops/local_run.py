"""A training run on this machine's CPU, in a process of its own: its log, and the metrics of its steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_hier.errors import RolloutError

Records = list[dict[str, Any]]


@dataclass(frozen=True)
class CpuRun:
    """One run of verl's entry point.

    Attributes:
        folder: gets `train.log`, `metrics.jsonl` and Hydra's files.
        arguments: for `python -m`; `verl_hier.recipe.compose.command` makes those of a recipe.
    """

    folder: Path
    arguments: Sequence[str] = ()

    @property
    def log(self) -> Path:
        """What the run prints."""
        return self.folder / "train.log"

    @property
    def metrics(self) -> Path:
        """What verl's file logger writes."""
        return self.folder / "metrics.jsonl"

    def finish(self, enough: Callable[[Records], bool] = lambda records: False) -> Records:
        """Start the process and return the metrics of every step when it ends; those of an earlier run are removed.

        Args:
            enough: shown the metrics so far, about twice a second and at the end; True ends the run.

        Raises:
            RolloutError: when the run fails; the sentence names its log.
        """
        process = self._start()
        try:
            while not (stopped := enough(self.records())) and process.poll() is None:
                time.sleep(0.5)
        finally:
            process.terminate()
            process.wait()
        records = self.records()
        enough(records)
        if process.returncode and not stopped:
            raise RolloutError(
                f"the training run ended with exit code {process.returncode}; its messages are in {self.log}."
            )
        return records

    def records(self) -> Records:
        """Metrics of the steps that are logged by now, with the number of the step as `step`."""
        # What follows the last end of line is still being written.
        lines = self.metrics.read_text().split("\n")[:-1] if self.metrics.exists() else []
        return [{"step": record["step"], **record["data"]} for record in map(json.loads, lines)]

    def _start(self) -> subprocess.Popen[bytes]:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.metrics.unlink(missing_ok=True)
        folder = self.folder.resolve()
        arguments = [*self.arguments, "trainer.logger=[console,file]", f"hydra.run.dir={folder / 'hydra'}"]
        environment = {
            **os.environ,
            "VERL_PLATFORM": "cpu",
            "VERL_FILE_LOGGER_PATH": str(folder / self.metrics.name),
            "OMP_NUM_THREADS": "1",
        }
        with self.log.open("w") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *arguments], env=environment, stdout=log, stderr=subprocess.STDOUT
            )
