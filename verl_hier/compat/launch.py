"""Trainers in processes of their own: the launcher with its log file, and CPU runs of verl with their metrics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_hier.errors import RolloutError

Records = list[dict[str, Any]]


def launch(
    arguments: Sequence[str],
    log: Path,
    variables: Mapping[str, str],
    stop: Callable[[], bool] = lambda: False,
    limit_s: float = float("inf"),
) -> int | None:
    """Run `python -m …` to its end; no process is left when this function returns or raises.

    Args:
        arguments: what follows `python -m`.
        log: file for everything that the process prints.
        variables: environment variables besides those of this process.
        stop: asked about twice a second; True ends the process.
        limit_s: seconds after which the process is killed.

    Returns:
        The exit code, or None when `stop` ended the process.

    Raises:
        RolloutError: naming the log, when the limit is reached.
    """
    deadline = time.monotonic() + limit_s
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments], env={**os.environ, **variables}, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        while not (stopped := stop()) and process.poll() is None:
            if time.monotonic() > deadline:
                process.kill()
                raise RolloutError(f"the run took longer than {limit_s:.0f} s; its messages are in {log}.")
            time.sleep(0.5)
    finally:
        process.terminate()
        process.wait()
    return None if stopped else process.returncode


def read_metrics(file: Path) -> Records:
    """Metrics of the steps that verl's file logger has written by now, with the number of the step as `step`."""
    # What follows the last end of line is still being written.
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [{"step": record["step"], **record["data"]} for record in map(json.loads, lines)]


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
        self.folder.mkdir(parents=True, exist_ok=True)
        self.metrics.unlink(missing_ok=True)
        folder = self.folder.resolve()
        variables = {
            "VERL_PLATFORM": "cpu",
            "VERL_FILE_LOGGER_PATH": str(folder / self.metrics.name),
            "OMP_NUM_THREADS": "1",
        }
        arguments = [*self.arguments, "trainer.logger=[console,file]", f"hydra.run.dir={folder / 'hydra'}"]
        code = launch(arguments, self.log, variables, lambda: enough(self.records()))
        records = self.records()
        enough(records)
        if code:
            raise RolloutError(f"the training run ended with exit code {code}; its messages are in {self.log}.")
        return records

    def records(self) -> Records:
        """See `read_metrics`."""
        return read_metrics(self.metrics)
