"""Many runs of the lab: methods times worlds times seeds, in pieces that a file keeps."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from verl_hier.errors import CreditError, HierError
from verl_hier.graph.atomic_write import atomic_write
from verl_hier.graph.bounded_reading import read_json
from verl_hier.host.manager import PluginHost
from verl_hier.host.side_by_side import side_by_side
from verl_hier.host.specs import EstimatorSpec
from verl_hier.lab.learn import Setting, learn
from verl_hier.lab.methods import REFERENCES, fed, method, split
from verl_hier.lab.worlds import WORLDS

QUICK_WORLDS = ("decisive", "two_clocks", "early_end")
BIASED_WORLDS = (*QUICK_WORLDS, "two_agents")
"""Worlds in which gradients are compared with the exact one: one of them has the roles that `cory` needs."""
QUICK_METHODS = ("reinforce", "grpo", "gigpo", "rloo", "himac", "tree_grpo")
LEARNS, STALLS = 0.25, 0.75
"""Mean regrets up to which a method learns, and from which on it does not."""
# Quantiles of Student's t at 0.975 for 1 to 30 degrees of freedom; beyond these, the normal one.
_T: tuple[float, ...] = (
    *(12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13),
    *(2.12, 2.11, 2.10, 2.09, 2.09, 2.08, 2.07, 2.07, 2.06, 2.06, 2.06, 2.05, 2.05, 2.05, 2.04),
)
Cell = tuple[str, str, int]
"""Method, world and seed of a run."""


@dataclass(frozen=True)
class Summary:
    """What the seeds of a method reached in a world, each with the half width of its 95 % interval.

    Attributes:
        regret: at the end.
        area: mean regret over the whole budget: how fast it learned.
        solved: probability that a task is solved, at the end.
        seeds: how many.
    """

    regret: tuple[float, float]
    area: tuple[float, float]
    solved: tuple[float, float]
    seeds: int

    @property
    def verdict(self) -> str:
        """In a word, by the regret at the end."""
        if self.regret[0] <= LEARNS:
            return "learns"
        return "does not learn" if self.regret[0] >= STALLS else "learns in part"


STORED = Path(__file__).with_name("results.json")
"""What comes with the package: the summary of every method that the worlds can feed, in every world."""
Table = dict[tuple[str, str], Summary]
"""Method and world to what its seeds reached."""


def stored(file: Path = STORED, part: str = "summaries") -> Table:
    """The summaries that come with the package; `samplers` is the part of the product's samplers and schedules, at
    another budget and in other worlds, and `longer` what some of them reach at a larger one."""
    held = json.loads(file.read_text(encoding="utf-8"))[part]
    return {(each["method"], each["world"]): _summary(each) for each in held}


def _summary(held: Mapping[str, Any]) -> Summary:
    regret, area, solved = ((held[name][0], held[name][1]) for name in ("regret", "area", "solved"))
    return Summary(regret, area, solved, held["seeds"])


def store(file: Path = STORED, *, summaries: Table, samplers: Table, longer: Table, **more: Any) -> None:
    """Write summaries as `stored` reads them, and what else has been measured beside them."""
    parts = {
        name: [{"method": each, "world": world, **asdict(summary)} for (each, world), summary in table.items()]
        for name, table in (("summaries", summaries), ("samplers", samplers), ("longer", longer))
    }
    write_lines(file, {**more, **parts})


def feedable(host: PluginHost) -> list[str]:
    """The references and every estimator whose columns the worlds fill, or a schedule of its name, by name."""
    specs = [spec for spec in host.specs("estimator").values() if isinstance(spec, EstimatorSpec) and not spec.native]
    return [*REFERENCES, *sorted(spec.name for spec in specs if fed(spec, host) in ("world", "schedule"))]


def names(text: str, known: Iterable[str], option: str, all_: Sequence[str]) -> list[str]:
    """The names of a list with commas; `all` is every one.

    Raises:
        HierError: for an empty list or an unknown name.
    """
    chosen = list(all_) if text == "all" else [each.strip() for each in text.split(",") if each.strip()]
    known = list(known)
    wrong = [each for each in chosen if split(each)[0] not in known]
    if wrong or not chosen:
        raise HierError(f"{option} {text}: {wrong[0] if wrong else 'nothing'!r} is not one of {', '.join(known)}.")
    return chosen


def run(cell: Cell, setting: Setting, enabled: Mapping[str, Any]) -> dict[str, Any]:
    """The curve of one run, for JSON; `refused` alone, with the reason, where the estimator misses something."""
    name, world, seed = cell
    try:
        return learn(WORLDS[world], method(name, PluginHost.load(enabled)), seed, setting).to_dict()
    except CreditError as error:
        return {"refused": str(error)}


def study(
    cells: Sequence[Cell],
    setting: Setting,
    file: Path | None = None,
    enabled: Mapping[str, Any] | None = None,
    processes: int | None = None,
    note: Callable[[int, int], None] = lambda done, all_: None,
) -> dict[Cell, dict[str, Any]]:
    """Run what a file does not hold yet, and keep each run there.

    Args:
        cells: the runs.
        setting: of all of them.
        file: JSON; runs of the same setting that it holds are not repeated.
        enabled: `hier.plugins`, for estimators of one's own.
        processes: side by side; as many as there are cores when omitted.
        note: called with the numbers of runs that are done, and of all.

    Raises:
        HierError: when the file holds runs of another setting, or something else.
    """
    found = _read(file, setting) if file is not None and file.exists() else {}
    missing = [cell for cell in cells if cell not in found]
    work = partial(run, setting=setting, enabled=dict(enabled or {"builtin": True}))
    for number, (cell, curve) in enumerate(zip(missing, _mapped(work, missing, processes), strict=True), start=1):
        found[cell] = curve
        note(len(cells) - len(missing) + number, len(cells))
        if file is not None and (number % 50 == 0 or number == len(missing)):
            _write(file, setting, found)
    return {cell: found[cell] for cell in cells}


def _mapped(
    work: Callable[[Cell], dict[str, Any]], cells: Sequence[Cell], processes: int | None
) -> Iterator[dict[str, Any]]:
    count = min(processes or os.cpu_count() or 1, len(cells))
    if count <= 1:
        yield from map(work, cells)
        return
    with side_by_side(count, "fork") as pool:
        yield from pool.map(work, cells, chunksize=4)


def summarise(runs: Iterable[Mapping[str, Any]]) -> Summary | None:
    """What the seeds of a method reached in a world; None where the method was refused."""
    each = list(runs)
    if any("refused" in run for run in each):
        return None
    return Summary(
        interval([run["regret"][-1] for run in each]),
        interval([float(np.mean(run["regret"])) for run in each]),
        interval([run["solved"][-1] for run in each]),
        len(each),
    )


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half width of its 95 % interval, by Student's t; the width of one value is infinite."""
    if len(values) < 2:
        return float(np.mean(values)), math.inf
    quantile = _T[len(values) - 2] if len(values) - 2 < len(_T) else 1.96
    return float(np.mean(values)), float(quantile * np.std(values, ddof=1) / math.sqrt(len(values)))


