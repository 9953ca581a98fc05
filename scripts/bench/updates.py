#!/usr/bin/env python3
"""What several optimiser steps a batch do: GiGPO and ARPO with their authors' number of them, and with one.

For each method a small model learns the format from demonstrations. It is then trained twice for each seed: with as
many optimiser steps a batch as the authors make, and with one. Both runs begin with the same rollouts and end at the
same number of generated tokens. Writes a JSON file with every curve and a PNG of them, and prints a Markdown table.

    python scripts/bench/updates.py --quick --out docs/learning    # twenty minutes on two cores
    python scripts/bench/updates.py --out docs/learning            # ten times the tokens
    python scripts/bench/updates.py --out docs/learning --report   # only table and plot, from the file
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from cpu_run import CpuRun

from verl_hier.coldstart.build import build
from verl_hier.ops.bench.tables import spread
from verl_hier.recipe.compose import command, compose

ONE = "one step"
CURVES = {
    "success": ("hier/episodes/success", "success of the step's episodes (%)"),
    "clipped": ("actor/pg_clipfrac", "clipped tokens (%)"),
}
"""What is measured in every step: its metric, and the label of its axis."""


@dataclass(frozen=True)
class Method:
    """A method and its authors' way to divide a batch.

    Attributes:
        recipe: what is trained.
        update: `hier.update` of the authors.
        tokens, quick: generated tokens of each run.
        cold_start: options of the demonstrations.
    """

    recipe: str
    update: str
    tokens: int
    quick: int
    cold_start: tuple[str, ...] = ()

    def arms(self) -> dict[str, str]:
        """Name in the report to `hier.update`."""
        return {
            self.update: f"hier.update={{mini_batch: {{{self.update}}}}}",
            ONE: "hier.update={mini_batch: {steps: 1}}",
        }


METHODS = {
    # 256 rows of the 2,000 to 5,000 that 16 tasks make, one a turn: 8 to 20 steps. The small recipe has a row an
    # episode, 64 in all, and makes 8.
    "gigpo": Method("gigpo_alfworld", "rows: 8", 240_000, 40_000),
    # Mini-batches of an eighth of the batch.
    "arpo": Method("arpo_search", "steps: 8", 120_000, 12_000),
}


@dataclass(frozen=True)
class Run:
    """One arm of one method with one seed."""

    method: str
    arm: str
    seed: int
    tokens: int

    def folder(self, work: Path) -> Path:
        """Where its logs are."""
        return work / self.method / self.arm.replace(": ", "_").replace(" ", "_") / f"seed_{self.seed}"

    def curve(self, work: Path) -> list[dict[str, float]]:
        """Each step: the tokens that were generated before it, what it measured, and how many updates it made."""
        return curve_of(CpuRun(self.folder(work)).records())

    def done(self, work: Path) -> bool:
        """Whether the token budget is spent."""
        return spent(self.curve(work), self.tokens)


def curve_of(records: list[dict[str, Any]]) -> list[dict[str, float]]:
    """The curve of a run's metrics."""
    tokens, curve = 0.0, []
    for record in records:
        if "hier/update/steps" not in record:
            continue
        point = {name: float(record[metric]) for name, (metric, _) in CURVES.items()}
        curve.append({"tokens": tokens, "updates": record["hier/update/steps"], **point})
        tokens += record["hier/tokens/generated"]
    return curve


def spent(curve: list[dict[str, float]], tokens: int) -> bool:
    """Whether a step of the curve was measured behind so many tokens."""
    return bool(curve) and curve[-1]["tokens"] >= tokens


def train(run: Run, model: Path, work: Path) -> float:
    """Train until the token budget is spent, and return the seconds that took.

    Raises:
        RolloutError: when the run fails before that.
    """
    method, started = METHODS[run.method], time.perf_counter()
    overrides = [
        method.arms()[run.arm],
        f"hier.seed={run.seed}",
        f"data.seed={run.seed}",
        f"actor_rollout_ref.model.path={model.resolve()}",
        "trainer.total_training_steps=1000",
        "trainer.total_epochs=1000",
        "trainer.save_freq=-1",
        "trainer.test_freq=-1",
    ]
    CpuRun(run.folder(work), command(method.recipe, overrides)).finish(
        lambda records: spent(curve_of(records), run.tokens)
    )
    return time.perf_counter() - started


def start(name: str, work: Path) -> Path:
    """The model that all runs of a method start from."""
    method, path = METHODS[name], work / "cold_starts" / name / "model"
    config = compose(method.recipe, [*method.cold_start, f"actor_rollout_ref.model.path={path}"])
    return build(config, report=lambda text: print(f"{name}: {text}", flush=True))


