"""Runs of verl's entry point on this machine's CPU, with or without a recipe of ours, and their metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_hier.compat.launch import Records, launch, read_metrics
from verl_hier.errors import RolloutError


@dataclass(frozen=True)
class CpuRun:
    """One run.

    Attributes:
        folder: gets `train.log`, `metrics.jsonl` and Hydra's files.
        arguments: for `python -m`; `verl_hier.recipe.compose.command` makes those of a recipe.
    """

    folder: Path
    arguments: Sequence[str] = ()

    def finish(self, enough: Callable[[Records], bool] = lambda records: False) -> Records:
        """Run it and return the metrics of every step; those of an earlier run in the folder are removed.

        Args:
            enough: shown the metrics so far; True ends the run.

        Raises:
            RolloutError: when the run fails; the sentence names its log.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        folder = self.folder.resolve()
        (folder / "metrics.jsonl").unlink(missing_ok=True)
        variables = {
            "VERL_PLATFORM": "cpu",
            "VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl"),
            "OMP_NUM_THREADS": "1",
        }
        # A folder of its own, because two runs side by side must not write the same checkpoints.
        places = (f"trainer.default_local_dir={folder / 'checkpoints'}", f"hydra.run.dir={folder / 'hydra'}")
        arguments = [*self.arguments, "trainer.logger=[console,file]", *places]
        log = folder / "train.log"
        code = launch(arguments, log, variables, lambda process: enough(self.records()))
        if code:
            raise RolloutError(f"the training run ended with exit code {code}; its messages are in {log}.")
        return self.records()

    def records(self) -> Records:
        """The metrics of the steps so far."""
        return read_metrics(self.folder / "metrics.jsonl")
