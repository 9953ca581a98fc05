"""Tables and plot of `learning.py`, from its file of results."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from learning_tasks import COMPARISONS, GROUPS

PANELS = 4
"""In a row of the plot."""


def at_budget(curve: list[dict[str, Any]], budget: float, cost: str = "tokens") -> float:
    """Success at the budget, linearly between the two measurements around it."""
    before, after = curve[0], curve[-1]
    for left, right in itertools.pairwise(curve):
        if left[cost] <= budget <= right[cost]:
            before, after = left, right
    share = (budget - before[cost]) / max(after[cost] - before[cost], 1)
    return before["success"] + min(max(share, 0.0), 1.0) * (after["success"] - before["success"])


def table(results: dict[str, Any]) -> Iterator[str]:
    """The lines of a Markdown table: mean (lowest to highest seed), before and at the budget."""
    yield "| tasks | tokens | method | seeds | success before | success after | points gained |"
    yield "|---|---|---|---|---|---|---|"
    for name, method, curves in grouped(results):
        task, tokens = COMPARISONS[name].task, COMPARISONS[name].tokens
        before = [100 * curve[0]["success"] for curve in curves]
        after = [100 * at_budget(curve, tokens) for curve in curves]
        gain = [b - a for a, b in zip(before, after, strict=True)]
        yield f"| {task} | {tokens} | {method} | {len(curves)} | {' | '.join(map(spread, (before, after, gain)))} |"


def on_the_way(results: dict[str, Any]) -> Iterator[str]:
    """The lines of a Markdown table of the comparisons at length: success before, on the way and at the budget."""
    yield "| tasks | method | learning rate | start | a third of the tokens | two thirds | all |"
    yield "|---|---|---|---|---|---|---|"
    for name, method, curves in grouped(results):
        if name in GROUPS["at_length"]:
            budgets = [COMPARISONS[name].tokens * part / 3 for part in range(4)]
            cells = [spread([100 * at_budget(curve, budget) for curve in curves]) for budget in budgets]
            rates = sorted({run["rate"] for run in runs_of(results, name, method)})
            yield " | ".join([f"| {COMPARISONS[name].task}", method, ", ".join(map(str, rates)), *cells]) + " |"


def other_costs(results: dict[str, Any]) -> Iterator[str]:
    """The lines of a Markdown table: points gained for equal calls of the world, and for equal seconds.

    Of both as many as the run of the comparison that has spent least.
    """
    yield "| tasks | method | calls | points gained | seconds | points gained |"
    yield "|---|---|---|---|---|---|"
    groups = [each for each in grouped(results) if all("calls" in curve[-1] for curve in each[2])]
    for name, method, curves in groups:
        cells = []
        for cost in ("calls", "seconds"):
            least = min(curve[-1][cost] for other, _, theirs in groups if other == name for curve in theirs)
            gain = [100 * (at_budget(curve, least, cost) - curve[0]["success"]) for curve in curves]
            cells += [f"{least:.0f}", spread(gain)]
        yield f"| {COMPARISONS[name].task} | {method} | {' | '.join(cells)} |"


def spread(values: Sequence[float]) -> str:
    """The mean, and the lowest and highest."""
    return f"{statistics.mean(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def runs_of(results: dict[str, Any], comparison: str, method: str) -> list[dict[str, Any]]:
    """The runs of a method that count: those that tried a learning rate do not."""
    mine = [run for run in results["runs"] if (run["comparison"], run["method"]) == (comparison, method)]
    return [run for run in mine if not run.get("trial")]


def grouped(results: dict[str, Any]) -> list[tuple[str, str, list[list[dict[str, Any]]]]]:
    """(comparison, method, curves of its seeds), in the order of `COMPARISONS`."""
    pairs = [(name, method) for name, comparison in COMPARISONS.items() for method in comparison.methods]
    found = [(*pair, [run["curve"] for run in runs_of(results, *pair)]) for pair in pairs]
    return [each for each in found if each[2]]


def plot(results: dict[str, Any], path: Path) -> None:
    """One panel a comparison, one thin line a seed; the flat baseline is black."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = grouped(results)
    names = list(dict.fromkeys(name for name, _, _ in groups))
    rows = math.ceil(len(names) / PANELS)
    figure, axes = pyplot.subplots(
        rows, PANELS, figsize=(3.6 * PANELS, 3.2 * rows), sharey=True, layout="constrained", squeeze=False
    )
    panels = dict(zip(names, axes.flat, strict=False))
    for name, method, curves in groups:
        place = [*COMPARISONS[name].methods].index(method)
        colour = "black" if method == "grpo" else pyplot.get_cmap("tab10")(place)
        for number, curve in enumerate(curves):
            x, y = zip(*((point["tokens"] / 1000, 100 * point["success"]) for point in curve), strict=True)
            panels[name].plot(x, y, color=colour, alpha=0.8, label=None if number else method)
    for panel in axes.flat[len(names) :]:
        panel.remove()
    for name, panel in panels.items():
        panel.set(title=COMPARISONS[name].task, xlabel="generated tokens (thousands)", ylim=(0, 100))
        panel.legend(frameon=False)
    for row in axes:
        row[0].set_ylabel("held-out success (%)")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