def table(results: Mapping[str, Any]) -> Iterator[str]:
    """A Markdown table: mean (lowest to highest seed) of the first and the last step."""
    yield "| method | optimiser steps a batch | seeds | first step | last step | points gained | clipped tokens |"
    yield "|---|---|---|---|---|---|---|"
    for method, arm, curves in grouped(results):
        first = [100 * curve[0]["success"] for curve in curves]
        last = [100 * last_of(curve) for curve in curves]
        gained = [b - a for a, b in zip(first, last, strict=True)]
        clipped = [100 * statistics.mean(point["clipped"] for point in curve) for curve in curves]
        updates = statistics.mean(point["updates"] for curve in curves for point in curve)
        cells = [spread(values, 0) for values in (first, last, gained)] + [spread(clipped, 1)]
        yield f"| {method} | {updates:.1f} (`{arm}`) | {len(curves)} | {' | '.join(cells)} |"


def last_of(curve: list[dict[str, float]]) -> float:
    """Mean success of the last third of the steps, at least one: one step has few episodes."""
    return statistics.mean(point["success"] for point in curve[-max(1, len(curve) // 3) :])


def grouped(results: Mapping[str, Any]) -> Iterator[tuple[str, str, list[list[dict[str, float]]]]]:
    """(method, arm, curves of its seeds), in the order of `METHODS`."""
    for name, method in METHODS.items():
        for arm in method.arms():
            curves = [run["curve"] for run in results["runs"] if (run["method"], run["arm"]) == (name, arm)]
            if curves:
                yield name, arm, curves


def plot(results: Mapping[str, Any], path: Path) -> None:
    """A column a method, a row for success and one for clipped tokens, one thin line a seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = list(grouped(results))
    methods = list(dict.fromkeys(method for method, _, _ in groups))
    size = (4.2 * len(methods), 5.6)
    figure, axes = pyplot.subplots(len(CURVES), len(methods), figsize=size, layout="constrained", squeeze=False)
    for row, (name, (_, label)) in enumerate(CURVES.items()):
        axes[row][0].set_ylabel(label)
        for method, arm, curves in groups:
            panel, colour = axes[row][methods.index(method)], "tab:gray" if arm == ONE else "tab:blue"
            for number, curve in enumerate(curves):
                x = [point["tokens"] / 1000 for point in curve]
                y = [100 * point[name] for point in curve]
                panel.plot(x, y, color=colour, alpha=0.8, label=None if number else arm)
    for method, panel in zip(methods, axes[0], strict=True):
        panel.set(title=method, ylim=(0, 100))
        panel.legend(frameon=False)
    for panel in axes[-1]:
        panel.set_xlabel("generated tokens (thousands)")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def measure(options: argparse.Namespace) -> None:
    """Cold starts, then runs, `--jobs` at a time; finished runs in `--work` are used again."""
    work: Path = options.work.resolve()
    runs = [
        Run(name, arm, seed, METHODS[name].quick if options.quick else METHODS[name].tokens)
        for seed in range(options.seeds)
        for name in options.methods
        for arm in METHODS[name].arms()
    ]
    missing = [run for run in runs if not run.done(work)]
    names = list(dict.fromkeys(run.method for run in missing))
    # In processes of their own: they seed torch and import transformers, which threads would share.
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        models = dict(zip(names, pool.map(start, names, itertools.repeat(work)), strict=True))
    with ThreadPoolExecutor(options.jobs) as threads:
        taken = threads.map(lambda run: train(run, models[run.method], work), missing)
        for run, seconds in zip(missing, taken, strict=True):
            print(f"{run}: {len(run.curve(work))} steps, {seconds:.0f} s", flush=True)
            record(options, runs, work)


def record(options: argparse.Namespace, runs: list[Run], work: Path) -> None:
    """Write the finished runs to the file of results."""
    results = {
        "verl": version("verl"),
        "torch": version("torch"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {options.jobs} run(s) at a time",
        "quick": options.quick,
        "runs": [{**asdict(run), "curve": run.curve(work)} for run in runs if run.done(work)],
    }
    (options.out / "updates.json").write_text(json.dumps(results, indent=1) + "\n")


def report(out: Path) -> None:
    """Table and plot from the file of results."""
    results = json.loads((out / "updates.json").read_text())
    plot(results, out / "updates.png")
    print("\n".join(table(results)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/updates"), help="folder of the curves and their plot")
    parser.add_argument("--work", type=Path, default=Path("runs/updates"), help="folder of models and logs")
    parser.add_argument("--quick", action="store_true", help="a tenth of the tokens")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--report", action="store_true", help="only table and plot, from an earlier run's file")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.report:
        measure(options)
    report(options.out)


if __name__ == "__main__":
    main()
