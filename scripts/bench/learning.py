#!/usr/bin/env python3
"""What hierarchies and systems of agents learn beside their flat baselines: same task, start and generated tokens.

A comparison is a task and the methods that are trained on it. For each seed one small model learns the formats of all
of them from the same demonstrations; each method then trains it with stock verl until it has generated the same number
of tokens. Success is measured on held-out tasks, sampled as in training. Writes a JSON file with every curve and a PNG
of them, and prints a Markdown table.

    python scripts/bench/learning.py --out docs/learning
    python scripts/bench/learning.py --out docs/learning --comparisons bugs
    python scripts/bench/learning.py --out docs/learning --comparisons societies --hours 1
    python scripts/bench/learning.py --out docs/learning --report     # only table and plot, from the file
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from cpu_run import CpuRun

from verl_hier.coldstart.build import build
from verl_hier.ops.progress import validation_of
from verl_hier.recipe.compose import command, compose

VALIDATION = 128
ONE_AND_TWO = "hier.coldstart.variants=[{goals: 1}, {goals: 2}]"
COLD_STARTS = {
    "households": (("himac_alfworld", "grpo_alfworld"), (ONE_AND_TWO, "hier.coldstart.steps=2000")),
    "systems": (
        ("metaagentx_alfworld", "chain_of_agents_alfworld", "grpo_alfworld"),
        ("hier.coldstart.steps=1300",),
    ),
    "bugs": (("dual_loop_bug_reproduction", "grpo_bug_reproduction"), ("hier.coldstart.steps=800",)),
    "clocks": (
        ("hiper_alfworld", "himac_alfworld", "grpo_alfworld"),
        (ONE_AND_TWO, "hier.coldstart.steps=2400"),
    ),
    "sums": (("dr_mas_math", "marft_math", "grpo_math"), ("hier.coldstart.steps=500",)),
    "questions": (("matpo_search", "grpo_search"), ("hier.coldstart.steps=600",)),
}
"""Recipes whose formats one model learns, and the options of its cold start."""


@dataclass(frozen=True)
class Comparison:
    """Methods on one task.

    Attributes:
        task: what the report calls it.
        methods: name in the report to recipe, and the overrides that are the method's own behind it; the last is the
            flat baseline.
        cold_start: which of `COLD_STARTS` all of them start from.
        tokens: generated tokens of each run.
        test_every: steps from one measurement to the next.
        overrides: what the task changes in all recipes.
    """

    task: str
    methods: Mapping[str, str]
    cold_start: str
    tokens: int
    test_every: int
    overrides: tuple[str, ...] = ()


FLAT = {"gigpo": "gigpo_alfworld", "grpo": "grpo_alfworld"}
HOUSEHOLDS = {"himac": "himac_alfworld", **FLAT}
CLOCKS = {
    "hiper": "hiper_alfworld",
    "hiper_no_critic": "hiper_alfworld hier/method=grpo hier.worker.name=switch_keep +hier.worker.history=0",
    **HOUSEHOLDS,
}
COMPARISONS = {
    "two_goals": Comparison("households, 2 goals", HOUSEHOLDS, "households", 55_000, 4, ("hier.environment.goals=2",)),
    "one_goal": Comparison("households, 1 goal", HOUSEHOLDS, "households", 40_000, 4, ("hier.environment.goals=1",)),
    "systems": Comparison(
        "households, 1 goal, designs and chains",
        {
            "metaagentx": "metaagentx_alfworld",
            "chain_of_agents": "chain_of_agents_alfworld",
            "grpo": "grpo_alfworld",
        },
        "systems",
        32_000,
        4,
    ),
    "bugs": Comparison(
        "tests that show bugs",
        {"dual_loop": "dual_loop_bug_reproduction", "grpo": "grpo_bug_reproduction"},
        "bugs",
        20_000,
        10,
    ),
    "clocks_one_goal": Comparison(
        "households, 1 goal, critics", CLOCKS, "clocks", 40_000, 4, ("hier.environment.goals=1",)
    ),
    "clocks_two_goals": Comparison(
        "households, 2 goals, critics", CLOCKS, "clocks", 55_000, 4, ("hier.environment.goals=2",)
    ),
    "solver_verifier": Comparison(
        "sums", {"dr_mas": "dr_mas_math", "marft": "marft_math", "grpo": "grpo_math"}, "sums", 40_000, 4
    ),
    "lead": Comparison("two-hop questions", {"matpo": "matpo_search", "grpo": "grpo_search"}, "questions", 40_000, 4),
}
GROUPS = {"critics": ("clocks_one_goal", "clocks_two_goals"), "societies": ("solver_verifier", "lead")}
"""Names for several comparisons."""
METHODS = list(dict.fromkeys(method for comparison in COMPARISONS.values() for method in comparison.methods))


@dataclass(frozen=True)
class Run:
    """One method on one comparison's task with one seed."""

    comparison: str
    method: str
    seed: int

    def folder(self, work: Path) -> Path:
        """Where its logs are."""
        return work / self.comparison / f"seed_{self.seed}" / self.method

    def curve(self, work: Path) -> list[dict[str, Any]]:
        """Held-out success over generated tokens, as far as the run has come."""
        return curve_of(CpuRun(self.folder(work)).records())

    def done(self, work: Path) -> bool:
        """Whether a measurement lies at or beyond the token budget."""
        return self.beyond(self.curve(work))

    def beyond(self, curve: list[dict[str, Any]]) -> bool:
        """Whether a curve reaches the token budget."""
        return bool(curve) and curve[-1]["tokens"] >= COMPARISONS[self.comparison].tokens


