#!/usr/bin/env python3
"""Does a tree find more at test time than independent episodes for the same money?

In each world a policy from its cold start answers held-out tasks by a vote over n leaves of a tree, and by a vote over
independent episodes. The independent ones are played once, more of them than any tree has leaves; their closed form
(`ops.selection`) says what any smaller number of them reaches and costs. So the two are compared at equal tokens, at
equal calls of the world, and at equal calls with those that forks repeat. Between two whole numbers of episodes the
curve is a straight line. The 95 % interval of a difference is that of the normal distribution over tasks, each of which
is the mean of its seeds.

    python scripts/bench/search.py --out runs/search.json
    python scripts/bench/search.py --n 4 --independent 6 --seeds 1 --tasks 4 --out runs/rehearsal.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from verl_hier.coldstart.build import build
from verl_hier.ops.evaluation import model_tokens
from verl_hier.ops.rollouts import Plan, roll_out
from verl_hier.ops.search import Search, prepare, sampler_words
from verl_hier.ops.searched import SearchedTask, tasks_of
from verl_hier.recipe.composed import ComposedRecipe

WORLDS = ("grpo_search", "grpo_python_tool")
BUDGETS = ("tokens", "calls", "calls and repeated calls")
Z = 1.96


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="+", default=WORLDS, help="recipes whose worlds have final answers")
    parser.add_argument("--sampler", default="tree_grpo", help="the tree sampler")
    parser.add_argument("--select", default="vote", help="how one leaf is chosen: best or vote")
    parser.add_argument("--n", nargs="+", type=int, default=[4, 8, 16], help="leaves of a tree")
    parser.add_argument("--independent", type=int, default=32, help="independent episodes of each task")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of the sampling")
    parser.add_argument("--tasks", type=int, default=64, help="held-out tasks")
    parser.add_argument("--temperature", type=float, help="omitted: that of training")
    parser.add_argument("--out", type=Path, default=Path("runs/search.json"), help="file of the results")
    options = parser.parse_args()
    rows = [row for world in options.worlds for row in measure(world, options)]
    written = {**vars(options), "out": str(options.out), "rows": rows, **where()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(written, indent=1) + "\n")
    print("\n".join(table(rows)))


def where() -> dict[str, str]:
    """When and on what it was measured."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
    }


def measure(world: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each n: what the tree reaches and costs, and what independent episodes reach for as much."""
    flat = ComposedRecipe.named(world)
    model = build(flat.config, report=print)  # an equal one is used again
    trees = ComposedRecipe.named(world, sampler_words(options.sampler))
    found: dict[int, list[dict[str, Any]]] = {n: [] for n in options.n}
    for seed in range(options.seeds):
        alone = asyncio.run(searched(model, flat, options.independent, seed, options))
        for n in options.n:
            tree = asyncio.run(searched(model, trees, n, seed, options))
            found[n].append(compared(tree, alone, options.select))
            print(f"{world}, seed {seed}, n = {n}: {found[n][-1]['tree']}", flush=True)
    return [pooled(world, n, each) for n, each in found.items()]


async def searched(
    model: Path, recipe: ComposedRecipe, n: int, seed: int, options: argparse.Namespace
) -> list[SearchedTask]:
    """The tasks after a search with n leaves of each."""
    plan = Plan(tasks=options.tasks, n=n, temperature=options.temperature, seed=seed)
    prepared = prepare(str(model), recipe, plan, Search(options.select))
    graphs, _ = await roll_out(str(model), prepared.recipe, prepared.plan)
    return tasks_of(graphs, prepared)[0]


def compared(tree: Sequence[SearchedTask], alone: Sequence[SearchedTask], select: str) -> dict[str, Any]:
    """What a tree reaches and costs, and for each budget the number of independent episodes that cost as much, with the
    difference of each task."""
    reached = [task.reached(select, len(task.episodes)) for task in tree]
    found: dict[str, Any] = {
        "tree": {"success": fmean(reached), "leaves": fmean(len(task.episodes) for task in tree)},
        "single": fmean(task.reached(select, 1) for task in alone),
    }
    by_uid = {task.graph.task["uid"]: task for task in alone}
    pairs = [(value, by_uid[task.graph.task["uid"]]) for value, task in zip(reached, tree, strict=True)]
    for budget in BUDGETS:
        amount = fmean(spent(task, budget, len(task.episodes)) for task in tree)
        k = matched(lambda size, of=budget: fmean(spent(task, of, size) for task in alone), amount, most(alone))
        others = [between(lambda size, of=other: of.reached(select, size), k) for _, other in pairs]
        found["tree"][budget] = amount
        found[budget] = {
            "episodes": k,
            "success": fmean(others),
            "differences": [value - other for (value, _), other in zip(pairs, others, strict=True)],
        }
    return found


def spent(task: SearchedTask, budget: str, k: int) -> float:
    """What k of the episodes of a task have cost."""
    k = min(k, len(task.episodes))
    if budget == "tokens":
        return task.tokens(model_tokens, k)
    repeated = task.graph.counts.get("replayed_calls", 0) * k / len(task.episodes)
    return task.calls(k) + (repeated if budget != "calls" else 0.0)


def most(tasks: Sequence[SearchedTask]) -> int:
    """Episodes that every task has."""
    return min(len(task.episodes) for task in tasks)


def matched(cost: Callable[[int], float], amount: float, largest: int) -> float:
    """The number of episodes that cost an amount, from 1 to `largest`."""
    for size in range(1, largest):
        low, high = cost(size), cost(size + 1)
        if amount <= high:
            return size + max(0.0, (amount - low) / (high - low))
    return float(largest)


def between(value: Callable[[int], float], k: float) -> float:
    """A function of whole numbers at k, on a straight line between its neighbours."""
    below, part = math.floor(k), k - math.floor(k)
    return value(below) if not part else (1 - part) * value(below) + part * value(below + 1)


def pooled(world: str, n: int, seeds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The means over the seeds, and the intervals of the differences."""
    row: dict[str, Any] = {"world": world, "n": n, "single": fmean(seed["single"] for seed in seeds)}
    row["tree"] = {name: fmean(seed["tree"][name] for seed in seeds) for name in seeds[0]["tree"]}
    for budget in BUDGETS:
        # A task of several seeds counts once, as their mean: its seeds resemble each other.
        differences = [fmean(values) for values in zip(*(seed[budget]["differences"] for seed in seeds), strict=True)]
        half = Z * stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else math.nan
        row[budget] = {
            "episodes": fmean(seed[budget]["episodes"] for seed in seeds),
            "success": fmean(seed[budget]["success"] for seed in seeds),
            "difference": fmean(differences),
            "half": half,
        }
    return row


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Markdown, a line for each world and n."""
    head = "| world | n | one episode | tree | tokens | calls | repeated |"
    lines = [f"{head}{''.join(f' independent at equal {budget} | tree - independent |' for budget in BUDGETS)}"]
    lines.append("|" + "---|" * (7 + 2 * len(BUDGETS)))
    for row in rows:
        tree = row["tree"]
        repeated = tree["calls and repeated calls"] - tree["calls"]
        cells = [row["world"], str(row["n"]), percent(row["single"]), percent(tree["success"])]
        cells += [f"{tree['tokens']:.0f}", f"{tree['calls']:.1f}", f"{repeated:.1f}"]
        for budget in BUDGETS:
            of = row[budget]
            cells.append(f"{percent(of['success'])} ({of['episodes']:.1f} episodes)")
            cells.append(f"{100 * of['difference']:+.1f} ± {100 * of['half']:.1f}")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


if __name__ == "__main__":
    main()
