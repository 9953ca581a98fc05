"""What the cells of a panel say: success before and after, the difference to the baseline by seed, what is missing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_hier.ops.bench.cells import Curve, at_budget
from verl_hier.ops.bench.panel import Panel

Groups = Mapping[tuple[str, str], Mapping[int, Curve]]
"""Task and method to the curve of each seed."""
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""The 97.5th percentile of Student's t, by degrees of freedom."""
LEAST_GAIN = 10
"""Points that the baseline has to gain for a budget to say something of the others."""
WIDTH = 4
"""Plots in a row."""


def grouped(panel: Panel, cells: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], dict[int, Curve]]:
    """The curves of cells that count, in the order of the panel; trials of learning rates do not."""
    found: dict[tuple[str, str], dict[int, Curve]] = {
        (name, method): {} for name, task in panel.tasks.items() for method in task.methods
    }
    for cell in cells:
        place = (cell["task"], cell["method"])
        if place in found and not cell.get("trial"):
            found[place][cell["seed"]] = cell["curve"]
    return {place: curves for place, curves in found.items() if curves}


def results(panel: Panel, groups: Groups) -> Iterator[str]:
    """The lines of a Markdown table: mean (lowest to highest seed), before and at the budget, in percent."""
    yield "| tasks | tokens | method | seeds | success before | success after | points gained | beyond the baseline |"
    yield "|---|---|---|---|---|---|---|---|"
    for (name, method), curves in groups.items():
        task = panel.tasks[name]
        before = [100 * curve[0]["success"] for curve in curves.values()]
        after = [100 * at_budget(curve, task.tokens) for curve in curves.values()]
        numbers = (before, after, gains(curves, task.tokens).values())
        more = beyond(groups, name, method, task.baseline, task.tokens)
        cells = " | ".join(spread([*each]) for each in numbers)
        yield f"| {task.title} | {task.tokens} | {method} | {len(curves)} | {cells} | {more} |"


def gains(curves: Mapping[int, Curve], budget: float, cost: str = "tokens") -> dict[int, float]:
    """Seed to the points that it gained for so much of a cost."""
    return {seed: 100 * (at_budget(curve, budget, cost) - curve[0]["success"]) for seed, curve in curves.items()}


def beyond(groups: Groups, name: str, method: str, baseline: str, tokens: float) -> str:
    """The difference to the baseline's gain, paired by seed, or why it says nothing."""
    flat = groups.get((name, baseline))
    if method == baseline:
        return "the baseline"
    if flat is None:
        return f"{baseline} was not run"
    own, theirs = gains(groups[name, method], tokens), gains(flat, tokens)
    if statistics.mean(theirs.values()) < LEAST_GAIN:
        return f"too short: {baseline} gained less than {LEAST_GAIN}"
    return difference([own[seed] - theirs[seed] for seed in own.keys() & theirs.keys()])


def difference(values: Sequence[float]) -> str:
    """The mean of differences by seed and its interval of 95 %, by Student's t."""
    if len(values) < 2:
        return "one seed"
    half = STUDENT[min(len(values) - 1, max(STUDENT))] * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.mean(values)
    return f"{mean:+.0f} ({mean - half:+.0f} to {mean + half:+.0f})"


def other_costs(panel: Panel, groups: Groups) -> Iterator[str]:
    """The lines of a Markdown table: points gained for equal calls of the world, and for equal seconds.

    Of both as many as the run of the task that has spent least.
    """
    yield "| tasks | method | calls | points gained | seconds | points gained |"
    yield "|---|---|---|---|---|---|"
    counted = {place: curves for place, curves in groups.items() if all("calls" in c[-1] for c in curves.values())}
    for (name, method), curves in counted.items():
        cells = []
        for cost in ("calls", "seconds"):
            theirs = [
                curve[-1][cost] for (other, _), found in counted.items() if other == name for curve in found.values()
            ]
            cells += [f"{min(theirs):.0f}", spread([*gains(curves, min(theirs), cost).values()])]
        yield f"| {panel.tasks[name].title} | {method} | {' | '.join(cells)} |"


def on_the_way(panel: Panel, cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The lines of a Markdown table of tasks with trials of learning rates: before, on the way and at the budget."""
    yield "| tasks | method | learning rate | start | a third of the tokens | two thirds | all |"
    yield "|---|---|---|---|---|---|---|"
    for (name, method), curves in grouped(panel, cells).items():
        task = panel.tasks[name]
        if task.rates:
            budgets = [task.tokens * part / 3 for part in range(4)]
            numbers = [spread([100 * at_budget(curve, budget) for curve in curves.values()]) for budget in budgets]
            mine = [
                cell for cell in cells if (cell["task"], cell["method"]) == (name, method) and not cell.get("trial")
            ]
            rates = ", ".join(map(str, sorted({cell["rate"] for cell in mine})))
            yield " | ".join([f"| {task.title}", method, rates, *numbers]) + " |"


def missing(places: Iterable[tuple[str, str]], groups: Groups, seeds: int) -> Iterator[str]:
    """A sentence for each task and method of which fewer seeds were measured."""
    for place in places:
        count = len(groups.get(place, {}))
        if count < seeds:
            yield f"{', '.join(place)}: {count} of {seeds} seeds"


def spread(values: Sequence[float], digits: int = 0) -> str:
    """The mean, and the lowest and highest."""
    return f"{statistics.mean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def plot(panel: Panel, groups: Groups, path: Path) -> None:
    """One plot a task, one thin line a seed; the baseline is black."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(name for name, _ in groups))
    rows = math.ceil(len(names) / WIDTH)
    figure, axes = pyplot.subplots(
        rows, WIDTH, figsize=(3.6 * WIDTH, 3.2 * rows), sharey=True, layout="constrained", squeeze=False
    )
    plots = dict(zip(names, axes.flat, strict=False))
    for (name, method), curves in groups.items():
        task = panel.tasks[name]
        place = [*task.methods].index(method)
        colour = "black" if method == task.baseline else pyplot.get_cmap("tab10")(place % 10)
        for number, curve in enumerate(curves.values()):
            x, y = zip(*((point["tokens"] / 1000, 100 * point["success"]) for point in curve), strict=True)
            plots[name].plot(x, y, color=colour, alpha=0.8, label=None if number else method)
    for empty in axes.flat[len(names) :]:
        empty.remove()
    for name, axis in plots.items():
        axis.set(title=panel.tasks[name].title, xlabel="generated tokens (thousands)", ylim=(0, 100))
        axis.legend(frameon=False)
    for row in axes:
        row[0].set_ylabel("held-out success (%)")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
