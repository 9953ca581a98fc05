"""Plots of the lab's runs: regret and success over turns, the mean of the seeds with its 95 % interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_hier.lab.study import Cell, interval

Array = NDArray[Any]
POINTS = 41
_SHOWN = (("regret", "regret"), ("solved", "tasks solved"))


def band(runs: Sequence[Mapping[str, Any]], name: str) -> tuple[Array, Array, Array]:
    """A curve of several seeds on one grid.

    Args:
        runs: curves as `study.run` returns them.
        name: `regret` or `solved`.

    Returns:
        (P,) turns, (P,) means, (P,) half widths of the intervals, which are 0 for a single run.
    """
    turns = np.linspace(0, min(run["turns"][-1] for run in runs), POINTS)
    each = np.array([np.interp(turns, run["turns"], run[name]) for run in runs])
    pairs = np.array([interval(column) for column in each.T])
    return turns, pairs[:, 0], np.where(np.isfinite(pairs[:, 1]), pairs[:, 1], 0.0)


def draw(found: Mapping[Cell, Mapping[str, Any]], file: Path) -> None:
    """Write a plot: a column for each world, regret above success, a line with its band for each method.

    Args:
        found: runs as `study.study` returns them; those that were refused are left out.
        file: the image, in a format that its suffix names.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    worlds = list(dict.fromkeys(world for _, world, _ in found))
    methods = list(dict.fromkeys(name for name, _, _ in found))
    colours = pyplot.get_cmap("turbo")(np.linspace(0.05, 0.95, len(methods)))
    figure, panels = pyplot.subplots(
        2, len(worlds), figsize=(1 + 3 * len(worlds), 5.5), sharey="row", layout="constrained", squeeze=False
    )
    for world, column in zip(worlds, panels.T, strict=True):
        for method, colour in zip(methods, colours, strict=True):
            runs = [run for (m, w, _), run in found.items() if (m, w) == (method, world) and "refused" not in run]
            if not runs:
                continue
            for panel, (name, _) in zip(column, _SHOWN, strict=True):
                turns, mean, half = band(runs, name)
                panel.plot(turns, mean, color=colour, label=method)
                panel.fill_between(turns, mean - half, mean + half, color=colour, alpha=0.15, linewidth=0)
        column[0].set(title=world.replace("_", " "))
        column[1].set(xlabel="turns", ylim=(0, 1))
    for row, (_, label) in zip(panels, _SHOWN, strict=True):
        row[0].set_ylabel(label)
    handles = {text: line for panel in panels[0] for line, text in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside right upper", frameon=False)
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
