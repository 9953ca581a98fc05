"""The folder of a training run: its recipe, log, metrics, checkpoints, stored graphs and, at its end, its policy."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_hier.compat.checkpoints import newest_whole
from verl_hier.compat.launch import read_metrics
from verl_hier.errors import HierError, RecipeError, first_line
from verl_hier.graph.atomic_write import atomic_write
from verl_hier.graph.bounded_reading import read_json, read_text
from verl_hier.ops.stored import QUICKSTART
from verl_hier.recipe.compose import require_blocks
from verl_hier.recipe.yaml_files import read_yaml

if TYPE_CHECKING:
    from omegaconf import DictConfig

RUNS = Path("runs")
"""Where `verl-hier train` makes its folders: `runs/<recipe>/<time or name>`."""

LONGEST_COMMAND = 2**16
"""Characters of a command that is read; `shlex` takes minutes for a million."""

POLICY = Path("actor/huggingface")
"""Where verl puts the policy in a checkpoint."""

POLICIES = "policies"
"""In a checkpoint and in the folder of a run: the policies that learned beside that one, by name."""


@dataclass(frozen=True)
class Run:
    """A training run, by its folder.

    | in the folder | what it is |
    |---|---|
    | `recipe.yaml` | the composed config of verl, with every interpolation resolved |
    | `composed/` | the same with its interpolations, which is what verl's main was given |
    | `run.json` | what ran: the same config, recipe and overrides, parts, versions, git revision, seeds, metrics file |
    | `command.txt` | the `verl-hier train` command of the run, and of each time that it was resumed |
    | `train.log` | everything that verl and Ray printed |
    | `metrics.jsonl` | the metrics of each step, by verl's file logger |
    | `metrics_before.jsonl` | those of the steps before the checkpoint from which the run was resumed last |
    | `checkpoints/` | verl's checkpoints, `global_step_N` |
    | `graphs/` | the rollouts with their credit in columns, when the recipe stores them (`hier.store.path`) |
    | `report.html`, `report.md` | what the run reached for what, its alarms, and three of its trees |
    | `model/` | the policy after the last step, with its tokenizer, as transformers loads it |
    """

    folder: Path

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """The run in a folder, or below that of a quickstart.

        Raises:
            HierError: when there is no run in the folder.
        """
        run, below = cls(Path(path)), cls(Path(path) / QUICKSTART)
        if not run.recipe_file.is_file():
            if below.recipe_file.is_file():
                return below
            raise HierError(f"{path} is not the folder of a run: it has no {run.recipe_file.name}.")
        return run

    @classmethod
    def all_in(cls, folder: Path) -> list[Run]:
        """The runs in the folder of a recipe, the one that was started or resumed last at the end."""
        files = folder.glob("*/recipe.yaml")
        return [cls(file.parent) for file in sorted(files, key=lambda file: file.stat().st_mtime)]

    @property
    def recipe_file(self) -> Path:
        """The composed config."""
        return self.folder / "recipe.yaml"

    @property
    def handed_over(self) -> Path:
        """Folder of the config that verl's main is given."""
        return self.folder / "composed"

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
    def metrics_before_file(self) -> Path:
        """The metrics of the steps before the checkpoint from which the run was resumed last."""
        return self.folder / "metrics_before.jsonl"

    @property
    def report(self) -> Path:
        """What the run reached for what, its alarms, and three of its trees; written at its end."""
        return self.folder / "report.html"

    @property
    def graphs(self) -> Path:
        """Stored rollouts."""
        return self.folder / "graphs"

    @property
    def command(self) -> list[str]:
        """The recipe and the overrides of the last command that started or resumed the run.

        Raises:
            HierError: when the file of the commands is missing or damaged.
        """
        lines = read_text(self.command_file).splitlines()
        try:
            words = shlex.split(lines[-1]) if lines and len(lines[-1]) <= LONGEST_COMMAND else []
        except ValueError:
            words = []
        if words[:2] != ["verl-hier", "train"] or len(words) < 3:
            raise HierError(f"{self.command_file} does not end with a `verl-hier train` command.")
        return words[2:]

    def recipe(self) -> DictConfig:
        """The composed config of verl, with the `hier` block; it is shared, and cannot be changed.

        Raises:
            HierError: when the file is damaged, or is no composed config.
        """
        return _recipe_of(self.recipe_file, _version(self.recipe_file))

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints; it is elsewhere when the run was started with a `trainer.default_local_dir`."""
        own = self.folder / "checkpoints"
        return own if own.is_dir() else Path(self.recipe().trainer.default_local_dir)

    def checkpoint(self) -> Path | None:
        """The newest complete checkpoint, `…/global_step_N`; None when there is none."""
        return newest_whole(self.checkpoints)

    @property
    def step(self) -> int:
        """The step of the newest complete checkpoint; 0 when there is none."""
        checkpoint = self.checkpoint()
        return int(checkpoint.name.rpartition("_")[2]) if checkpoint else 0

    def schedule_state(self, name: str) -> Any:
        """The state of a schedule in the newest complete checkpoint; None where there is none of that name.

        Raises:
            FileError: when it is damaged.
        """
        from verl_hier.compat.run_state import schedule_in

        checkpoint = self.checkpoint()
        found = None if checkpoint is None else schedule_in(checkpoint)
        return found[1] if found is not None and found[0] == name else None

    @property
    def saved_policy(self) -> Path | None:
        """Folder of the policy after the last step; None when it was not saved."""
        folder = self.folder / "model"
        return folder if folder.is_dir() else None

    def contents(self) -> list[tuple[str, str]]:
        """(what, where) of what the run has left."""
        places = {
            "policy": self.saved_policy,
            "checkpoints": self.checkpoints,
            "metrics": self.metrics_file,
            "rollouts": self.graphs,
            "report": self.report,
            "verl's output": self.log,
        }
        return [(what, str(place)) for what, place in places.items() if place and place.exists()]

    @property
    def model(self) -> Path:
        """Folder of the policy: that after the last step, or else that of the newest checkpoint.

        Raises:
            HierError: when the run has saved no policy.
        """
        saved = self.saved_policy or self._policy_of_checkpoint()
        if saved is None:
            raise HierError(
                f"{self.folder} holds no policy that transformers can load. A run saves one with each checkpoint, "
                "when trainer.save_freq is above 0 and actor_rollout_ref.actor.checkpoint.save_contents has `hf_model`."
            )
        return saved

    def save_policy(self) -> Path | None:
        """Copy the policy of the newest checkpoint to `model/`, and those of `hier.policies` that learned beside it to
        `policies/<name>/`; None when verl did not save it for transformers.

        The files of the weights are hard links where the file system has them, so that they take no further space and
        outlive the checkpoint.
        """
        source = self._policy_of_checkpoint()
        if source is None:
            return None
        for other in sorted((source.parents[1] / POLICIES).glob(f"*/{POLICY}")):
            self._keep(other, self.folder / POLICIES / other.parents[1].name)
        return self._keep(source, self.folder / "model")

    def _keep(self, source: Path, target: Path) -> Path:
        """Copy a policy of a checkpoint to a folder as transformers loads it; returns the folder."""
        beside = target.with_name(f"{target.name}.part")  # a kill must not leave half a policy
        shutil.rmtree(beside, ignore_errors=True)
        shutil.copytree(source, beside, copy_function=_link)
        # verl writes bfloat16, whatever the weights are; transformers would load them so.
        config, file = self.recipe(), beside / "config.json"
        text = json.dumps({**read_json(file), "dtype": str(config.actor_rollout_ref.rollout.dtype)}, indent=2)
        file.unlink()
        file.write_text(f"{text}\n")
        beside.rename(target)
        return target

    def _policy_of_checkpoint(self) -> Path | None:
        checkpoint = self.checkpoint()
        if checkpoint is None:
            return None
        files = [*(checkpoint / POLICY).glob("*.safetensors")]
        return checkpoint / POLICY if files and not any(map(is_below_adapter, files)) else None

    def rewind(self, step: int) -> None:
        """Go back to the checkpoint of a step: keep the metrics up to it, and not the policy of a later end."""
        for folder in ("model", POLICIES):
            shutil.rmtree(self.folder / folder, ignore_errors=True)
        kept = [record for record in self.metrics() if record["step"] <= step]
        rows = ({"step": record.pop("step"), "data": record} for record in kept)
        write_whole(self.metrics_before_file, "".join(f"{json.dumps(row)}\n" for row in rows))
        self.metrics_file.unlink(missing_ok=True)

    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of each step that has ended, in order, with the number of the step as `step`; step 0 is the
        validation before training. Steps that were made again after resuming are there once."""
        records: dict[int, dict[str, Any]] = {}
        for record in (*read_metrics(self.metrics_before_file), *read_metrics(self.metrics_file)):
            records.setdefault(int(record["step"]), {}).update(record)
        return [records[step] for step in sorted(records)]


