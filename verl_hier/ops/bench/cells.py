"""Cells: what a method reached on a task with a seed, with a fingerprint of all that decides it."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import platform
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from verl_hier import __version__
from verl_hier.errors import FileError
from verl_hier.graph.bounded_reading import parse_json, text_lines
from verl_hier.ops.bench.panel import Panel, Task
from verl_hier.recipe.compose import compose
from verl_hier.verl_facts.versions import installed

Curve = list[dict[str, Any]]
TRIAL_SEED, TRIAL_SHARE = 99, 3
"""Seed of the trials of learning rates, and the part of the tokens that they have."""
_PLACES = {"trainer": ("default_local_dir", "project_name", "experiment_name", "logger"), "data": ("seed",)}
"""Lines that say where a run writes and which seed it has, and not what is measured."""


@dataclass(frozen=True)
class Key:
    """Which cell.

    Attributes:
        trial: the learning rate that the run tries; 0 for a run that counts.
    """

    task: str
    method: str
    seed: int
    trial: float = 0.0

    def folder(self, work: Path) -> Path:
        """Where the logs of its run are."""
        place = f"rate_{self.trial}" if self.trial else f"seed_{self.seed}"
        return work / self.task / place / self.method

    def tokens(self, task: Task) -> float:
        """Its budget."""
        return task.tokens / (TRIAL_SHARE if self.trial else 1)


def overrides_of(task: Task, method: str, further: Iterable[str] = ()) -> tuple[str, list[str]]:
    """The recipe of a method, and its overrides but for the seed and the model: its own, the task's, and those that
    all tasks share, by which held-out tasks are sampled as in training."""
    recipe, own = task.recipe(method)
    shared = [
        f"hier.environment.validation={task.held_out}",
        f"actor_rollout_ref.rollout.val_kwargs.temperature={float(task.temperature)}",
        "actor_rollout_ref.rollout.val_kwargs.do_sample=true",
        "actor_rollout_ref.rollout.val_kwargs.n=1",
        "trainer.val_before_train=true",
        f"trainer.test_freq={task.test_every}",
        "trainer.total_training_steps=1000",
        "trainer.total_epochs=1000",
        "trainer.save_freq=-1",
    ]
    if task.temperature != 1:
        shared.append(f"actor_rollout_ref.rollout.temperature={float(task.temperature)}")
    return recipe, [*own, *task.overrides, *shared, *further]


def fingerprint(panel: Panel, name: str, method: str, further: Iterable[str] = ()) -> str:
    """Of everything that decides the figures of a cell but its seed: recipe with prompts, start, budget, versions."""
    task = panel.tasks[name]
    recipe, overrides = overrides_of(task, method, further)
    start = None if task.cold_start is None else panel.cold_starts[task.cold_start]
    runs = [_content(recipe, tuple(overrides), start is None)]
    if start is not None:
        runs += [_content(each, start.overrides, True) for each in start.recipes]
    versions = {"verl-hier": __version__, "verl": installed("verl")}
    decided = [*runs, versions, task.tokens, task.rates, task.held_out, task.test_every]
    return hashlib.sha256(json.dumps(decided, sort_keys=True, default=str).encode()).hexdigest()[:16]


@cache  # the methods of a task have one start
def _content(recipe: str, overrides: tuple[str, ...], own_model: bool) -> dict[str, Any]:
    """What a recipe composes to, without places, seeds and a model that is not its own; not to be changed.

    The folder of a model counts by what is in it.
    """
    from omegaconf import OmegaConf

    found: Any = OmegaConf.to_container(compose(recipe, list(overrides)), resolve=False)
    for block, lines in _PLACES.items():
        for line in lines:
            found[block].pop(line, None)
    found["hier"].pop("seed", None)
    model = found["actor_rollout_ref"]["model"]
    if not own_model:
        model.pop("path")
    elif (path := Path(model["path"])).is_dir():
        model["path"] = _model_hash(path.resolve())
    return dict(found)


@cache
def _model_hash(folder: Path) -> str:
    """Of a model's files, whose names and contents decide what it answers."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    parts = []
    for path in files:
        with path.open("rb") as file:
            parts.append((path.name, hashlib.file_digest(file, "sha256").hexdigest()))
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class Cells:
    """A file of cells, one line of JSON each; the last line of a key and a fingerprint counts.

    Args:
        file: of which new cells become further lines.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.all: list[dict[str, Any]] = list(_read(file)) if file.is_file() else []

    def curve(self, key: Key, print_of: str) -> Curve:
        """Held-out success over what was spent; empty where the cell was not measured as it would be now."""
        return next((cell["curve"] for cell in reversed(self.all) if _is(cell, key, print_of)), [])

    def keep(self, key: Key, print_of: str, curve: Curve, rate: float) -> None:
        """Write a cell down."""
        cell = {
            **asdict(key),
            "rate": rate or None,
            "fingerprint": print_of,
            "versions": {"verl-hier": __version__, **{name: installed(name) for name in ("verl", "torch")}},
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "date": time.strftime("%Y-%m-%d"),
            "curve": curve,
        }
        self.all.append(cell)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(cell) + "\n")


def _is(cell: dict[str, Any], key: Key, print_of: str) -> bool:
    return all(cell.get(name) == value for name, value in asdict(key).items()) and cell["fingerprint"] == print_of


def _read(file: Path) -> Iterator[dict[str, Any]]:
    for number, line in text_lines(file):
        cell = parse_json(line, f"{file}, line {number}")
        if not _is_cell(cell):
            raise FileError(
                f"{file}, line {number} is no cell of `verl-hier bench`; move the file away or mend the line."
            )
        yield cell


def _is_cell(cell: Any) -> bool:
    if not isinstance(cell, dict) or not isinstance(cell.get("curve"), list) or not cell["curve"]:
        return False
    texts = all(isinstance(cell.get(name), str) for name in ("task", "method", "fingerprint"))
    numbers = [cell.get("seed"), cell.get("trial", 0.0), cell.get("rate") or 0.0]
    for point in cell["curve"]:
        numbers += [point.get(name) for name in ("tokens", "success")] if isinstance(point, dict) else [None]
        numbers += [point.get(name, 0.0) for name in ("calls", "seconds")] if isinstance(point, dict) else []
    return texts and all(isinstance(each, int | float) and math.isfinite(each) for each in numbers)


def at_budget(curve: Curve, budget: float, cost: str = "tokens") -> float:
    """Success at the budget, linearly between the two measurements around it."""
    before, after = curve[0], curve[-1]
    for left, right in itertools.pairwise(curve):
        if left[cost] <= budget <= right[cost]:
            before, after = left, right
    share = (budget - before[cost]) / max(after[cost] - before[cost], 1)
    return float(before["success"] + min(max(share, 0.0), 1.0) * (after["success"] - before["success"]))
