#!/usr/bin/env python3
"""Cold starts of the CPU recipes: how long they take, and how often the policy succeeds afterwards.

For each recipe: `verl-hier coldstart RECIPE`, then a run of stock verl that measures success on the held-out tasks
before its first step and takes two training steps. Writes what it found to a JSON file, after each recipe, from which
the table of docs/cold_starts.md is made.

    python scripts/bench/cold_starts.py --out docs/cold_starts.json
    python scripts/bench/cold_starts.py --out docs/cold_starts.json hiper_alfworld coda_alfworld
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cpu_run import CpuRun

from verl_hier.coldstart.build import model_folder, read_record
from verl_hier.ops.progress import validation_of
from verl_hier.recipe.catalogue import recipes
from verl_hier.recipe.compose import command
from verl_hier.recipe.composed import ComposedRecipe

STEPS = 2
OVERRIDES = (
    "trainer.val_before_train=true",
    f"trainer.total_training_steps={STEPS}",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shipped = [recipe.name for recipe in recipes() if "cpu" in recipe.sizes]
    parser.add_argument("recipes", nargs="*", default=shipped, help="omitted: every recipe that has the size cpu")
    parser.add_argument("--out", type=Path, default=Path("runs/cold_starts.json"), help="file of the results")
    parser.add_argument("--work", type=Path, default=Path("runs/cold_starts"), help="folder of models and logs")
    options = parser.parse_args()
    out = options.out.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    os.chdir(options.work)
    for name in options.recipes:
        found = measure(name)
        known = json.loads(out.read_text()) if out.is_file() else {}
        out.write_text(json.dumps({**known, name: found}, indent=1, sort_keys=True) + "\n")
        print(f"{name}: {found}", flush=True)


def measure(name: str) -> dict[str, Any]:
    """The cold start of one recipe in the present folder, and what verl measures from there."""
    recipe = ComposedRecipe.named(name)
    subprocess.run([sys.executable, "-m", "verl_hier.cli.main", "coldstart", name], check=True)
    model = model_folder(recipe)
    started = time.monotonic()
    path = f"actor_rollout_ref.model.path={model.resolve()}"
    steps = CpuRun(Path("train") / name, command(name, [*OVERRIDES, path])).finish()
    successes = [value for value in map(validation_of, steps) if value is not None]
    trained = [step for step in steps if "actor/grad_norm" in step]
    if len(trained) != STEPS:
        raise SystemExit(f"{name}: {len(trained)} training steps instead of {STEPS}")
    record = read_record(model)
    return {
        "environment": recipe.parts.environment.spec.name,
        "worker": recipe.parts.worker.spec.name,
        "model": str(model),
        "contexts": record["contexts"],
        "steps": record["settings"]["steps"],
        "cold_start_s": record["seconds"],
        "tasks": len(recipe.parts.environment.spec.tasks(recipe.parts.environment.options, "val")),
        "success": successes[0],
        "train_s": round(time.monotonic() - started, 1),
        "verl": version("verl"),
        "torch": version("torch"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "date": time.strftime("%Y-%m-%d"),
    }


if __name__ == "__main__":
    main()
