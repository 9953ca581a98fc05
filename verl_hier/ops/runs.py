"""The folder of a training run: its recipe, log, metrics, checkpoints, stored graphs and, at its end, its policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_hier.compat.launch import read_metrics
from verl_hier.errors import HierError

if TYPE_CHECKING:
    from omegaconf import DictConfig

RUNS = Path("runs")
"""Where `verl-hier train` makes its folders: `runs/<recipe>/<time or name>`."""
TRACKER = "latest_checkpointed_iteration.txt"
"""verl writes it after everything else of a checkpoint; it names the step of the newest complete one."""


@dataclass(frozen=True)
class Run:
    """A training run, by its folder.

    | in the folder | what it is |
    |---|---|
    | `recipe.yaml` | the composed config of verl, with every interpolation resolved |
    | `command.txt` | the `verl-hier train` command of the run, and of each time that it was resumed |
    | `train.log` | everything that verl and Ray printed |
    | `metrics.jsonl` | the metrics of each step, by verl's file logger |
    | `metrics_before.jsonl` | those of the steps before the checkpoint from which the run was resumed last |
    | `checkpoints/` | verl's checkpoints, `global_step_N` |
    | `graphs/` | the rollouts with their credit, when the recipe stores them (`hier.store.path`) |
    | `model/` | the policy after the last step, with its tokenizer, as transformers loads it |
    """

    folder: Path

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """The run in a folder.

        Raises:
            HierError: when there is no run in the folder.
        """
        run = cls(Path(path))
        if not run.recipe_file.is_file():
            raise HierError(f"{path} is not the folder of a run: it has no {run.recipe_file.name}.")
        return run

    @property
    def recipe_file(self) -> Path:
        """The composed config."""
        return self.folder / "recipe.yaml"

    @property
    def command_file(self) -> Path:
        """The commands that started and resumed the run, one a line."""
        return self.folder / "command.txt"

    @property
    def log(self) -> Path:
        """What verl and Ray printed."""
        return self.folder / "train.log"

    @property
    def metrics_file(self) -> Path:
        """What verl's file logger writes."""
        return self.folder / "metrics.jsonl"

    @property
    def graphs(self) -> Path:
        """Stored rollouts."""
        return self.folder / "graphs"

    def recipe(self) -> DictConfig:
        """The composed config of verl, with the `hier` block."""
        from omegaconf import DictConfig, OmegaConf

        config = OmegaConf.load(self.recipe_file)
        assert isinstance(config, DictConfig)
        return config

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints; it is elsewhere when the run was started with a `trainer.default_local_dir`."""
        own = self.folder / "checkpoints"
        return own if own.is_dir() else Path(self.recipe().trainer.default_local_dir)

    def checkpoint(self) -> Path | None:
        """The newest complete checkpoint, `…/global_step_N`; None when there is none."""
        tracker = self.checkpoints / TRACKER
        if not tracker.is_file():
            return None
        newest = self.checkpoints / f"global_step_{tracker.read_text().strip()}"
        return newest if newest.is_dir() else None

    @property
    def step(self) -> int:
        """The step of the newest complete checkpoint; 0 when there is none."""
        checkpoint = self.checkpoint()
        return int(checkpoint.name.rpartition("_")[2]) if checkpoint else 0

    @property
    def model(self) -> Path:
        """Folder of the policy: that after the last step, or else that of the newest checkpoint.

        Raises:
            HierError: when the run has saved no policy.
        """
        saved, checkpoint = self.folder / "model", self.checkpoint()
        if not saved.is_dir() and checkpoint:
            saved = checkpoint / "actor" / "huggingface"
        if not any(saved.glob("*.safetensors")):
            raise HierError(
                f"{self.folder} holds no policy that transformers can load. A run saves one with each checkpoint, "
                "when trainer.save_freq is above 0 and actor_rollout_ref.actor.checkpoint.save_contents has `hf_model`."
            )
        return saved

    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of each step that has ended, in order, with the number of the step as `step`; step 0 is the
        validation before training. Steps that were made again after resuming are there once."""
        records: dict[int, dict[str, Any]] = {}
        for record in (*read_metrics(self.folder / "metrics_before.jsonl"), *read_metrics(self.metrics_file)):
            records.setdefault(int(record["step"]), {}).update(record)
        return [records[step] for step in sorted(records)]
