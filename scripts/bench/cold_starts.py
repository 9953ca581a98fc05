#!/usr/bin/env python3
"""Cold starts of the CPU recipes: how long they take, and how often the policy succeeds afterwards.

For each recipe `verl-hier coldstart RECIPE`, then `verl-hier eval MODEL RECIPE` on its held-out tasks. Writes what it
found to a JSON file, after each recipe, from which the table of docs/cold_starts.md is made. Recipes that play the same
tasks with the same worker and the same model have the same figures, which are measured once.

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

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.fixtures.kept_models import kept_models
from verl_hier.coldstart.build import model_folder, read_record
from verl_hier.recipe.catalogue import recipes
from verl_hier.recipe.composed import ComposedRecipe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shipped = [recipe.name for recipe in recipes() if "cpu" in recipe.sizes]
    parser.add_argument("recipes", nargs="*", default=shipped, help="omitted: every recipe that has the size cpu")
    parser.add_argument("--out", type=Path, default=Path("runs/cold_starts.json"), help="file of the results")
    parser.add_argument("--work", type=Path, help="folder of the models; omitted: that of the long tests")
    options = parser.parse_args()
    out = options.out.resolve()
    work = options.work or kept_models()
    work.mkdir(parents=True, exist_ok=True)
    os.chdir(work)
    played: dict[str, dict[str, Any]] = {}
    failed = []
    for name in options.recipes:
        try:
            found = measure(name, played)
        except subprocess.CalledProcessError:
            failed.append(name)
            continue
        known = json.loads(out.read_text()) if out.is_file() else {}
        out.write_text(json.dumps({**known, name: found}, indent=1, sort_keys=True) + "\n")
        print(f"{name}: {found}", flush=True)
    if failed:
        sys.exit(f"not measured, for the reasons above: {', '.join(failed)}")


def measure(name: str, played: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Make the model of a recipe and play its held-out tasks, or find both; `played` remembers what was played."""
    recipe = ComposedRecipe.named(name)
    verl_hier("coldstart", name)
    model = model_folder(recipe)
    same = repr((model, recipe.parts.environment, recipe.parts.worker, recipe.limits))
    if same not in played:
        played[same] = json.loads(verl_hier("eval", str(model), name, "--json"))
    return described(read_record(model), played[same])


def verl_hier(*arguments: str) -> str:
    """What a command prints on stdout."""
    command = [sys.executable, "-m", "verl_hier.cli.main", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def described(record: dict[str, Any], played: dict[str, Any]) -> dict[str, Any]:
    """What a cold start has written about its model, and what the model then reached."""
    return {
        "contexts": record["contexts"],
        "steps": record["settings"]["steps"],
        "core_seconds": record.get("core_seconds"),
        "episodes": played["episodes"],
        "success": played["success"],
        "temperature": played["temperature"],
        "verl": version("verl"),
        "torch": version("torch"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "date": time.strftime("%Y-%m-%d"),
    }


if __name__ == "__main__":
    main()
