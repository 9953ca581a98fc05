"""What a checkpoint holds of ours beside verl's: the schedule's state, and what a resumed run has to have too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path

from verl_hier.errors import FileError, RecipeError
from verl_hier.graph.bounded_reading import read_text

STATE_FILE = "hier.json"
NONE: Mapping[str, str] = MappingProxyType({})


def write_state(
    checkpoint: Path, schedule: str, state: Any, heads: Iterable[str], policies: Mapping[str, str] = NONE
) -> None:
    """Write what `read_state` reads.

    Args:
        checkpoint: the folder `global_step_N`.
        schedule: name of the schedule.
        state: its state, JSON-able.
        heads: names of the critic's heads, in order; none for verl's own critic.
        policies: those that learn beside verl's own, by name, and how they do.
    """
    held: dict[str, Any] = {"schedule": {"name": schedule, "state": state}, "value_heads": list(heads)}
    if policies:
        held["policies"] = dict(policies)
    (checkpoint / STATE_FILE).write_text(json.dumps(held), encoding="utf-8")


def read_state(checkpoint: Path, schedule: str, heads: Iterable[str], policies: Mapping[str, str] = NONE) -> Any:
    """The state of the schedule in a checkpoint.

    Raises:
        RecipeError: when none of our trainers wrote it, or the recipe has another schedule, heads or policies.
        FileError: when the file is damaged.
    """
    file = checkpoint / STATE_FILE
    if not file.exists():
        raise RecipeError(
            f"{checkpoint} has no {STATE_FILE}: no hier trainer wrote it; start from its weights instead."
        )
    names = list(heads)
    with _undamaged(file):
        held = _held(file)
        name, state = held["schedule"]["name"], held["schedule"]["state"]
        # Checkpoints of earlier versions do not say it.
        before = [*held.get("value_heads", names)]
        learned = dict(held.get("policies", {}))
    if name != schedule:
        raise RecipeError(
            f"hier.schedule.name: the checkpoint {checkpoint} was written under {name!r}, the recipe has {schedule!r}."
        )
    if before != names:
        raise RecipeError(
            f"hier.value_heads: the critic in {checkpoint} has {_said(before)}, the recipe {_said(names)}; a run is "
            "resumed with the same heads in the same order."
        )
    if learned != dict(policies):
        raise RecipeError(
            f"hier.policies: beside the policy of actor_rollout_ref there is {_others(learned)} in {checkpoint}, and "
            f"{_others(policies)} in the recipe; a run is resumed with the same policies."
        )
    return state


def schedule_in(checkpoint: Path) -> tuple[str, Any] | None:
    """Name and state of the schedule under which a checkpoint was written; None where none of our trainers wrote it.

    Raises:
        FileError: when the file is damaged.
    """
    file = checkpoint / STATE_FILE
    if not file.exists():
        return None
    with _undamaged(file):
        schedule = _held(file)["schedule"]
        return str(schedule["name"]), schedule["state"]


def _held(file: Path) -> Any:
    # A generator's state has integers of more than 64 bits, which `read_json` refuses.
    return json.loads(read_text(file))


@contextmanager
def _undamaged(file: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise FileError(f"{file} is damaged: {type(error).__name__}.") from error


def _others(policies: Mapping[str, str]) -> str:
    return ", ".join(f"{name} (train: {how})" for name, how in sorted(policies.items())) or "no other one"


def _said(heads: list[str]) -> str:
    return f"the heads {', '.join(heads)}" if heads else "one value and no heads"


def checkpoint_of(config: Any) -> Path | None:
    """The checkpoint from which verl resumes (trainer/ppo/v1/trainer_base.py `_load_checkpoint`), None at a beginning.

    Args:
        config: the block `trainer` of a composed recipe.
    """
    if config.resume_mode == "resume_path":
        return Path(config.resume_from_path).absolute()
    if config.resume_mode == "disable":
        return None
    found = find_latest_ckpt_path(str(Path(config.default_local_dir).absolute()))
    return None if found is None else Path(found)
