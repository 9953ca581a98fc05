#!/usr/bin/env python3
"""What hierarchies and systems of agents learn beside their flat baselines: same task, start and generated tokens.

A comparison is a task and the methods that are trained on it. For each seed one small model learns the formats of all
of them from the same demonstrations; each method then trains it with stock verl until it has generated the same number
of tokens. Success is measured on held-out tasks, sampled as in training. Writes a JSON file with every curve and a PNG
of them, and prints a Markdown table.

    python scripts/bench/learning.py --out docs/learning
    python scripts/bench/learning.py --out docs/learning --comparisons bugs
    python scripts/bench/learning.py --out docs/learning --comparisons societies --hours 1
    python scripts/bench/learning.py --out docs/learning --comparisons at_length --hours 1   # again and again
    python scripts/bench/learning.py --out docs/learning --report     # only tables and plot, from the file
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from threading import Lock
from typing import Any

from cpu_run import CpuRun
from learning_report import at_budget, grouped, on_the_way, other_costs, plot, table
from learning_tasks import COLD_STARTS, COMPARISONS, GROUPS, SHORT

from verl_hier.coldstart.build import build
from verl_hier.errors import RecipeError
from verl_hier.ops.progress import validation_of
from verl_hier.recipe.check import check_ready
from verl_hier.recipe.compose import command, compose

TRIAL_SEED, TRIAL_SHARE = 99, 3
"""Seed of the trials of learning rates, and the part of the tokens that they have."""
COSTS = {
    "tokens": "hier/tokens/generated",
    "calls": "hier/counts/environment_calls",
    "seconds": "timing_s/step",
}
"""What a run spends, and the metric that counts it; measurements are left out of all of them."""


@dataclass(frozen=True)
class Run:
    """One method on one comparison's task with one seed.

    Attributes:
        trial: the learning rate that it tries; 0 for a run that counts.
    """

    comparison: str
    method: str
    seed: int
    trial: float = 0.0

    def folder(self, work: Path) -> Path:
        """Where its logs are."""
        place = f"rate_{self.trial}" if self.trial else f"seed_{self.seed}"
        return work / self.comparison / place / self.method

    @property
    def tokens(self) -> float:
        """Its budget."""
        return COMPARISONS[self.comparison].tokens / (TRIAL_SHARE if self.trial else 1)

    def beyond(self, curve: list[dict[str, Any]]) -> bool:
        """Whether a curve reaches the token budget."""
        return bool(curve) and curve[-1]["tokens"] >= self.tokens


class Results:
    """The curves of finished runs: those that a file holds, and those of runs in a folder of work, which are newer.

    Args:
        out: folder of the file.
        work: folder of models and logs.
    """

    def __init__(self, out: Path, work: Path) -> None:
        self._file, self._work = out / "learning.json", work
        self._lock = Lock()
        held = json.loads(self._file.read_text())["runs"] if self._file.is_file() else []
        self._curves = {Run(r["comparison"], r["method"], r["seed"], r.get("trial", 0.0)): r["curve"] for r in held}
        self._rates = {Run(r["comparison"], r["method"], r["seed"]): r["rate"] for r in held if r.get("rate")}

    def curve(self, run: Run) -> list[dict[str, Any]]:
        """Held-out success of a run over what it has spent; empty where it has not come to its budget."""
        made = curve_of(CpuRun(run.folder(self._work)).records())
        return made if run.beyond(made) else self._curves.get(run, [])

    def rate(self, run: Run) -> float:
        """The learning rate of a run: the one that it tries, or that did best in the trials; 0 for its recipe's."""
        rates = COMPARISONS[run.comparison].rates
        if run.trial or not rates:
            return run.trial
        trials = [Run(run.comparison, run.method, TRIAL_SEED, rate) for rate in rates]
        return max(trials, key=lambda trial: at_budget(self.curve(trial), trial.tokens)).trial

    def keep(self, runs: Sequence[Run], jobs: int) -> None:
        """Write the file, with the finished ones of these runs in it."""
        with self._lock:
            for run in runs:
                if curve := self.curve(run):
                    self._curves[run] = curve
                    if rate := self.rate(run):
                        self._rates[run] = rate
            order = {name: number for number, name in enumerate(COMPARISONS)}
            found = sorted(self._curves, key=lambda run: (order.get(run.comparison, len(order)), run.trial > 0))
            results = {
                "verl": version("verl"),
                "torch": version("torch"),
                "machine": f"{platform.machine()}, {os.cpu_count()} cores, {jobs} run(s) at a time",
                "runs": [self._entry(run) for run in found],
            }
            self._file.write_text(json.dumps(results, indent=1) + "\n")

    def _entry(self, run: Run) -> dict[str, Any]:
        more = {"trial": run.trial} if run.trial else {"rate": self._rates[run]} if run in self._rates else {}
        names = {"comparison": run.comparison, "method": run.method, "seed": run.seed}
        return {**names, **more, "curve": self._curves[run]}


