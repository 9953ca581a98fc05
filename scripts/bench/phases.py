#!/usr/bin/env python3
"""What a phase of an alternating schedule costs beside the joint update, on the same rollouts.

HiMAC is run three ways by stock verl: all levels learn, only plans (A), only executions (B). Servers are deterministic
and the learning rate is 0, so the three have the same rollouts, and the rows of A and B are together those of the joint
run. Compared are the parts of a step that depend on what learns: log-probabilities of the old policy and the update.
Exits with 1 when a phase costs more than its share of the rows plus 10 % of the joint update.

    python scripts/bench/phases.py --quick
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from cpu_run import CpuRun

from verl_hier.coldstart.build import build
from verl_hier.recipe.compose import command, compose

RECIPE = "himac_alfworld"
ARMS = {
    "joint": ["hier.schedule={name: joint}"],
    "A": ["hier.schedule.levels=[0]"],
    "B": ["hier.schedule.levels=[1]"],
}
PARTS = ("old_log_prob", "update_actor")
ROWS, TOKENS = "hier/rows/trained", "perf/total_num_tokens"
TOLERANCE = 0.10


def overrides(arm: str, model: Path, steps: int) -> list[str]:
    """What differs from the recipe."""
    return [
        *ARMS[arm],
        f"actor_rollout_ref.model.path={model.resolve()}",
        "actor_rollout_ref.actor.optim.lr=0",
        "actor_rollout_ref.rollout.engine_kwargs.transformers.deterministic=true",
        f"trainer.total_training_steps={steps}",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
    ]


def run(arm: str, model: Path, steps: int, folder: Path) -> list[dict[str, float]]:
    """The metrics of every step of one run but the first, which warms up."""
    return CpuRun(folder / arm, command(RECIPE, overrides(arm, model, steps))).finish()[1:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one run of each kind instead of four, a short cold start")
    parser.add_argument("--steps", type=int, default=6, help="steps of a run; the first is not counted")
    parser.add_argument("--model", type=Path, help="a model that speaks HiMAC's ALFWorld format; made when omitted")
    parser.add_argument("--out", type=Path, default=Path("runs/phases"), help="folder of the model and the runs")
    options = parser.parse_args()
    found: dict[str, list[list[dict[str, float]]]] = {arm: [] for arm in ARMS}
    start = [
        f"actor_rollout_ref.model.path={options.out.resolve()}/coldstart/model",
        f"hier.coldstart.episodes={96 if options.quick else 480}",
        "hier.coldstart.batch_size=24",
        f"hier.coldstart.steps={300 if options.quick else 1300}",
    ]
    model = options.model or build(compose(RECIPE, start), report=lambda text: print(text, flush=True))
    for round_ in range(1 if options.quick else 4):
        for arm in list(ARMS)[:: 1 if round_ % 2 == 0 else -1]:
            found[arm].append(run(arm, model, options.steps, options.out))
            print(f"round {round_ + 1}: {arm} measured", flush=True)
    return report(found)


def report(found: dict[str, list[list[dict[str, float]]]]) -> int:
    """Print the table; 1 when a phase costs too much, or the rollouts were not the same."""
    for runs in zip(*found.values(), strict=True):
        for joint, a, b in zip(*runs, strict=True):
            if joint[ROWS] != a[ROWS] + b[ROWS]:
                print(f"not the same rollouts: {joint[ROWS]:.0f} rows in the joint run, {a[ROWS]:.0f} + {b[ROWS]:.0f}")
                return 1
    steps = {arm: [step for run in runs for step in run] for arm, runs in found.items()}
    seconds = {
        arm: statistics.median(sum(step[f"timing_s/{part}"] for part in PARTS) for step in steps[arm]) for arm in ARMS
    }
    amounts = {arm: [statistics.mean(step[key] for step in steps[arm]) for key in (ROWS, TOKENS)] for arm in ARMS}
    print(f"\n{' + '.join(PARTS)}, median of {len(steps['joint'])} steps\n")
    print("| phase | rows | of all | tokens | of all | seconds | of the joint update | limit |")
    print("|---|---|---|---|---|---|---|---|")
    broken = []
    for arm in ARMS:
        rows, tokens = (mine / all_ for mine, all_ in zip(amounts[arm], amounts["joint"], strict=True))
        cost, limit = seconds[arm] / seconds["joint"], rows + TOLERANCE
        print(
            f"| {arm} | {amounts[arm][0]:.0f} | {rows:.2f} | {amounts[arm][1]:.0f} | {tokens:.2f} "
            f"| {seconds[arm]:.2f} | {cost:.2f} | {'–' if arm == 'joint' else f'{limit:.2f}'} |"
        )
        if arm != "joint" and cost > limit:
            broken.append(f"phase {arm} costs {cost:.2f} of the joint update (limit {limit:.2f})")
    print("\n" + ("\n".join(broken) or "all limits kept"))
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