def overrides(run: Run, model: Path) -> list[str]:
    """What all methods share: tasks, sampling of held-out tasks, seeds."""
    comparison = COMPARISONS[run.comparison]
    return [
        *comparison.overrides,
        f"hier.environment.validation={VALIDATION}",
        f"hier.seed={run.seed}",
        f"data.seed={run.seed}",
        f"actor_rollout_ref.model.path={model.resolve()}",
        "actor_rollout_ref.rollout.val_kwargs.temperature=1.0",
        "actor_rollout_ref.rollout.val_kwargs.do_sample=true",
        "actor_rollout_ref.rollout.val_kwargs.n=1",
        "trainer.val_before_train=true",
        f"trainer.test_freq={comparison.test_every}",
        "trainer.total_training_steps=1000",
        "trainer.total_epochs=1000",
        "trainer.save_freq=-1",
    ]


def train(run: Run, model: Path, work: Path) -> None:
    """Train until a measurement lies at or beyond the token budget.

    Raises:
        RolloutError: when the run fails before that.
    """
    recipe, *own = COMPARISONS[run.comparison].methods[run.method].split()
    arguments = command(recipe, [*own, *overrides(run, model)])
    CpuRun(run.folder(work), arguments).finish(lambda records: run.beyond(curve_of(records)))


def train_until(end: float, run: Run, model: Path, work: Path) -> None:
    """Train, unless it is later than `end` by the monotonic clock."""
    if time.monotonic() < end:
        train(run, model, work)


