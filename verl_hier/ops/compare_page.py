"""A comparison of runs as tables, as a picture and as a page."""

from __future__ import annotations

import io
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from verl_hier.ops.compare import BUDGETS, Comparison, Measured
from verl_hier.ops.pages import Block, Heading, Picture, Sentence, Table, html
from verl_hier.ops.progress import count, duration

COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown", "tab:cyan", "tab:olive")
HEAD = ("at equal", "arm", "runs", "first", "reached")
MISSING = "-"
"""In the place of a figure that no run has measured."""


def rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """The rows below `HEAD`: for each budget, what each arm had measured first and what it reached."""
    for budget, amount in comparison.amounts.items():
        for arm in comparison.arms:
            first = told([curve.first(budget) for curve in arm.curves], budget)
            yield said(budget, amount), arm.name, str(len(arm.curves)), first, told(arm.at(budget, amount), budget)


def told(found: Sequence[Measured | None], budget: str) -> str:
    """What runs have measured, and after what: the mean, with several runs the lowest and the highest, and how many of
    them have measured something where not all have."""
    known = [each for each in found if each is not None]
    if not known:
        return MISSING
    values = [each.value for each in known]
    text = figure(statistics.mean(values))
    if len(values) > 1:
        text += f" ({figure(min(values))} to {figure(max(values))})"
    if len(known) < len(found):
        text += f" of {len(known)} of {len(found)} runs"
    first, last = said(budget, min(each.first for each in known)), said(budget, max(each.last for each in known))
    return f"{text} at {last if first == last else f'{first} to {last}'}"


def figure(value: float) -> str:
    """A number with three decimals, or, where these would say nothing, with three digits."""
    return f"{value:.3f}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.3g}"


def said(budget: str, amount: float) -> str:
    """`41.2k tokens`, `12 min`."""
    return duration(amount) if budget == "seconds" else f"{count(amount)} {budget}"


def picture(comparisons: Sequence[Comparison], file: Any, kind: str) -> None:
    """Write the measurements, a panel for each budget: a point each, those of a run joined by a thin line.

    Args:
        comparisons: what is drawn, a row of panels each.
        file: a path, or a binary file.
        kind: `png` or `svg`.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = (4.2 * len(BUDGETS), 3.6 * len(comparisons))
    figure = pyplot.figure(figsize=size, layout="constrained")
    parts = figure.subfigures(len(comparisons), 1, squeeze=False)[:, 0]
    for part, comparison in zip(parts, comparisons, strict=True):
        _panels(part, comparison)
    figure.savefig(file, dpi=150, format=kind)
    pyplot.close(figure)


def _panels(part: Any, comparison: Comparison) -> None:
    panels = part.subplots(1, len(BUDGETS), sharey=True)
    for panel, budget in zip(panels, BUDGETS, strict=True):
        for number, arm in enumerate(comparison.arms):
            for place, curve in enumerate(arm.curves):
                # A dollar sign would begin mathematics; a label that begins with "_" is left out of the legend.
                label = "_" if place else arm.name.replace("$", r"\$")
                colour = COLOURS[number % len(COLOURS)]
                panel.plot(curve.spent[budget], curve.values, color=colour, marker=".", linewidth=0.6, label=label)
        panel.axvline(comparison.amounts[budget], color="grey", linewidth=0.8, linestyle=":")
        panel.set_xlim(left=0)
        panel.set_xlabel({"tokens": "generated tokens"}.get(budget, budget))
    panels[0].set_ylabel(comparison.measure.replace("$", r"\$"))
    part.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", frameon=False)


def svg(*comparisons: Comparison) -> str:
    """The picture as the text of an SVG."""
    drawn = io.BytesIO()
    picture(comparisons, drawn, "svg")
    return drawn.getvalue().decode()


def page(*comparisons: Comparison, why: str = "") -> str:
    """One HTML page without scripts that needs no other file.

    Args:
        comparisons: one for each set of tasks.
        why: sentence on why there are several.
    """
    arms = [arm for comparison in comparisons for arm in comparison.arms]
    folders = [(arm.name, ", ".join(str(curve.run.folder) for curve in arm.curves)) for arm in arms]
    measures = ", ".join(dict.fromkeys(comparison.measure for comparison in comparisons))
    blocks: list[Block] = [Sentence(why)] if why else []
    blocks += [
        Picture(svg(*comparisons), "", measures),
        Sentence(
            "A point is a measurement; the thin line only joins those of a run. The dotted line is the most that every "
            "run has spent."
        ),
    ]
    for comparison in comparisons:
        names = [arm.name for arm in comparison.arms]
        blocks += [Heading(f"{comparison.measure}: {', '.join(names)}"), Table(HEAD, list(rows(comparison)))]
        differences = [(key, *words) for key, words in comparison.differences()]
        if differences:
            blocks += [Heading("In what the recipes differ"), Table(("key", *names), differences)]
    blocks += [Heading("Runs"), Table(("arm", "folders"), folders)]
    return html(f"{measures}: {', '.join(arm.name for arm in arms)}", blocks)
