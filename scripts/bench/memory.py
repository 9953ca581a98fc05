#!/usr/bin/env python3
"""Does a library that is read at each turn change what is reached, whether weights learn or rest?

The world is a house of locks (`house_of_locks/`): which room holds the keys of a make is true of all doors, is told by
nobody, and is asked for only after the first action. A small model learns once, from demonstrations in other houses, to
fetch a key from any room, and from the right one where a lesson says it. Then it works in houses that it does not know:
without a library, with one that is read before the first turn, and with one that is read before each turn.

With weights that rest the worker and the schedule of the recipe are played without a trainer; with weights that learn
they are trained by the real one, with `--weights frozen` too, where the trainer never updates the actor.

    python scripts/bench/memory.py --out runs/memory.json                           # weights that rest, three houses
    python scripts/bench/memory.py --weights learn --seeds 1 --out runs/learn.json  # the trainer, a run of each arm
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from verl_hier.graph.build_table import build_table
from verl_hier.graph.success import decided
from verl_hier.ops.players import player_of
from verl_hier.ops.rollouts import Plan, play, resolve_plan
from verl_hier.recipe.compose import compose
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.rollout import Request

WORLD = Path(__file__).parent / "house_of_locks"
RECIPE = WORLD / "house_of_locks.yaml"
MODEL = Path("runs/coldstart/house_of_locks/model")
ARMS = {
    "none": ["hier.worker.readers=[]"],
    "task": ["hier.worker.read=task", "hier.worker.query='{instruction}'"],
    "turn": [],
}
WEIGHTS = {"rest": [], "frozen": ["trainer.critic_warmup=1000000"], "learn": []}
TRAINED, HELD_OUT = "hier/episodes/success", "hier/validation/success"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS), help="when the library is read")
    parser.add_argument("--weights", default="rest", choices=list(WEIGHTS), help="what becomes of the weights")
    parser.add_argument("--seeds", type=int, default=3, help="houses, each with a seed of its own")
    parser.add_argument("--steps", type=int, default=8, help="steps of eight doors")
    parser.add_argument("--n", type=int, default=4, help="episodes of a door")
    parser.add_argument("--folder", type=Path, default=Path("runs/memory"), help="where models and runs are kept")
    parser.add_argument("--out", type=Path, default=Path("runs/memory.json"), help="file of the results")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as site:
        install(Path(site))
        command(options.folder, ["coldstart", str(RECIPE)])
        measure = rest if options.weights == "rest" else train
        rows = [measure(options, arm, seed) for seed in range(options.seeds) for arm in options.arms]
    where = {"machine": platform.platform(), "cores": os.cpu_count(), "day": time.strftime("%Y-%m-%d")}
    written = {"weights": options.weights, "steps": options.steps, "n": options.n, **where, "rows": rows}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(written, indent=1) + "\n")
    print("\n".join(table(rows)))


def install(site: Path) -> None:
    """Write the world as an installed distribution, which only has to be on the path."""
    info = site / "house_of_locks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: house-of-locks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[verl_hier.plugins]\nhouse_of_locks = house_of_locks\n")
    (site / "house_of_locks.py").write_text((WORLD / "house_of_locks.py").read_text())
    sys.path.insert(0, str(site))
    # Environments run in processes of their own.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))


def command(folder: Path, words: Sequence[str]) -> None:
    """One command of verl-hier that knows the world, in a folder."""
    program = str(Path(sys.executable).parent / "verl-hier")
    ran = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"verl-hier {' '.join(words)} failed:\n{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}")


def rest(options: argparse.Namespace, arm: str, seed: int) -> dict[str, Any]:
    """Steps of the worker and the schedule, with the model as it is; then the held-out doors, with the library."""
    overrides = [f"hier.environment.house={seed}", f"hier.seed={seed}", *ARMS[arm]]
    recipe = ComposedRecipe.of(compose(str(RECIPE), overrides))
    return asyncio.run(_rest(recipe, options, arm, seed))


async def _rest(recipe: ComposedRecipe, options: argparse.Namespace, arm: str, seed: int) -> dict[str, Any]:
    part = recipe.parts.schedule
    schedule, player = part.spec.factory(part.options), player_of(str(options.folder / MODEL), recipe)
    doors = resolve_plan(recipe, Plan(split="train")).tasks
    drawn = random.Random(f"doors of {seed}")
    reached, figures = [], {}
    try:
        for step in range(1, options.steps + 1):
            chosen = drawn.sample(doors, 8)
            told = schedule.told(step, [number for number, _ in chosen])
            requests = [
                _request(task, number, step, known, options.n)
                for (number, task), known in zip(chosen, told, strict=True)
            ]
            graphs = list(await asyncio.gather(*(player.play(request) for request in requests)))
            figures = schedule.table_ready(build_table(graphs), step)
            reached.append(success(graphs))
        held_out = await play(recipe, player, Plan(step=options.steps), schedule=schedule)
    finally:
        await player.close()
    return report({"arm": arm, "seed": seed, "trained": reached, "held_out": success(held_out), "library": figures})


def _request(task: dict[str, Any], number: int, step: int, told: dict[str, Any], n: int) -> Request:
    identity = {"uid": f"{step}-{number}", "index": number, "instruction": task["instruction"]}
    return Request(task=task, identity=identity, n=n, step=step, told=told)


def success(graphs: Sequence[Any]) -> float:
    """Share of the solved episodes."""
    return fmean(float(bool(won)) for episodes in decided(graphs) for _, won in episodes)


def train(options: argparse.Namespace, arm: str, seed: int) -> dict[str, Any]:
    """One run of the trainer: success by step, that of the held-out doors at the end, and the library."""
    name = f"{options.weights}_{arm}_{seed}"
    ends = [f"trainer.{line}={options.steps}" for line in ("total_training_steps", "test_freq", "save_freq")]
    overrides = [f"hier.environment.house={seed}", f"hier.seed={seed}", f"data.seed={seed}", *ends]
    overrides += [f"actor_rollout_ref.rollout.n={options.n}", *WEIGHTS[options.weights], *ARMS[arm]]
    command(options.folder, ["train", str(RECIPE), "--name", name, *overrides])
    (file,) = options.folder.glob(f"runs/*/{name}/metrics.jsonl")
    steps = [json.loads(line) for line in file.read_text().splitlines()]
    steps = [step.get("data", step) for step in steps]
    library = {key: value for key, value in steps[-1].items() if key.startswith("hier/skills/")}
    reached = [step[TRAINED] for step in steps if TRAINED in step]
    return report({"arm": arm, "seed": seed, "trained": reached, "held_out": steps[-1][HELD_OUT], "library": library})


def report(row: dict[str, Any]) -> dict[str, Any]:
    """Say what an arm has reached."""
    steps = " ".join(f"{share:.2f}" for share in row["trained"])
    print(f"{row['arm']} in house {row['seed']}: {steps}, held out {row['held_out']:.2f}", flush=True)
    return row


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Means over the houses: the first and the last quarter of the steps, and the held-out doors at the end."""
    lines = [f"{'library is read':<16} {'first quarter':>14} {'last quarter':>13} {'held out':>9}"]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        mine = [row for row in rows if row["arm"] == arm]
        parts = [max(len(row["trained"]) // 4, 1) for row in mine]
        first = fmean(fmean(row["trained"][:part]) for row, part in zip(mine, parts, strict=True))
        last = fmean(fmean(row["trained"][-part:]) for row, part in zip(mine, parts, strict=True))
        held = fmean(row["held_out"] for row in mine)
        spread = " ".join(f"{row['held_out']:.2f}" for row in mine)
        lines.append(f"{arm:<16} {first:>14.2f} {last:>13.2f} {held:>9.2f}   ({spread})")
    return lines


if __name__ == "__main__":
    main()