def curve_of(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Held-out success over generated tokens, from a run's metrics."""
    tokens, curve = 0.0, []
    for record in records:
        tokens += record.get("hier/tokens/generated", 0.0)
        held_out = validation_of(record)
        if held_out is not None:
            curve.append({"step": record["step"], "tokens": tokens, "success": held_out})
    return curve


def at_budget(curve: list[dict[str, Any]], budget: float) -> float:
    """Success at the budget, linearly between the two measurements around it."""
    before, after = curve[0], curve[-1]
    for left, right in itertools.pairwise(curve):
        if left["tokens"] <= budget <= right["tokens"]:
            before, after = left, right
    share = (budget - before["tokens"]) / max(after["tokens"] - before["tokens"], 1)
    return before["success"] + min(max(share, 0.0), 1.0) * (after["success"] - before["success"])


def table(results: dict[str, Any]) -> str:
    """A Markdown table: mean (lowest to highest seed), before and at the budget."""
    lines = [
        "| tasks | tokens | method | seeds | success before | success after | points gained |",
        "|---|---|---|---|---|---|---|",
    ]
    for comparison, method, curves in grouped(results):
        before = [100 * curve[0]["success"] for curve in curves]
        after = [100 * at_budget(curve, comparison.tokens) for curve in curves]
        gain = [b - a for a, b in zip(before, after, strict=True)]
        cells = [f"{statistics.mean(v):.0f} ({min(v):.0f} to {max(v):.0f})" for v in (before, after, gain)]
        lines.append(f"| {comparison.task} | {comparison.tokens} | {method} | {len(curves)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def grouped(results: dict[str, Any]) -> list[tuple[Comparison, str, list[list[dict[str, Any]]]]]:
    """(comparison, method, curves of its seeds), in the order of `COMPARISONS`."""
    found = []
    for name, comparison in COMPARISONS.items():
        for method in comparison.methods:
            curves = [r["curve"] for r in results["runs"] if (r["comparison"], r["method"]) == (name, method)]
            if curves:
                found.append((comparison, method, curves))
    return found


def plot(results: dict[str, Any], path: Path) -> None:
    """One panel a comparison, one thin line a seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = grouped(results)
    tasks = list(dict.fromkeys(comparison.task for comparison, _, _ in groups))
    colours = dict(zip(METHODS, pyplot.get_cmap("turbo")(np.linspace(0.05, 0.95, len(METHODS))), strict=True))
    figure, axes = pyplot.subplots(
        1, len(tasks), figsize=(3.6 * len(tasks), 3.4), sharey=True, layout="constrained", squeeze=False
    )
    panels = dict(zip(tasks, axes[0], strict=True))
    for comparison, method, curves in groups:
        for number, curve in enumerate(curves):
            x, y = zip(*((point["tokens"] / 1000, 100 * point["success"]) for point in curve), strict=True)
            panels[comparison.task].plot(x, y, color=colours[method], alpha=0.8, label=None if number else method)
    for task, panel in panels.items():
        panel.set(title=task, xlabel="generated tokens (thousands)", ylim=(0, 100))
        panel.legend(frameon=False)
    axes[0][0].set_ylabel("held-out success (%)")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def report(out: Path) -> None:
    """Table and plot from the file of results."""
    results = json.loads((out / "learning.json").read_text())
    plot(results, out / "learning.png")
    print(table(results))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/learning"), help="folder of the curves and their plot")
    parser.add_argument("--work", type=Path, default=Path("runs/learning"), help="folder of models and logs")
    parser.add_argument("--comparisons", nargs="+", default=list(COMPARISONS), choices=[*COMPARISONS, *GROUPS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--hours", type=float, default=math.inf, help="begin no run after so many hours; call it again")
    parser.add_argument("--report", action="store_true", help="only table and plot, from an earlier run's file")
    options = parser.parse_args()
    options.comparisons = list(
        dict.fromkeys(each for name in options.comparisons for each in GROUPS.get(name, (name,)))
    )
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.report:
        measure(options)
    report(options.out)


def measure(options: argparse.Namespace) -> None:
    """Cold starts, then runs, `--jobs` at a time; finished runs in `--work` are used again."""
    end = time.monotonic() + 3600 * options.hours
    work: Path = options.work.resolve()
    runs = [
        Run(name, method, seed)
        for name in options.comparisons
        for method, seed in itertools.product(COMPARISONS[name].methods, range(options.seeds))
    ]
    missing = [run for run in runs if not run.done(work)]
    starts = list(dict.fromkeys((COMPARISONS[run.comparison].cold_start, run.seed) for run in missing))
    # In processes of their own: they seed torch and import transformers, which threads would share.
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        made = [pool.submit(start, name, seed, work) for name, seed in starts]
        models = dict(zip(starts, (future.result() for future in made), strict=True))
    record(options, runs, work)
    with ThreadPoolExecutor(options.jobs) as threads:
        running = {
            threads.submit(train_until, end, run, models[COMPARISONS[run.comparison].cold_start, run.seed], work): run
            for run in missing
        }
        for future in as_completed(running):
            future.result()
            if not running[future].done(work):
                continue
            curve = running[future].curve(work)
            print(f"{running[future]}: {curve[0]['success']:.2f} -> {curve[-1]['success']:.2f}", flush=True)
            record(options, runs, work)


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


def record(options: argparse.Namespace, runs: list[Run], work: Path) -> None:
    """Write the finished runs to the file of results; comparisons that were not asked for stay as they are in it."""
    file: Path = options.out / "learning.json"
    known = json.loads(file.read_text())["runs"] if file.is_file() else []
    others = [run for run in known if run["comparison"] not in options.comparisons]
    results = {
        "verl": version("verl"),
        "torch": version("torch"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {options.jobs} run(s) at a time",
        "runs": others + [{**asdict(run), "curve": run.curve(work)} for run in runs if run.done(work)],
    }
    file.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