def _read(file: Path, setting: Setting) -> dict[Cell, dict[str, Any]]:
    held = read_json(file)
    try:
        same = held["setting"] == asdict(setting)
        runs = {(str(each["method"]), str(each["world"]), int(each["seed"])): each["curve"] for each in held["runs"]}
        sound = all(map(_is_curve, runs.values()))
    except (KeyError, TypeError, ValueError, OverflowError):
        same = sound = False
        runs = {}
    if not sound:
        raise HierError(f"{file} holds no runs of the lab; name another file with --out.")
    if not same:
        raise HierError(f"{file} holds runs of another budget; name another file with --out.")
    return runs


def _is_curve(curve: Any) -> bool:
    """Whether something is what `run` returns."""
    if not isinstance(curve, dict) or isinstance(curve.get("refused"), str):
        return isinstance(curve, dict)
    columns = [curve.get(name) for name in ("turns", "regret", "solved")]
    if not all(isinstance(column, list) and column for column in columns):
        return False
    numbers = [number for column in columns if column for number in column]
    return all(isinstance(number, int | float) and math.isfinite(number) for number in numbers)


def _write(file: Path, setting: Setting, found: Mapping[Cell, Mapping[str, Any]]) -> None:
    runs = [
        {"method": name, "world": world, "seed": seed, "curve": found[name, world, seed]}
        for name, world, seed in sorted(found)
    ]
    write_lines(file, {"setting": asdict(setting), "runs": runs})


def write_lines(file: Path, parts: Mapping[str, Any]) -> None:
    """Write JSON whose lists have a line for each entry, so that changes can be read."""
    fields = []
    for name, value in parts.items():
        text = json.dumps(value)
        if isinstance(value, list):
            text = "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
        fields.append(f"{json.dumps(name)}: {text}")
    with atomic_write(file) as target:
        target.write_text("{" + ",\n".join(fields) + "}\n", encoding="utf-8")
