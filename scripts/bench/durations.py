#!/usr/bin/env python3
"""What asynchronous trainers take when durations differ: the queue of the lab, and trees in the real trainer.

    python scripts/bench/durations.py lab
    verl-hier coldstart tree_grpo_frozenlake hier.coldstart.name=durations hier.coldstart.steps=60
    python scripts/bench/durations.py trees --model runs/coldstart/durations/model

`lab` plays verl's rules and `hier.launch_order` in a world in which slow tasks pay. `trees` trains frozen lakes under
`hier_separate_async`, with trees, by verl's rules and in the order of the launch, with as many independent episodes as
there are leaves, and with fewer that cost about as many tokens, and looks at how many versions of the weights each row
spans, and how old it is. Both parts are kept in docs/durations.json, arm by arm.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cpu_run import CpuRun

from verl_hier.compat.launch import Records
from verl_hier.lab.patience import HEAD, Patience, compared
from verl_hier.recipe.compose import command

ARMS = {
    "trees of 6 leaves": ("tree_grpo_frozenlake", "hier.launch_order=null"),
    "6 independent episodes": ("grpo_frozenlake", "actor_rollout_ref.rollout.n=6"),
    "4 independent episodes": ("grpo_frozenlake", "actor_rollout_ref.rollout.n=4"),
    "trees in the order of the launch": ("tree_grpo_frozenlake", "hier.launch_order={}"),
}
SETTINGS = (
    *("trainer.v1.trainer_mode=hier_separate_async", "trainer.v1.separate_async.parameter_sync_step=2"),
    *("actor_rollout_ref.rollout.nnodes=1", "actor_rollout_ref.rollout.n_gpus_per_node=1"),
    *("actor_rollout_ref.rollout.checkpoint_engine.backend=gloo", "data.gen_batch_size=1"),
    *("trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.save_freq=-1", "hier.store.path=null"),
    # The policy stays what it is, so that no arm's episodes become shorter than another's.
    "actor_rollout_ref.actor.optim.lr=0",
)
FIRST = 3
"""Steps that are not counted: the queue is not yet full."""
SPAN, AGE, OLDEST = (f"training/off_policy/trajectory_{name}" for name in ("spans", "staleness", "staleness_worst"))
TREES_HEAD = (
    *("task", "seconds of a task", "versions in a row", "most", "age", "oldest token"),
    *("steps later", "tokens a step", "seconds a step"),
)


def main() -> None:
    """Measure a part, keep it and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("lab", "trees"))
    parser.add_argument("--steps", type=int, help="of a run; 150 in the lab, 10 of the trainer when omitted")
    parser.add_argument("--model", type=Path, help="of `trees`: from the cold start of its recipes")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS), help="of `trees`")
    parser.add_argument("--work", type=Path, default=Path("runs/durations"), help="folder of the trainer's runs")
    parser.add_argument("--out", type=Path, default=Path("docs/durations.json"))
    options = parser.parse_args()
    held = json.loads(options.out.read_text(encoding="utf-8")) if options.out.is_file() else {}
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "verl": version("verl"),
    }
    if options.part == "lab":
        steps = options.steps or 150
        held["lab"] = {"about": about, "steps": steps, "rows": [list(row) for row in compared(Patience(), steps)]}
        write(options.out, held)
    elif options.model is None:
        parser.error("trees needs --model")
    for arm in options.arms if options.part == "trees" else ():
        steps = options.steps or 10
        found = {**held.get("trees", {}).get("rows", {}), arm: tree(arm, options.model, steps, options.work)}
        held["trees"] = {"about": about, "steps": steps, "rows": found}
        write(options.out, held)
    print("\n".join(" | ".join(row) for row in rows(options.part, held[options.part])))


def write(out: Path, held: dict[str, Any]) -> None:
    """Keep what is measured so far."""
    out.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")


def tree(arm: str, model: Path, steps: int, work: Path) -> dict[str, float]:
    """Run an arm."""
    recipe, line = ARMS[arm]
    places = [f"actor_rollout_ref.model.path={model.resolve()}", f"trainer.total_training_steps={steps}"]
    run = CpuRun(work / arm.replace(" ", "_"), command(recipe, [*SETTINGS, line, *places]))
    found = described(run.finish()[FIRST:])
    print(f"{arm}: {found}", flush=True)
    return found


def described(records: Records) -> dict[str, float]:
    """Means over the steps, and the most that there was."""

    def mean(key: str) -> float:
        return round(statistics.fmean(step[key] for step in records), 3)

    return {
        "task_s": mean("hier/durations/trained_s"),
        "versions": mean(f"{SPAN}/mean"),
        "most_versions": max(step[f"{SPAN}/max"] for step in records),
        "age": mean(f"{AGE}/mean"),
        "oldest": mean(f"{OLDEST}/mean"),
        "later": mean("hier/durations/steps_mean"),
        "tokens": mean("hier/tokens/generated"),
        "step_s": mean("timing_s/step"),
    }


def rows(part: str, measured: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """The head and the rows of a part's table."""
    if part == "lab":
        yield HEAD
        yield from (tuple(row) for row in measured["rows"])
        return
    yield TREES_HEAD
    for arm in (arm for arm in ARMS if arm in measured["rows"]):
        row = measured["rows"][arm]
        numbers = f"{row['versions']:.2f}", f"{row['most_versions']:.0f}", f"{row['age']:.2f}", f"{row['oldest']:.2f}"
        later = f"{row['later']:.2f}", f"{row['tokens']:,.0f}", f"{row['step_s']:.1f}"
        yield arm, f"{row['task_s']:.1f}", *numbers, *later


if __name__ == "__main__":
    main()