def is_below_adapter(file: Path) -> bool:
    """Whether a file of safetensors has weights under the names of peft, as verl itself and earlier versions of ours
    wrote the policy of a run with adapters: transformers would take none of them."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        # The header is JSON with the names of the tensors.
        return b'"base_model.' in opened.read(min(size, 2**24))


def write_whole(file: Path, text: str) -> None:
    """Write a file of which a kill leaves the old content or the new one."""
    with atomic_write(file) as beside:
        beside.write_text(text, encoding="utf-8")


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def _version(file: Path) -> tuple[int, ...]:
    """What changes when a file does; empty when it cannot be looked at."""
    try:
        stated = file.stat()
    except OSError:
        return ()
    return stated.st_dev, stated.st_ino, stated.st_mtime_ns, stated.st_size


@lru_cache(maxsize=8)
def _recipe_of(file: Path, version: tuple[int, ...]) -> DictConfig:
    """The recipe that a version of a file holds: a command asks for it several times, and to read it takes 0.2 s."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    _, content = read_yaml(file)
    try:
        config = OmegaConf.create(content)
        require_blocks(config)
    except (RecipeError, OmegaConfBaseException, ValueError, TypeError) as error:
        raise HierError(f"{file} is not the recipe of a run: {first_line(error)}.") from error
    OmegaConf.set_readonly(config, True)
    return config
