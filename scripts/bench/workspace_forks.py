"""Forks of `repository` by snapshot and by replay: how long each takes, and whether both give the same workspace.

Usage: python scripts/bench/workspace_forks.py [--repositories 50] [--actions 8]
Plays random changes and looks, with a run of the tests among them, in repositories of all difficulties, and copies each
episode at its end: by `fork`, by an instance that repeats the actions, and through a folder on disk.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from verl_hier.sandbox import scripts
from verl_hier_plugins.environments.repository.environment import RepositoryEnvironment, build
from verl_hier_plugins.environments.repository.options import RepositoryOptions
from verl_hier_plugins.environments.repository.tasks import tasks
from verl_hier_plugins.environments.repository.workspace import Workspace


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repositories", type=int, default=50)
    parser.add_argument("--actions", type=int, default=8)
    arguments = parser.parse_args()
    options = RepositoryOptions((0, 1, 2, 3), pool=arguments.repositories, max_steps=arguments.actions + 2)
    took: dict[str, list[float]] = {"snapshot": [], "replay": [], "replay, answers of tests known": [], "folder": []}
    for number, task in enumerate(tasks(options, "train")):
        world, said = build(options), list[str]()
        world.reset(task, 0)
        rng = random.Random(number)
        while len(said) < arguments.actions:
            said.append(_action(world, rng, len(said)))
            world.step(said[-1])
        again = build(options)
        took["replay, answers of tests known"].append(_seconds(lambda: _replayed(again, task, said)))  # noqa: B023
        scripts._kept.cache_clear()
        took["replay"].append(_seconds(lambda: _replayed(again, task, said)))  # noqa: B023
        took["snapshot"].append(_seconds(world.fork))
        took["folder"].append(_seconds(lambda: _through_folder(world.workspace)))  # noqa: B023
        assert dict(again.workspace) == dict(world.fork().workspace) == _through_folder(world.workspace)
    for way, seconds in took.items():
        spread = statistics.quantiles(seconds, n=10)
        print(
            f"{way}: median {statistics.median(seconds) * 1e3:.3f} ms, 90% {spread[-1] * 1e3:.3f} ms ({len(seconds)})"
        )


def _action(world: RepositoryEnvironment, rng: random.Random, number: int) -> str:
    if number == 3:
        return "test"
    path, first = rng.choice([*world.workspace]), rng.randint(1, 4)
    return rng.choice((f"read {path}", f"replace {path} {first} x = {number}", f"write notes_{number}.txt\nnoted"))


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _replayed(world: RepositoryEnvironment, task: Any, actions: list[str]) -> None:
    world.reset(task, 0)
    for action in actions:
        world.step(action)


def _through_folder(workspace: Workspace) -> dict[str, str]:
    """The files, written to a folder and read back."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in workspace.items():
            place = Path(folder, path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
        return {path: Path(folder, path).read_text(encoding="utf-8") for path in workspace}


if __name__ == "__main__":
    main()
