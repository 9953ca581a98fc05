#!/usr/bin/env python3
"""HiMAC, GiGPO and flat GRPO from one cold start, at equal generated tokens, on one-goal and two-goal households.

For each seed one small model learns the formats of all three from the same demonstrations; each method then trains it
with stock verl until it has generated the same number of tokens. Success is measured on held-out tasks, sampled as in
training. Writes a JSON file with every curve, and a Markdown table and a PNG from it.

    python scripts/bench/learning.py --out docs/learning
    python scripts/bench/learning.py --out docs/learning --report     # only table and plot, from the file
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer  # noqa: F401 - its lazy import must not be the work of two threads at once

from verl_hier.coldstart.recipe import ColdStart, cold_start
from verl_hier.quickstart import success_of
from verl_hier.recipes import command

METHODS = {"himac": "himac_alfworld_cpu", "gigpo": "gigpo_alfworld_cpu", "grpo": "grpo_alfworld_cpu"}
TEST_EVERY = 4
VALIDATION = 128


def overrides(goals: int, seed: int, model: Path, folder: Path) -> list[str]:
    """What all methods share: tasks, sampling of held-out tasks, seeds."""
    return [
        f"hier.environment.goals={goals}",
        f"hier.environment.validation={VALIDATION}",
        f"hier.seed={seed}",
        f"data.seed={seed}",
        f"actor_rollout_ref.model.path={model.resolve()}",
        "actor_rollout_ref.rollout.val_kwargs.temperature=1.0",
        "actor_rollout_ref.rollout.val_kwargs.do_sample=true",
        "actor_rollout_ref.rollout.val_kwargs.n=2",
        "trainer.val_before_train=true",
        f"trainer.test_freq={TEST_EVERY}",
        "trainer.total_training_steps=1000",
        "trainer.total_epochs=1000",
        "trainer.save_freq=-1",
        "trainer.logger=[console,file]",
        f"hydra.run.dir={folder / 'hydra'}",
    ]


def train(method: str, goals: int, seed: int, model: Path, budget: int, folder: Path) -> list[dict[str, Any]]:
    """Train until a measurement lies at or beyond the token budget; the curve of held-out success.

    A run that is there already and went as far is used again: `--work` belongs to one setting.
    """
    folder.mkdir(parents=True, exist_ok=True)
    metrics = folder / "metrics.jsonl"
    curve = read_curve(metrics)
    if curve and curve[-1]["tokens"] >= budget:
        return curve
    metrics.unlink(missing_ok=True)
    environment = {**os.environ, "VERL_PLATFORM": "cpu", "VERL_FILE_LOGGER_PATH": str(metrics), "OMP_NUM_THREADS": "1"}
    arguments = command(METHODS[method], overrides(goals, seed, model, folder))
    with (folder / "train.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments], env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        while process.poll() is None:
            time.sleep(1)
            curve = read_curve(metrics)
            if curve and curve[-1]["tokens"] >= budget:
                process.terminate()
                process.wait()
                return curve
    raise RuntimeError(f"{method}, {goals} goal(s), seed {seed}: the run ended early; see {folder / 'train.log'}")


def read_curve(metrics: Path) -> list[dict[str, Any]]:
    """Held-out success over generated tokens, as far as the run has come."""
    tokens, curve = 0.0, []
    for line in metrics.read_text().splitlines() if metrics.exists() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            break  # the last line is still being written
        tokens += record["data"].get("hier/tokens/generated", 0.0)
        held_out = success_of(record["data"])
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
        "| tasks | method | seeds | success before | success after | points gained |",
        "|---|---|---|---|---|---|",
    ]
    for goals in results["goals"]:
        for method in METHODS:
            curves = [r["curve"] for r in results["runs"] if r["method"] == method and r["goals"] == goals]
            if not curves:
                continue
            before = [100 * curve[0]["success"] for curve in curves]
            after = [100 * at_budget(curve, results["budget"]) for curve in curves]
            gain = [b - a for a, b in zip(before, after, strict=True)]
            cells = [f"{statistics.mean(v):.0f} ({min(v):.0f} to {max(v):.0f})" for v in (before, after, gain)]
            lines.append(f"| {goals} goal{'s' if goals > 1 else ''} | {method} | {len(curves)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(results: dict[str, Any], path: Path) -> None:
    """One panel a task size, one thin line a seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(results["goals"]), figsize=(8, 3.4), sharey=True, layout="constrained")
    colours = dict(zip(METHODS, ("tab:blue", "tab:orange", "tab:green"), strict=True))
    for axis, goals in zip([axes] if len(results["goals"]) == 1 else axes, results["goals"], strict=True):
        labelled: set[str] = set()
        for record in (r for r in results["runs"] if r["goals"] == goals):
            method = record["method"]
            x, y = zip(*((p["tokens"] / 1000, 100 * p["success"]) for p in record["curve"]), strict=True)
            axis.plot(x, y, color=colours[method], alpha=0.8, label=None if method in labelled else method)
            labelled.add(method)
        axis.set(title=f"{goals} goal{'s' if goals > 1 else ''}", xlabel="generated tokens (thousands)", ylim=(0, 100))
    figure.axes[0].set_ylabel("held-out success (%)")
    figure.axes[0].legend(frameon=False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def report(out: Path) -> None:
    """Table and plot from the file of results."""
    results = json.loads((out / "learning.json").read_text())
    plot(results, out / "learning.png")
    (out / "table.md").write_text(table(results) + "\n")
    print(table(results))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/learning"), help="folder of table, plot and curves")
    parser.add_argument("--work", type=Path, default=Path("runs/learning"), help="folder of models and logs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--goals", type=int, nargs="+", default=[2, 1], help="goals a task")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--tokens", type=int, default=100_000, help="generated tokens of each run")
    parser.add_argument("--sft-steps", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--report", action="store_true", help="only table and plot, from an earlier run's file")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.report:
        measure(options)
    report(options.out)


def measure(options: argparse.Namespace) -> None:
    """All cold starts, then all runs, `--jobs` at a time; the file of results grows with each."""
    results: dict[str, Any] = {
        "command": " ".join(sys.argv),
        "verl": version("verl"),
        "torch": version("torch"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {options.jobs} run(s) at a time",
        "budget": options.tokens,
        "goals": options.goals,
        "runs": [],
    }
    work: Path = options.work.resolve()

    def start(seed: int) -> Path:
        plan = ColdStart(
            ("himac_alfworld_cpu", "grpo_alfworld_cpu"),
            tuple((f"hier.environment.goals={goals}",) for goals in (1, 2)),
            steps=options.sft_steps,
            seed=seed,
        )
        return cold_start(plan, work / f"seed_{seed}", lambda text: print(f"seed {seed}: {text}", flush=True))

    def learn(job: tuple[int, str, int]) -> None:
        goals, method, seed = job
        curve = train(method, goals, seed, models[seed], options.tokens, work / f"seed_{seed}" / f"{method}_{goals}")
        results["runs"].append({"method": method, "goals": goals, "seed": seed, "curve": curve})
        (options.out / "learning.json").write_text(json.dumps(results, indent=1) + "\n")
        first, last = curve[0]["success"], curve[-1]["success"]
        print(f"seed {seed}, {goals} goal(s), {method}: {first:.2f} -> {last:.2f}", flush=True)

    seeds = range(options.seeds)
    with ThreadPoolExecutor(options.jobs) as pool:
        models = list(pool.map(start, seeds))
        jobs = itertools.product(options.goals, options.methods, seeds)
        list(pool.map(learn, jobs))


if __name__ == "__main__":
    main()
