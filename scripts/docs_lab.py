"""The tables of the lab, from what `scripts/bench/lab.py` has measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from docs_markdown import table

from verl_hier.host.manager import PluginHost
from verl_hier.host.specs import EstimatorSpec
from verl_hier.lab.delegation import DELEGATED
from verl_hier.lab.methods import fed, unfed
from verl_hier.lab.parts import SAMPLED_WORLDS, SCHEDULED_WORLDS, sampled, scheduled
from verl_hier.lab.reasons import NOT_FED, NOT_RUN, reason
from verl_hier.lab.study import BIASED_WORLDS, LEARNS, STALLS, STORED, Table, stored
from verl_hier.lab.world import World
from verl_hier.lab.worlds import WORLDS

BY_ROLE = ("reinforce", "grpo", "himac", "metaagent_x", "dual_loop", "himac@nested", "metaagent_x@designs")
"""Methods whose gradient is shown role by role."""
VARIANCE = Path(__file__).parent.parent / "docs" / "variance.json"


def worlds(known: Mapping[str, World] = WORLDS, what: str = "what is difficult") -> Iterator[str]:
    """The worlds."""
    rows = [
        (f"`{world.name}`", str(len(world.start)), str(world.horizon), f"{world.best:.2f}", f"{world.uniform:.2f}",
         world.difficulty)
        for world in known.values()
    ]  # fmt: skip
    yield from table(("world", "states", "turns", "best", "random", what), *rows)


def delegated() -> Iterator[str]:
    """The worlds with sub-agents."""
    yield from worlds(DELEGATED, "what helpers are worth")


def matrix() -> Iterator[str]:
    """Regret at the end, a row for each method."""
    yield from _regrets(stored(), list(WORLDS))


def samplers() -> Iterator[str]:
    """The same, of the product's samplers."""
    yield from _regrets(_of(stored(part="samplers"), sampled()), SAMPLED_WORLDS)


def schedules() -> Iterator[str]:
    """The same, of the product's schedules, and those that are not run."""
    yield from _regrets(_of(stored(part="samplers"), scheduled()), SCHEDULED_WORLDS)


def not_run() -> Iterator[str]:
    """Schedules that the lab does not run."""
    yield from table(("schedule", "why it is not run"), *((f"`{name}`", why) for name, why in sorted(NOT_RUN.items())))


def _of(found: Table, names: Sequence[str]) -> Table:
    return {(name, world): summary for (name, world), summary in found.items() if name in names}


def _regrets(found: Table, worlds: Sequence[str]) -> Iterator[str]:
    """Bold where a method learns, in brackets where it does not."""
    rows = []
    for name in dict.fromkeys(name for name, _ in found):
        cells = []
        for world in worlds:
            summary = found.get((name, world))
            if summary is None:
                cells.append("")
                continue
            text = f"{summary.regret[0]:.2f}"
            cells.append(
                f"**{text}**" if summary.regret[0] <= LEARNS else f"({text})" if summary.regret[0] >= STALLS else text
            )
        rows.append((f"`{name}`", *cells))
    yield from table(("method", *(world.replace("_", " ") for world in worlds)), *rows)


def stalls() -> Iterator[str]:
    """Why a method does not learn, or only in part, and in which worlds."""
    where: dict[tuple[str, str], list[str]] = {}
    for (name, world), summary in [*stored().items(), *stored(part="samplers").items()]:
        if summary.verdict != "learns":
            why = reason(name, world) or "**not explained**"
            where.setdefault((name, why), []).append(f"`{world}` ({summary.regret[0]:.2f})")
    rows = [(f"`{name}`", ", ".join(worlds), why) for (name, why), worlds in where.items()]
    yield from table(("method", "worlds, with the regret there", "why"), *rows)


def left_out() -> Iterator[str]:
    """Estimators that need columns which nothing fills."""
    host = PluginHost.load({"builtin": True})
    rows = [
        (f"`{name}`", ", ".join(f"`{column}`" for column in unfed(spec)), NOT_FED.get(name, "**not explained**"))
        for name, spec in sorted(host.specs("estimator").items())
        if isinstance(spec, EstimatorSpec) and not spec.native and not fed(spec, host)
    ]
    yield from table(("estimator", "columns that no world fills", "why"), *rows)


def bias() -> Iterator[str]:
    """Bias and noise of each method's gradient."""
    yield from _biases([each for each in _biased() if each["method"] not in sampled()], BIASED_WORLDS)


def sampler_bias() -> Iterator[str]:
    """The same, of the product's samplers."""
    places = [world for world in BIASED_WORLDS if world in SAMPLED_WORLDS]
    yield from _biases([each for each in _biased() if each["method"] in sampled()], places)


def roles() -> Iterator[str]:
    """Scale and noise of the gradient by role, and how many tasks say nothing."""
    rows = [
        (
            *(f"`{each['method']}`", f"`{each['world']}`", f"{100 * each['silent']:.0f} %"),
            *(role, f"{scale:.2f}", f"{noise:.3g}"),
        )
        for each in _biased()
        if each["method"] in BY_ROLE
        for role, (scale, noise) in each.get("roles", {}).items()
    ]
    yield from table(("method", "world", "silent tasks", "role", "scale", "noise"), *rows)


def _biased() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(STORED.read_text(encoding="utf-8"))["bias"]
    return found


def _biases(found: Sequence[Mapping[str, Any]], places: Sequence[str]) -> Iterator[str]:
    numbers = {(each["method"], each["world"]): each["numbers"] for each in found}
    rows = []
    for name in dict.fromkeys(name for name, _ in numbers):
        cells = []
        for world in places:
            bias, low, high, noise, _ = numbers.get((name, world), (None,) * 5)
            cells += ["", ""] if bias is None else [f"{max(low, 0):.2f} to {high:.2f}", f"{noise:.3g}"]
        rows.append((f"`{name}`", *cells))
    head = [text for world in places for text in (f"bias, {world.replace('_', ' ')}", "noise")]
    yield from table(("method", *head), *rows)


def variance() -> Iterator[str]:
    """What a critic does to bias and noise, as `scripts/bench/variance.py` has measured it."""
    held = json.loads(VARIANCE.read_text(encoding="utf-8"))["rows"]
    rows = [(f"`{each['world']}`", each["method"], each["critic"], each["bias"], each["noise"]) for each in held]
    yield from table(("world", "method", "critic", "bias", "noise"), *rows)


BLOCKS = {
    "variance": variance,
    "lab_worlds": worlds,
    "lab_delegated": delegated,
    "lab_matrix": matrix,
    "lab_samplers": samplers,
    "lab_schedules": schedules,
    "lab_not_run": not_run,
    "lab_stalls": stalls,
    "lab_left_out": left_out,
    "lab_bias": bias,
    "lab_sampler_bias": sampler_bias,
    "lab_roles": roles,
}
