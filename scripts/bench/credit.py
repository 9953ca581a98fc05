"""Benchmark of the estimators: against the memory floor, verl's own GRPO and plain loops, and as batches grow.

Times are processor time of one thread, the least of several runs, so that a busy machine does not count.

python scripts/bench/credit.py --quick                      # the tables, exit 1 when a bound fails
python scripts/bench/credit.py --markdown docs/credit_benchmark.md --plot docs/credit_benchmark.png
"""

from __future__ import annotations

import argparse
import platform
import shlex
import sys
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from verl_hier.credit import Credit, groups, step_mean
from verl_hier.credit.estimate import estimate
from verl_hier.credit.tokens import spread_rows
from verl_hier.graph import TurnTable
from verl_hier.host.specs import EstimatorSpec
from verl_hier.testing import builtin_estimators
from verl_hier.testing.estimator import random_table

FLOOR_BOUND = 3.0  # times (one write of the array + key hashing)
LOOP_BOUND = 10.0  # times faster than the plain loops of GiGPO and HGPO
GROWTH_BOUND = 2.0  # cost a turn at a million turns over that at ten thousand
Array = Any


@dataclass
class Report:
    """Printed tables and failed bounds."""

    lines: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def table(self, title: str, head: list[str], rows: list[list[str]]) -> None:
        self.lines += [f"## {title}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        self.lines += ["| " + " | ".join(row) + " |" for row in rows] + [""]

    def bound(self, holds: bool, sentence: str) -> None:
        if not holds:
            self.failures.append(sentence)


def best(run: Callable[[], Any], repeats: int = 7, seconds: float = 1.0) -> float:
    """Least processor time of a few runs; long runs are not repeated beyond `seconds` in all."""
    times: list[float] = []
    while len(times) < repeats and (not times or sum(times) < seconds):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def make(turns: int, tree: bool = False) -> TurnTable:
    """A random batch with exactly `turns` turns: chains of 1..9 turns in groups of 8, or trees of 40."""
    table = random_table(0, groups=turns // 40 + 2, episodes=16 if tree else 9, turns=5 if tree else 9, tree=tree)
    return cut(table, turns)


def cut(table: TurnTable, turns: int) -> TurnTable:
    """The first `turns` turns (rows are ordered by task and episode, so whole episodes but for the last)."""
    keep = table.step_turn < turns
    owners = np.unique(table.step_episode[keep])
    number = np.zeros(len(table.episodes["return"]), np.int64)
    number[owners] = np.arange(len(owners))
    columns = {name: column[:turns].copy() for name, column in table.turns.items()}
    columns["episode"] = number[columns["episode"]]
    episodes = {name: column[owners] for name, column in table.episodes.items()}
    episodes["leaf"] = np.minimum(episodes["leaf"], turns - 1)
    tokens = {name: column[table.tokens["turn"] < turns] for name, column in table.tokens.items()}
    return TurnTable(
        turns=columns,
        episodes=episodes,
        step_episode=number[table.step_episode[keep]],
        step_turn=table.step_turn[keep],
        tokens=tokens,
        names=table.names,
        anchors=table.anchors,
    )


def per_turn(table: TurnTable, credit: Credit) -> Array:
    return credit.values if credit.per == "turn" else step_mean(table, credit.values)


class HashClock:
    """Time inside key hashing, measured by wrapping the two functions that do it."""

    def __enter__(self) -> HashClock:
        self.seconds = 0.0
        self._kept = (groups._codes, groups._dense)
        groups._codes, groups._dense = (self._timed(function) for function in self._kept)  # type: ignore[assignment]
        return self

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            start = time.process_time()
            try:
                return function(*args)
            finally:
                self.seconds += time.process_time() - start

        return run

    def __exit__(self, *_: object) -> None:
        groups._codes, groups._dense = self._kept


# --- plain loops: what these methods look like when written row by row ----------------------------------------------


def loop_group(scores: Array, keys: list[Any], scale: bool, singleton_zero: bool) -> list[float]:
    """z-score or centring of each row in its group, with dictionaries."""
    members: dict[Any, list[float]] = defaultdict(list)
    for score, key in zip(scores, keys, strict=True):
        members[key].append(float(score))
    out = []
    for score, key in zip(scores, keys, strict=True):
        group = members[key]
        if len(group) == 1:
            out.append(0.0 if singleton_zero else float(score))
            continue
        mean = sum(group) / len(group)
        spread = statistics_std(group) + 1e-6 if scale else 1.0
        out.append((float(score) - mean) / spread)
    return out


def statistics_std(values: list[float], ddof: int = 1) -> float:
    mean = sum(values) / len(values)
    return float((sum((v - mean) ** 2 for v in values) / (len(values) - ddof)) ** 0.5)


def loop_returns(table: TurnTable, gamma: float) -> list[float]:
    """Reward-to-go of every turn, episode by episode."""
    out = [0.0] * len(table)
    carry, last = 0.0, -1
    for episode, turn in zip(table.step_episode[::-1], table.step_turn[::-1], strict=True):
        carry = float(table["reward"][turn]) + (gamma * carry if episode == last else 0.0)
        out[turn], last = carry, episode
    return out


def loop_gigpo(table: TurnTable) -> list[float]:
    episode = [float(table["episodes.return"][e]) for e in table["episode"]]
    group = table["group"].tolist()
    upper = loop_group(np.asarray(episode), group, False, False)
    keys = list(zip(group, table["anchor"].tolist(), strict=True))
    lower = loop_group(np.asarray(loop_returns(table, 0.95)), keys, False, True)
    return [a + b for a, b in zip(upper, lower, strict=True)]


def loop_hgpo(table: TurnTable, past: int = 2) -> list[float]:
    returns, out = loop_returns(table, 0.95), []
    levels = []
    parent, anchor, group = table["parent"].tolist(), table["anchor"].tolist(), table["group"].tolist()
    for size in range(1, past + 2):
        members: dict[Any, list[float]] = defaultdict(list)
        keys: list[Any] = []
        for turn in range(len(table)):
            states, node = [], turn
            while node >= 0 and len(states) < size:
                states.append(anchor[node])
                node = parent[node]
            key = (group[turn], *states) if len(states) == size else None
            keys.append(key)
            if key is not None:
                members[key].append(returns[turn])
        levels.append((keys, members))
    for turn in range(len(table)):
        total = weight = 0.0
        for size, (keys, members) in enumerate(levels, start=1):
            rows = members.get(keys[turn], [])
            if len(rows) < 2:
                continue
            value = (returns[turn] - sum(rows) / len(rows)) / (statistics_std(rows, 0) + 1e-6)
            if abs(value) > 1e-9:
                total, weight = total + (size + 1) * value, weight + size + 1
        out.append(total / (weight + 1e-6))
    return out


def loop_tree_grpo(table: TurnTable) -> list[float]:
    returns, group = table["episodes.return"], table["episodes.group"].tolist()
    inter = loop_group(returns, group, True, False)
    intra = loop_group(returns, list(zip(group, table["episodes.tree"].tolist(), strict=True)), True, True)
    return [inter[e] + intra[e] for e in table["episode"].tolist()]


def loop_hae(table: TurnTable) -> list[float]:
    """The low level of HiPER: GAE inside segments, episode by episode, backwards."""
    value, reward, segment = table["value_low"].tolist(), table["reward"].tolist(), table["segment"].tolist()
    high, done = table["value_high"].tolist(), table["done"].tolist()
    order, owner = table.step_turn.tolist(), table.step_episode.tolist()
    out, carry = [0.0] * len(table), 0.0
    for place in reversed(range(len(order))):
        turn = order[place]
        after = order[place + 1] if place + 1 < len(order) and owner[place + 1] == owner[place] else -1
        inside = after >= 0 and segment[after] == segment[turn]
        alive = 0.0 if done[turn] else 1.0
        following = value[after] if inside else high[after] if after >= 0 else 0.0
        carry = reward[turn] + alive * following - value[turn] + (alive * carry if inside else 0.0)
        out[turn] = carry
    return out


LOOPS: dict[str, Callable[[TurnTable], list[float]]] = {
    "gigpo": loop_gigpo,
    "hgpo": loop_hgpo,
    "tree_grpo": loop_tree_grpo,
    "hiper": loop_hae,
}


def verl_grpo(table: TurnTable, mask: Array) -> dict[str, Callable[[], Any]]:
    """verl's own loop and vectorised GRPO on the same rows."""
    import torch
    from verl.trainer.ppo.core_algos import (
        compute_grpo_outcome_advantage,
        compute_grpo_vectorized_outcome_advantage,
    )

    rewards = torch.zeros(mask.shape)
    rewards[:, 0] = torch.as_tensor(np.asarray(table["return"], np.float32))
    index, response = np.asarray(table["group"]), torch.as_tensor(mask)
    return {
        "verl loop": lambda: compute_grpo_outcome_advantage(rewards, response, index),
        "verl vectorised": lambda: compute_grpo_vectorized_outcome_advantage(rewards, response, index),
    }


# --- the three tables ------------------------------------------------------------------------------------------------


def group_estimators() -> list[EstimatorSpec]:
    """Built-in estimators that need no critic and credit turns or steps; those without groups are shown beside them."""
    return [s for s in builtin_estimators().values() if not s.needs_critic and s.granularity != "token"]


def memory_table(report: Report, rows: int, columns: int) -> list[tuple[str, float]]:
    """Every group estimator from table to padded tokens, against one write of the array plus key hashing."""
    rng = np.random.default_rng(1)
    mask = np.arange(columns) < rng.integers(1, columns + 1, rows)[:, None]
    floor = best(lambda: np.full(mask.shape, 1.0, np.float32))
    tables = {tree: make(rows, tree) for tree in (False, True)}
    lines, ratios = [], []
    for spec in group_estimators():
        table = tables[spec.needs_tree]

        def run(spec: EstimatorSpec = spec, table: TurnTable = table) -> Array:
            return spread_rows(per_turn(table, estimate(spec, table)), mask)

        hashing = []
        for _ in range(3):
            with HashClock() as clock:
                run()
            hashing.append(clock.seconds)
        ours, keys = best(run), min(hashing)
        tracemalloc.start()
        run()
        peak = tracemalloc.get_traced_memory()[1] / (4 * mask.size)
        tracemalloc.stop()
        ratio = ours / (floor + keys)
        ratios.append((spec.name, ratio))
        lines.append([spec.name, ms(ours), ms(keys), f"{ratio:.2f}", f"{peak:.2f}"])
        if (rows, columns) == (16384, 512) and spec.needs_groups:
            report.bound(ratio <= FLOOR_BOUND, f"{spec.name}: {ratio:.2f} times the floor at {rows} x {columns}.")
    for name, theirs in verl_grpo(tables[False], mask.astype(np.float32)).items():
        lines.append([name, ms(best(theirs, 2)), "", f"{best(theirs, 2) / floor:.2f}", ""])
    head = ["", "ms", "of it keys, ms", "over (floor + keys)", "peak memory, arrays"]
    report.table(f"{rows} x {columns} tokens; one write of the array takes {ms(floor)} ms", head, lines)
    return ratios


def loop_table(report: Report, rows: int) -> None:
    """Credit per turn against plain loops on the same table."""
    lines = []
    for name, loop in LOOPS.items():
        spec = builtin_estimators()[name]
        table = make(rows, tree=False)
        table.turns["trained"] = np.ones(len(table), bool)
        table.episodes["trained"] = np.ones(len(table.episodes["return"]), bool)
        ours = best(lambda spec=spec, table=table: estimate(spec, table))
        theirs = best(lambda loop=loop, table=table: loop(table), 1)
        if name in ("gigpo", "hgpo", "tree_grpo"):
            found = per_turn(table, estimate(spec, table))
            worst = float(np.abs(found - np.asarray(loop(table))).max())
            report.bound(worst < 1e-4, f"{name} differs from its plain loop by {worst}.")
        lines.append([name, ms(ours), ms(theirs), f"{theirs / ours:.0f}"])
        if name in ("gigpo", "hgpo"):
            report.bound(theirs / ours >= LOOP_BOUND, f"{name}: only {theirs / ours:.1f} times faster than a loop.")
    report.table(f"{rows} turns, credit per turn", ["", "ours, ms", "plain loop, ms", "times faster"], lines)


def growth_table(report: Report, sizes: list[int]) -> dict[str, list[float]]:
    """Nanoseconds a turn at growing batches."""
    tables = {(size, tree): make(size, tree) for size in sizes for tree in (False, True)}
    lines, curves = [], {}
    for spec in group_estimators():
        costs = []
        for size in sizes:
            table = tables[size, spec.needs_tree]
            costs.append(best(lambda spec=spec, table=table: estimate(spec, table)) / size * 1e9)
        growth = costs[sizes.index(1_000_000)] / costs[sizes.index(10_000)]
        curves[spec.name] = costs
        lines.append([spec.name, *(f"{cost:.0f}" for cost in costs), f"{growth:.2f}"])
        report.bound(growth <= GROWTH_BOUND, f"{spec.name}: a turn costs {growth:.2f} times more at a million.")
    head = ["ns a turn", *(f"{size:,} turns" for size in sizes), "10⁶ over 10⁴"]
    report.table("Growth with the turns", head, lines)
    return curves


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}" if seconds < 1 else f"{seconds * 1e3:.0f}"


def plot(path: Path, sizes: list[int], curves: dict[str, list[float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for name in ("grpo", "gigpo", "hgpo", "himac", "tree_grpo", "treerl"):
        axes.plot(sizes, curves[name], marker="o", label=name)
    axes.set(xscale="log", xlabel="turns", ylabel="ns a turn", ylim=(0, None))
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def environment() -> str:
    """Command, versions and hardware in one paragraph."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("verl-hier", "verl", "torch", "numpy"))
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    command = "python scripts/bench/credit.py " + shlex.join(sys.argv[1:])
    clock = "one thread, processor time; measured"
    return f"`{command.strip()}`; Python {platform.python_version()}, {versions}; {model}, {clock}."


def main() -> int:
    """Print the tables, write them where asked, and return 1 when a bound fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer sizes, under two minutes")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file")
    parser.add_argument("--plot", type=Path, help="write the growth of the cost a turn to this picture")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    report = Report()
    shapes = [(16384, 512)] if options.quick else [(1024, 512), (16384, 512), (65536, 64)]
    for rows, columns in shapes:
        memory_table(report, rows, columns)
    loop_table(report, 65536)
    sizes = [10_000, 1_000_000] if options.quick else [1_000, 10_000, 100_000, 1_000_000]
    curves = growth_table(report, sizes)
    text = "\n".join([environment(), "", *report.lines])
    print(text)
    for failure in report.failures:
        print(f"FAILED {failure}")
    if options.plot:
        plot(options.plot, sizes, curves)
    if options.markdown:
        head = "# Benchmark of the estimators\n\n"
        picture = f"![Cost a turn]({options.plot.name})\n\n" if options.plot else ""
        options.markdown.write_text(head + picture + text + "\n", encoding="utf-8")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
