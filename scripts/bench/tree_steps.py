#!/usr/bin/env python3
"""Whole steps of recipes with verl's engine and with the tree engine, on the same rollouts.

Each recipe is run by stock verl both ways, in the order A B B A. Servers are deterministic and the learning rate is 0,
so both engines get the same rows in every step, and so does every run; the script ends when they did not. It measures
the processor time of a step, which other work on the machine changes little: that of all processes of the run, and in
the worker that trains, of the update and of the log-probs of the old policy.

    verl-hier coldstart quickstart
    verl-hier coldstart tree_grpo_alfworld
    python scripts/bench/tree_steps.py --models runs/coldstart/quickstart/model runs/coldstart/alfworld_react/model \
        --out docs/tree_steps.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from cpu_run import CpuRun
from tree_engine_table import PARTS, steps_table

from verl_hier.compat.launch import Records
from verl_hier.recipe.compose import command

RECIPES = ("quickstart", "tree_grpo_alfworld")
ENGINES = {"stock": (), "tree": ("engine=tree",)}
METHODS = {"update_actor": "update_actor", "old_log_prob": "compute_log_prob"}
"""Ends of the names of the worker's methods."""
SAME = ("hier/rows/trained", "perf/total_num_tokens", "hier/sharing/unique_share", "hier/sharing/visible_share")


def arguments(recipe: str, engine: str, model: Path, steps: int) -> list[str]:
    """What runs a recipe with an engine."""
    overrides = [
        *ENGINES[engine],
        f"actor_rollout_ref.model.path={model.resolve()}",
        "actor_rollout_ref.actor.optim.lr=0",
        "actor_rollout_ref.rollout.engine_kwargs.transformers.deterministic=true",
        f"trainer.total_training_steps={steps}",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
    ]
    return command(recipe, overrides)


class ProcessorClock:
    """Counts what the processes of a run use, and reads it at the end of every step.

    Attributes:
        steps: seconds of each step, by `PARTS`.
    """

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self._used: dict[int, float] = {}
        self._total = dict.fromkeys(PARTS, 0.0)

    def __call__(self, records: Records) -> bool:
        """Look at the processes; called several times a second, and never ends the run."""
        for process in psutil.Process().children(recursive=True):
            try:
                doing, times = " ".join(process.cmdline()), process.cpu_times()
            except psutil.Error:  # it has ended meanwhile
                continue
            used = times.user + times.system
            spent, self._used[process.pid] = used - self._used.get(process.pid, 0.0), used
            self._total["step"] += spent
            # Ray writes the method that an actor is in, or was in last, into the title of its process.
            for part in PARTS[1:]:
                self._total[part] += spent if doing.rstrip().endswith(METHODS[part]) else 0.0
        if len(records) > len(self.steps):
            self.steps.append(self._total)
            self._total = dict.fromkeys(PARTS, 0.0)
        return False


Runs = dict[str, list[list[dict[str, float]]]]
"""The metrics of every step but the first of each run, which warms up, by engine."""


def measure(recipe: str, model: Path, steps: int, rounds: int, folder: Path) -> Runs:
    """Run a recipe with either engine, several times."""
    found: Runs = {engine: [] for engine in ENGINES}
    for number in range(rounds):
        for engine in list(ENGINES)[:: 1 if number % 2 == 0 else -1]:
            run, clock = CpuRun(folder / recipe / engine, arguments(recipe, engine, model, steps)), ProcessorClock()
            records = run.finish(enough=clock)
            found[engine].append([{**metrics, **used} for metrics, used in zip(records, clock.steps, strict=True)][1:])
            print(f"{recipe}, round {number + 1}: {engine} measured", flush=True)
    return found


def require_same_rows(found: Runs) -> None:
    """End with a sentence where the engines or the runs had different work."""
    first, *others = (run for runs in found.values() for run in runs)
    for run in others:
        for number, (expected, step) in enumerate(zip(first, run, strict=True), 2):
            for key in SAME:
                if abs(step[key] - expected[key]) > 1e-9 * abs(expected[key]):
                    sys.exit(f"not the same rollouts in step {number}: {key} is {expected[key]} and {step[key]}")


def described(recipe: str, found: Runs) -> dict[str, Any]:
    """Seconds of a step, in the mean of all steps and runs."""
    (first, *_) = found["stock"]
    unique, visible = (statistics.mean(step[key] for step in first) for key in SAME[2:])
    seconds = {
        engine: {part: statistics.mean(step[part] for run in runs for step in run) for part in PARTS}
        for engine, runs in found.items()
    }
    return {"recipe": recipe, "unique": unique, "visible": visible, **seconds}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--models", nargs="+", type=Path, required=True, help="a model for each recipe, in their order")
    parser.add_argument("--steps", type=int, default=5, help="steps of a run; the first is not counted")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each recipe with each engine")
    parser.add_argument("--work", type=Path, default=Path("runs/tree_steps"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=Path("runs/tree_steps.json"), help="file of the results")
    options = parser.parse_args()
    if len(options.models) != len(options.recipes):
        parser.error(f"{len(options.recipes)} recipes need as many --models, and {len(options.models)} are named")
    recipes = []
    for recipe, model in zip(options.recipes, options.models, strict=True):
        found = measure(recipe, model, options.steps, options.rounds, options.work)
        require_same_rows(found)
        recipes.append(described(recipe, found))
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "runs": options.rounds,
        "steps": options.steps,
        "verl": version("verl"),
        "torch": version("torch"),
    }
    measured = {"about": about, "recipes": recipes}
    options.out.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    print("\n".join(steps_table(measured)))


if __name__ == "__main__":
    main()
