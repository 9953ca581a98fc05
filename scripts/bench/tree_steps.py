#!/usr/bin/env python3
"""Whole steps of recipes with verl's engine and with the tree engine, on the same rollouts.

Each recipe is run by stock verl both ways, in the order A B B A. Servers are deterministic and the learning rate is 0,
so both engines get the same rows in every step, and so does every run; the script ends when they did not. The times are
verl's own, of a step, its update and the log-probs of the old policy; nothing else should run on the machine.

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

from cpu_run import CpuRun
from tree_engine_table import PARTS, steps_table

from verl_hier.compat.launch import Records
from verl_hier.recipe.compose import command

RECIPES = ("quickstart", "tree_grpo_alfworld")
ENGINES = {"stock": (), "tree": ("engine=tree",)}
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


Runs = dict[str, list[Records]]
"""The metrics of every step but the first of each run, which warms up, by engine."""


def measure(recipe: str, model: Path, steps: int, rounds: int, folder: Path) -> Runs:
    """Run a recipe with either engine, several times."""
    found: Runs = {engine: [] for engine in ENGINES}
    for number in range(rounds):
        for engine in list(ENGINES)[:: 1 if number % 2 == 0 else -1]:
            run = CpuRun(folder / recipe / engine, arguments(recipe, engine, model, steps))
            found[engine].append(run.finish()[1:])
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
    """Seconds of a step, in the median of all steps and runs."""
    (first, *_) = found["stock"]
    unique, visible = (statistics.mean(step[key] for step in first) for key in SAME[2:])
    seconds = {
        engine: {part: statistics.median(step[f"timing_s/{part}"] for run in runs for step in run) for part in PARTS}
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
