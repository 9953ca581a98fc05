"""A comparison of runs as tables, as a picture and as a page."""

from __future__ import annotations

import io
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from verl_hier.ops.compare import BUDGETS, Comparison
from verl_hier.ops.pages import Heading, Picture, Sentence, Table, html
from verl_hier.ops.progress import count, duration

COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown", "tab:cyan", "tab:olive")
HEAD = ("at equal", "arm", "runs", "first", "reached")
_POINTS = 100


def rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """The rows below `HEAD`: for each budget, what each arm had measured first and what it reached."""
    for budget, amount in comparison.amounts.items():
        for arm in comparison.arms:
            first = [float(curve.values[0]) for curve in arm.curves]
            yield said(budget, amount), arm.name, str(len(first)), spread(first), spread(arm.at(budget, amount))


def said(budget: str, amount: float) -> str:
    """`41.2k tokens`, `12 min`."""
    return duration(amount) if budget == "seconds" else f"{count(amount)} {budget}"


def spread(values: Sequence[float]) -> str:
    """The mean, and with several runs the lowest and the highest."""
    if len(values) == 1:
        return f"{values[0]:.3g}"
    return f"{statistics.mean(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def picture(comparison: Comparison, file: Any, kind: str) -> None:
    """Write the curves, a panel for each budget: the mean of an arm's runs as a line, their spread as a band.

    Args:
        comparison: what is drawn.
        file: a path, or a binary file.
        kind: `png` or `svg`.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = (4.2 * len(BUDGETS), 3.6)
    figure, panels = pyplot.subplots(1, len(BUDGETS), figsize=size, sharey=True, layout="constrained")
    for panel, budget in zip(panels, BUDGETS, strict=True):
        for number, arm in enumerate(comparison.arms):
            colour = COLOURS[number % len(COLOURS)]
            last = min(float(curve.spent[budget][-1]) for curve in arm.curves)
            grid = np.linspace(0, last, _POINTS)
            values = np.stack([np.interp(grid, curve.spent[budget], curve.values) for curve in arm.curves])
            # A dollar sign would begin mathematics.
            label = arm.name.replace("$", r"\$")
            panel.plot(grid, values.mean(0), color=colour, label=label)
            if len(values) > 1:
                panel.fill_between(grid, values.min(0), values.max(0), color=colour, alpha=0.2, linewidth=0)
        panel.axvline(comparison.amounts[budget], color="grey", linewidth=0.8, linestyle=":")
        panel.set_xlabel({"tokens": "generated tokens"}.get(budget, budget))
    panels[0].set_ylabel(comparison.measure.replace("$", r"\$"))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", frameon=False)
    figure.savefig(file, dpi=150, format=kind)
    pyplot.close(figure)


def svg(comparison: Comparison) -> str:
    """The picture as the text of an SVG."""
    drawn = io.BytesIO()
    picture(comparison, drawn, "svg")
    return drawn.getvalue().decode()


def page(comparison: Comparison) -> str:
    """One HTML page without scripts that needs no other file."""
    names = [arm.name for arm in comparison.arms]
    folders = [(arm.name, ", ".join(str(curve.run.folder) for curve in arm.curves)) for arm in comparison.arms]
    return html(
        f"{comparison.measure}: {', '.join(names)}",
        [
            Picture(svg(comparison), "", comparison.measure),
            Sentence(
                "A line is the mean of an arm's runs, its band their lowest and highest value; the dotted line is the "
                "most that every run has spent."
            ),
            Table(HEAD, list(rows(comparison))),
            Heading("In what the recipes differ"),
            Table(("key", *names), [(key, *words) for key, words in comparison.differences()]),
            Heading("Runs"),
            Table(("arm", "folders"), folders),
        ],
    )
