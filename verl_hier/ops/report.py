"""The report of a run: what ran, what it reached for what, its guards and alarms, and three of its trees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from verl_hier.errors import HierError
from verl_hier.graph.outline import examples, outline
from verl_hier.ops import pages
from verl_hier.ops.compare import BUDGETS, Comparison, compare
from verl_hier.ops.compare_page import figure, said, svg, told
from verl_hier.ops.pages import Block, Heading, Listing, Picture, Sentence, Table
from verl_hier.ops.progress import summary
from verl_hier.ops.runs import Run, write_whole
from verl_hier.ops.sharing import said_of_last_step
from verl_hier.ops.stored import RECORD, Stored
from verl_hier.viewer.overview import overview
from verl_hier.viewer.steps import Step, read_steps


def write_report(run: Run) -> Path:
    """Write `report.html`, and beside it `report.md` with its picture; returns the page.

    Raises:
        HierError: when the run has no finished step, or its files are damaged.
        OSError: when the folder cannot be written to.
    """
    comparison = compare([run])
    drawn = svg(comparison)
    title, blocks = f"{run.folder}", list(_blocks(run, comparison, drawn))
    write_whole(run.report.with_suffix(".svg"), drawn)
    write_whole(run.report.with_suffix(".md"), pages.markdown(title, blocks))
    write_whole(run.report, pages.html(title, blocks))
    return run.report


def _blocks(run: Run, comparison: Comparison, drawn: str) -> Iterator[Block]:
    stored, notes, steps = _stored(run)
    yield Sentence(_what_ran(_record(run)))
    for sentence in summary(run.metrics()):
        yield Sentence(f"{sentence}.")
    yield Picture(drawn, run.report.with_suffix(".svg").name, comparison.measure)
    yield Table(("spent", comparison.measure), list(_reached(comparison)))
    set_to = stored.recipe().get("guards") if stored else None
    guards = set_to if isinstance(set_to, Mapping) else {}
    if any(value is not None for value in guards.values()):
        yield Heading("Guards")
        yield Table(("guard", "set to"), [(str(k), str(v)) for k, v in guards.items() if v is not None])
    for note in notes:
        yield Sentence(note)
    if stored and steps:
        yield from _rollouts(run, steps, guards)
        shared = said_of_last_step(stored)
        if shared:
            yield Heading("Shared tokens")
            yield Sentence(shared)


def _stored(run: Run) -> tuple[Stored | None, list[str], list[Step]]:
    """The stored rollouts, what cannot be read of them, and their steps."""
    try:
        stored = Stored.at(run.folder)
    except HierError as error:
        return None, [str(error)], []
    steps, notes = read_steps(stored.graphs)
    return stored, notes, steps


def _record(run: Run) -> dict[str, Any]:
    """What `run.json` says, also of a run that stored no rollouts; empty where there is none."""
    return Stored(run.graphs, run.folder).record() if (run.folder / RECORD).is_file() else {}


def _what_ran(record: Mapping[str, Any]) -> str:
    """`himac_alfworld: alfworld, planner_executor, … with verl 0.9.1, seed 0.`"""
    parts, versions, seeds = (record.get(name) for name in ("parts", "versions", "seeds"))
    words = [str(record["name"]) if "name" in record else f"A run of which {RECORD} says nothing"]
    if isinstance(parts, Mapping):
        words.append(", ".join(f"{kind} {name}" for kind, name in parts.items()))
    if isinstance(versions, Mapping):
        words.append(
            ", ".join(f"{name} {versions[name]}" for name in ("verl-hier", "verl", "torch") if name in versions)
        )
    if isinstance(seeds, Mapping):
        words.append(", ".join(f"{name} {seed}" for name, seed in seeds.items() if seed is not None))
    return f"{'; '.join(word for word in words if word)}."


def _reached(comparison: Comparison) -> Iterator[tuple[str, str]]:
    (arm,) = comparison.arms
    (curve,) = arm.curves
    last = len(curve.values) - 1
    # Of a few held-out measurements each says something; a single step of training says little.
    places = sorted({0, last // 2, last} if curve.held_out else {0})
    for place in places:
        amounts = {budget: float(curve.spent[budget][place]) for budget in BUDGETS}
        words = ", ".join(said(budget, amount) for budget, amount in amounts.items())
        yield words if any(amounts.values()) else "nothing", figure(float(curve.values[place]))
    if not curve.held_out and last:
        amounts = comparison.amounts
        words = ", ".join(said(budget, amount) for budget, amount in amounts.items())
        yield words, f"mean {told(arm.at('tokens', amounts['tokens']), 'tokens')}"


def _rollouts(run: Run, steps: Sequence[Step], guards: Mapping[str, Any]) -> Iterator[Block]:
    """Alarms over all steps, and three groups of the last one."""
    found = overview(steps, guards, run.metrics())
    look = f"verl-hier view {run.folder}"
    yield Heading("Alarms and hints")
    rows = [
        (f"{alarm['kind']}: {alarm['many']} {alarm['says']}", *place)
        for alarm in found["alarms"]
        for place in [
            *(_place(found["groups"][number]) for number in alarm["places"][:1]),
            *((str(step), f"#/groups/step%3A{step}") for step in alarm["steps"][:1]),
        ]
    ]
    yield Table(("what", "worst in step", "its place on the page"), rows) if rows else Sentence("None.")
    yield Sentence(f"`{look}` opens the page, which says why each turn got its credit.")
    last = steps[-1]
    groups = [group for group in found["groups"] if group["step"] == last.number]
    for says, group in examples(groups):
        yield Heading(f"{says}: {group['title']}")
        yield Listing(list(outline(last.graph(group["uid"]))))
        yield Sentence(f"Step {last.number}, place {_link(group)} on the page.")


def _place(group: Mapping[str, Any]) -> tuple[str, str]:
    return str(group["step"]), _link(group)


def _link(group: Mapping[str, Any]) -> str:
    return f"#/group/{group['step']}/{quote(str(group['uid']), safe='')}"
