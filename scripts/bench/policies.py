#!/usr/bin/env python3
"""What several policies cost: one model for all roles, an adapter for each role, a model for each role.

    python scripts/bench/policies.py --quick

trains AT-GRPO's solver and checker on generated mathematics, once with each choice of `hier/policies`, from one random
model of the recipe's own vocabulary and by one seed. Of each run it prints the median seconds of a step but the first,
those in which the policies are updated and their weights brought to the servers, the most memory that its processes
held together, how many there were, and the seconds before the first step. Memory is PSS: each page of memory counts
once, also where processes share it. Exits with 1 where it is not within 15 % of what `verl-hier check` expects.

Other programs make all of it slower and share pages with it: the machine should be idle.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from cpu_run import CpuRun

from verl_hier.coldstart.build import random_model
from verl_hier.compat.launch import Records
from verl_hier.recipe.check import check_recipe
from verl_hier.recipe.compose import command, compose
from verl_hier.recipe.composed import ComposedRecipe

RECIPE = "at_grpo_team_math"
FORMS = ("shared", "adapters", "separate")
LIMIT = 0.15
"""How far memory may be from what is expected, as a share of what was measured."""
MARK = "VERL_HIER_BENCH"
"""Names a run in the environment of all its processes."""
LOOK_S = 2.0


@dataclass(frozen=True)
class Cost:
    """What one run has cost.

    Attributes:
        form: choice of `hier/policies`.
        step_s, update_s, weights_s: medians over the steps but the first.
        start_s: seconds before the first step.
        processes: the most at once, with those of Ray.
        memory: bytes (PSS) that they held together at most.
        expected: bytes that `verl-hier check` expects.
    """

    form: str
    step_s: float
    update_s: float
    weights_s: float
    start_s: float
    processes: int
    memory: int
    expected: int

    @property
    def off(self) -> float:
        """How far the expectation is off, as a share of what was measured."""
        return self.expected / self.memory - 1


class Watcher(threading.Thread):
    """Looks at the processes of a run every few seconds."""

    def __init__(self, run: str) -> None:
        """
        Args:
            run: value of `MARK` in the environment of its processes.
        """
        super().__init__(daemon=True)
        self.memory, self.processes = 0, 0
        self._run = f"{MARK}={run}".encode()
        self._over = threading.Event()

    def run(self) -> None:
        """Look until `finish` is called."""
        while not self._over.wait(LOOK_S):
            found = list(self._held())
            self.memory, self.processes = max(self.memory, sum(found)), max(self.processes, len(found))

    def finish(self) -> None:
        """Stop looking."""
        self._over.set()
        self.join()

    def _held(self) -> Iterator[int]:
        """Bytes of each process of the run but this one."""
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if process.name != str(os.getpid()) and self._run in (process / "environ").read_bytes().split(b"\0"):
                    yield pss((process / "smaps_rollup").read_text())
            except OSError:
                continue  # It ended while we looked at it.


def pss(rollup: str) -> int:
    """Bytes of the line `Pss:` of a file `/proc/PID/smaps_rollup`; 0 without one."""
    return next((int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:")), 0)


def overrides(form: str, model: Path, steps: int, tasks: int) -> list[str]:
    """The recipe of a run, in words of the command line."""
    return [
        f"policies={form}",
        f"actor_rollout_ref.model.path={model}",
        f"data.train_batch_size={tasks}",
        f"trainer.total_training_steps={steps}",
        *("trainer.save_freq=-1", "trainer.test_freq=-1", "hier.store.path=null"),
    ]


def measured(form: str, folder: Path, words: list[str]) -> Cost:
    """Run it and say what it has cost."""
    expected = check_recipe(compose(RECIPE, words)).memory
    assert expected is not None
    run, begun, first = CpuRun(folder / form, command(RECIPE, words)), time.monotonic(), list[float]()

    def note_first(records: Records) -> bool:
        if not first and any("timing_s/step" in record for record in records):
            first.append(time.monotonic() - begun)
        return False

    os.environ[MARK] = f"{os.getpid()}-{form}"
    watcher = Watcher(os.environ[MARK])
    watcher.start()
    try:
        records = [record for record in run.finish(note_first) if "timing_s/step" in record]
    finally:
        watcher.finish()

    def median(name: str) -> float:
        return statistics.median(record[f"timing_s/{name}"] for record in records[1:])

    start = first[0] - records[0]["timing_s/step"]
    parts = (median("step"), median("update_actor"), median("update_weights"))
    return Cost(form, *parts, start, watcher.processes, watcher.memory, expected)


def table(costs: list[Cost]) -> Iterator[str]:
    """The lines of a Markdown table."""
    yield "| `hier/policies` | a step | updates | weights to servers | start | processes | memory (PSS) | expected |"
    yield "|---|---|---|---|---|---|---|---|"
    for cost in costs:
        yield (
            f"| `{cost.form}` | {cost.step_s:.2f} s | {cost.update_s:.2f} s | {cost.weights_s:.2f} s "
            f"| {cost.start_s:.0f} s | {cost.processes} | {cost.memory / 2**30:.2f} GiB "
            f"| {cost.expected / 2**30:.2f} GiB ({100 * cost.off:+.0f} %) |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="6 steps instead of 24")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS, help="what to run; all three if omitted")
    parser.add_argument("--out", type=Path, default=Path("runs/policies"), help="folder of the model and the runs")
    options = parser.parse_args()
    folder = options.out.resolve()
    model = folder / "model"
    if not (model / "config.json").is_file():
        random_model([ComposedRecipe.named(RECIPE)], model)
    costs = []
    for form in options.forms:
        costs.append(measured(form, folder, overrides(form, model, 6 if options.quick else 24, tasks=8)))
        print(f"{form}: {costs[-1].memory / 2**30:.2f} GiB, {costs[-1].step_s:.2f} s a step", flush=True)
    (folder / "policies.json").write_text(json.dumps([asdict(cost) for cost in costs], indent=1))
    print("", *table(costs), sep="\n")
    wrong = [cost.form for cost in costs if abs(cost.off) > LIMIT]
    if wrong:
        print(f"what `verl-hier check` expects is more than {100 * LIMIT:.0f} % off: {', '.join(wrong)}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
