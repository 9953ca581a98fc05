"""The tables of the lab, from what `scripts/bench/lab.py` has measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from docs_markdown import table

from verl_hier.host.manager import PluginHost
from verl_hier.host.specs import EstimatorSpec
from verl_hier.lab.methods import unfed
from verl_hier.lab.reasons import reason
from verl_hier.lab.study import LEARNS, QUICK_WORLDS, STALLS, STORED, stored
from verl_hier.lab.worlds import WORLDS

VARIANCE = Path(__file__).parent.parent / "docs" / "variance.json"


def worlds() -> Iterator[str]:
    """The worlds."""
    rows = [
        (f"`{world.name}`", str(len(world.start)), str(world.horizon), f"{world.best:.2f}", f"{world.uniform:.2f}",
         world.difficulty)
        for world in WORLDS.values()
    ]  # fmt: skip
    yield from table(("world", "states", "turns", "best", "random", "what is difficult"), *rows)


def matrix() -> Iterator[str]:
    """Regret at the end, a row for each method; bold where it learns, in brackets where it does not."""
    found = stored()
    rows = []
    for name in dict.fromkeys(name for name, _ in found):
        cells = []
        for world in WORLDS:
            summary = found.get((name, world))
            if summary is None:
                cells.append("")
                continue
            text = f"{summary.regret[0]:.2f}"
            cells.append(
                f"**{text}**" if summary.regret[0] <= LEARNS else f"({text})" if summary.regret[0] >= STALLS else text
            )
        rows.append((f"`{name}`", *cells))
    yield from table(("method", *(world.replace("_", " ") for world in WORLDS)), *rows)


def stalls() -> Iterator[str]:
    """Why a method does not learn, and in which worlds."""
    where: dict[tuple[str, str], list[str]] = {}
    for (name, world), summary in stored().items():
        if summary.verdict == "does not learn":
            why = reason(name, world) or "**not explained**"
            where.setdefault((name, why), []).append(f"`{world}` ({summary.regret[0]:.2f})")
    rows = [(f"`{name}`", ", ".join(worlds), why) for (name, why), worlds in where.items()]
    yield from table(("method", "worlds, with the regret there", "why"), *rows)


def left_out() -> Iterator[str]:
    """Estimators that need columns which no world fills."""
    specs = PluginHost.load({"builtin": True}, "estimator").specs("estimator")
    rows = [
        (f"`{name}`", ", ".join(f"`{column}`" for column in unfed(spec)))
        for name, spec in sorted(specs.items())
        if isinstance(spec, EstimatorSpec) and not spec.native and unfed(spec)
    ]
    yield from table(("estimator", "columns that no world fills"), *rows)


def bias() -> Iterator[str]:
    """Bias and noise of each method's gradient in three worlds."""
    held = json.loads(STORED.read_text(encoding="utf-8"))
    numbers = {(each["method"], each["world"]): each["numbers"] for each in held["bias"]}
    rows = []
    for name in dict.fromkeys(name for name, _ in numbers):
        cells = []
        for world in QUICK_WORLDS:
            bias, low, high, noise, _ = numbers.get((name, world), (None,) * 5)
            cells += ["", ""] if bias is None else [f"{max(low, 0):.2f} to {high:.2f}", f"{noise:.3g}"]
        rows.append((f"`{name}`", *cells))
    head = [text for world in QUICK_WORLDS for text in (f"bias, {world.replace('_', ' ')}", "noise")]
    yield from table(("method", *head), *rows)


def variance() -> Iterator[str]:
    """What a critic does to bias and noise, as `scripts/bench/variance.py` has measured it."""
    held = json.loads(VARIANCE.read_text(encoding="utf-8"))["rows"]
    rows = [(f"`{each['world']}`", each["method"], each["critic"], each["bias"], each["noise"]) for each in held]
    yield from table(("world", "method", "critic", "bias", "noise"), *rows)


BLOCKS = {
    "variance": variance,
    "lab_worlds": worlds,
    "lab_matrix": matrix,
    "lab_stalls": stalls,
    "lab_left_out": left_out,
    "lab_bias": bias,
}