def composed(run: Run) -> tuple[str, list[str]]:
    """The recipe of a run, and its overrides: the method's own, and what all methods share, but for the model."""
    comparison = COMPARISONS[run.comparison]
    recipe, *own = comparison.methods[run.method].split()
    return recipe, [
        *own,
        *comparison.overrides,
        f"hier.environment.validation={comparison.held_out}",
        f"hier.seed={run.seed}",
        f"data.seed={run.seed}",
        "actor_rollout_ref.rollout.val_kwargs.temperature=1.0",
        "actor_rollout_ref.rollout.val_kwargs.do_sample=true",
        "actor_rollout_ref.rollout.val_kwargs.n=1",
        "trainer.val_before_train=true",
        f"trainer.test_freq={comparison.test_every}",
        "trainer.total_training_steps=1000",
        "trainer.total_epochs=1000",
        "trainer.save_freq=-1",
    ]


def require_sound(runs: Sequence[Run]) -> None:
    """Refuse before the first cold start what a run would refuse after it. Seeds do not matter; give one a method.

    Raises:
        RecipeError: for a recipe that is wrong, or that this machine cannot run.
    """
    for run in runs:
        report, lacking = check_ready(compose(*composed(run)))
        for missing in lacking:
            if missing.commands != report.first:
                raise RecipeError(f"{run.comparison}, {run.method}: {missing.why}")


def train(end: float, run: Run, rate: float, model: Path, work: Path) -> None:
    """Train until a measurement lies at or beyond the token budget, unless it is later than `end` by the monotonic
    clock.

    Raises:
        RolloutError: when the run fails before that.
    """
    if time.monotonic() >= end:
        return
    recipe, overrides = composed(run)
    rates = [f"actor_rollout_ref.actor.optim.lr={rate}"] if rate else []
    arguments = command(recipe, [*overrides, *rates, f"actor_rollout_ref.model.path={model.resolve()}"])
    CpuRun(run.folder(work), arguments).finish(lambda records: run.beyond(curve_of(records)))


