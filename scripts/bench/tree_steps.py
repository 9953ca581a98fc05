#!/usr/bin/env python3
"""Whole steps of recipes with verl's engine and with the tree engine, on the same rollouts.

Each recipe is run by stock verl both ways, in the order A B B A. Servers are deterministic and the learning rate is 0,
so both engines get the same rows in every step; the script ends when they did not. It prints the times of a step, of
the log-probs of the old policy, and of the update.

    python scripts/bench/tree_steps.py --models runs/quickstart/coldstart/model runs/coldstart/alfworld_react/model
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from cpu_run import CpuRun

from verl_hier.recipe.compose import command

RECIPES = ("himac_alfworld", "tree_grpo_alfworld")
ENGINES = {"stock": (), "tree": ("engine=tree",)}
PARTS = ("step", "old_log_prob", "update_actor")
SAME = ("hier/rows/trained", "perf/total_num_tokens", "hier/sharing/unique_share", "hier/sharing/visible_share")


def overrides(model: Path, steps: int) -> list[str]:
    """What differs from the recipe, with either engine."""
    return [
        f"actor_rollout_ref.model.path={model.resolve()}",
        "actor_rollout_ref.actor.optim.lr=0",
        "actor_rollout_ref.rollout.engine_kwargs.transformers.deterministic=true",
        f"trainer.total_training_steps={steps}",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
    ]


def measure(recipe: str, model: Path, steps: int, rounds: int, folder: Path) -> dict[str, list[dict[str, float]]]:
    """The metrics of every step but the first of each run, which warms up, by engine."""
    found: dict[str, list[dict[str, float]]] = {engine: [] for engine in ENGINES}
    for number in range(rounds):
        for engine in list(ENGINES)[:: 1 if number % 2 == 0 else -1]:
            run = CpuRun(folder / recipe / engine, command(recipe, [*ENGINES[engine], *overrides(model, steps)]))
            found[engine] += run.finish()[1:]
            print(f"{recipe}, round {number + 1}: {engine} measured", flush=True)
    return found


def require_same_rows(found: dict[str, list[dict[str, float]]]) -> None:
    """End with a sentence where the engines had different work."""
    for number, (stock, tree) in enumerate(zip(*found.values(), strict=True)):
        for key in SAME:
            if abs(stock[key] - tree[key]) > 1e-9 * abs(stock[key]):
                sys.exit(f"not the same rollouts in measurement {number}: {key} is {stock[key]} and {tree[key]}")


def line(recipe: str, found: dict[str, list[dict[str, float]]]) -> str:
    """A row of the table."""
    shares = " | ".join(f"{statistics.mean(step[key] for step in found['stock']):.2f}" for key in SAME[2:])
    cells = []
    for part in PARTS:
        stock, tree = (statistics.median(step[f"timing_s/{part}"] for step in found[engine]) for engine in ENGINES)
        cells.append(f"{stock:.2f} → {tree:.2f} s ({tree / stock:.2f})")
    return f"| `{recipe}` | {shares} | {' | '.join(cells)} |"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--models", nargs="+", type=Path, required=True, help="a model for each recipe, in their order")
    parser.add_argument("--steps", type=int, default=5, help="steps of a run; the first is not counted")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each recipe with each engine")
    parser.add_argument("--out", type=Path, default=Path("runs/tree_steps"), help="folder of the runs")
    options = parser.parse_args()
    if len(options.models) != len(options.recipes):
        parser.error(f"{len(options.recipes)} recipes need as many --models, and {len(options.models)} are named")
    lines = []
    for recipe, model in zip(options.recipes, options.models, strict=True):
        found = measure(recipe, model, options.steps, options.rounds, options.out)
        require_same_rows(found)
        lines.append(line(recipe, found))
    print("\n| recipe | unique tokens | visible pairs | step | log-probs | update |\n|---|---|---|---|---|---|")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