def curve_of(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Held-out success over generated tokens, calls of the world and seconds of the steps, from a run's metrics."""
    spent, curve = dict.fromkeys(COSTS, 0.0), []
    for record in records:
        for cost, metric in COSTS.items():
            spent[cost] += record.get(metric, 0.0)
        held_out = validation_of(record)
        if held_out is not None:
            curve.append({"step": record["step"], **spent, "success": held_out})
    return curve


def report(out: Path) -> None:
    """Tables and plot from the file of results."""
    file = out / "learning.json"
    results = json.loads(file.read_text()) if file.is_file() else {"runs": []}
    if not grouped(results):
        print("No run has come to its budget yet; call it again.")
        return
    plot(results, out / "learning.png")
    for lines in (table(results), other_costs(results), on_the_way(results)):
        print(*lines, "", sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/learning"), help="folder of the curves and their plot")
    parser.add_argument("--work", type=Path, default=Path("runs/learning"), help="folder of models and logs")
    parser.add_argument("--comparisons", nargs="+", default=SHORT, choices=[*COMPARISONS, *GROUPS])
    parser.add_argument(
        "--methods", nargs="+", help="only these methods of the comparisons; the others stay in the file"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--hours", type=float, default=math.inf, help="begin no run after so many hours; call it again")
    parser.add_argument("--report", action="store_true", help="only table and plot, from an earlier run's file")
    options = parser.parse_args()
    options.comparisons = list(
        dict.fromkeys(each for name in options.comparisons for each in GROUPS.get(name, (name,)))
    )
    known = {method for name in options.comparisons for method in COMPARISONS[name].methods}
    if unknown := sorted(set(options.methods or ()) - known):
        parser.error(f"--methods: {', '.join(unknown)} is none of {', '.join(sorted(known))}.")
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.report:
        measure(options)
    report(options.out)


def measure(options: argparse.Namespace) -> None:
    """Trials of learning rates, then runs; those that are finished, in `--work` or in the file, are not repeated."""
    end = time.monotonic() + 3600 * options.hours
    work: Path = options.work.resolve()
    results = Results(options.out, work)
    chosen = [
        (name, method)
        for name in options.comparisons
        for method in COMPARISONS[name].methods
        if method in (options.methods or [method])
    ]
    require_sound([Run(*each, seed=0) for each in chosen])
    trials = [Run(*each, TRIAL_SEED, rate) for each in chosen for rate in COMPARISONS[each[0]].rates]
    play(options, end, trials, results, work)
    if all(results.curve(trial) for trial in trials):
        play(options, end, [Run(*each, seed) for seed in range(options.seeds) for each in chosen], results, work)


def play(options: argparse.Namespace, end: float, runs: Sequence[Run], results: Results, work: Path) -> None:
    """Cold starts, then runs, `--jobs` at a time. A run that fails stops no other.

    Raises:
        Exception: that of the first run that failed, when the others have ended.
    """
    missing = [run for run in runs if not results.curve(run)]
    starts = list(dict.fromkeys((COMPARISONS[run.comparison].cold_start, run.seed) for run in missing))
    results.keep(runs, options.jobs)
    # In processes of their own: they seed torch and import transformers, which threads would share.
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        made = [pool.submit(start_in_time, end, name, seed, work) for name, seed in starts]
        models = dict(zip(starts, (future.result() for future in made), strict=True))
    with ThreadPoolExecutor(options.jobs) as threads:
        running = {}
        for run in missing:
            model = models[COMPARISONS[run.comparison].cold_start, run.seed]
            if model is not None:
                running[threads.submit(train, end, run, results.rate(run), model, work)] = run
        failed: list[BaseException] = []
        for future in as_completed(running):
            if error := future.exception():
                failed.append(error)
                print(f"{running[future]}: {error}", flush=True)
            elif curve := results.curve(running[future]):
                print(f"{running[future]}: {curve[0]['success']:.2f} -> {curve[-1]['success']:.2f}", flush=True)
                results.keep(runs, options.jobs)
        if failed:
            raise failed[0]


def start_in_time(end: float, name: str, seed: int, work: Path) -> Path | None:
    """The model of one cold start; None when it is later than `end`."""
    return start(name, seed, work) if time.monotonic() < end else None


def start(name: str, seed: int, work: Path) -> Path:
    """The model of one cold start."""
    recipes, options = COLD_STARTS[name]
    path = work / "cold_starts" / f"{name}_{seed}" / "model"
    configs = [
        compose(
            recipe,
            ["hier.coldstart.batch_size=24", *options, f"actor_rollout_ref.model.path={path}", f"hier.seed={seed}"],
        )
        for recipe in recipes
    ]
    return build(*configs, report=lambda text: print(f"{name}, seed {seed}: {text}", flush=True))


if __name__ == "__main__":
    main()
