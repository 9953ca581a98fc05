"""The report of a run: what ran, what it reached for what, its guards and alarms, and three of its trees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from verl_hier.errors import HierError
from verl_hier.graph import Node, RolloutGraph
from verl_hier.ops import pages
from verl_hier.ops.compare import BUDGETS, Comparison, compare
from verl_hier.ops.compare_page import said, svg
from verl_hier.ops.pages import Block, Heading, Listing, Picture, Sentence, Table
from verl_hier.ops.progress import summary
from verl_hier.ops.runs import Run, write_whole
from verl_hier.ops.sharing import said_of_last_step
from verl_hier.ops.stored import Stored
from verl_hier.viewer.overview import overview
from verl_hier.viewer.steps import Step, read_steps

_MOST_LINES = 40
_WIDEST = 100
"""Characters of a turn's line, and lines of a tree, that the report shows."""


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
    yield Sentence(_what_ran(stored.record() if stored else {}))
    for sentence in summary(run.metrics()):
        yield Sentence(f"{sentence}.")
    yield Picture(drawn, run.report.with_suffix(".svg").name, comparison.measure)
    yield Table(("spent", comparison.measure), list(_reached(comparison)))
    guards = stored.recipe().get("guards", {}) if stored else {}
    if isinstance(guards, Mapping) and any(value is not None for value in guards.values()):
        yield Heading("Guards")
        yield Table(("guard", "set to"), [(str(k), str(v)) for k, v in guards.items() if v is not None])
    for note in notes:
        yield Sentence(note)
    if stored and steps:
        yield from _rollouts(run, steps)
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


def _what_ran(record: Mapping[str, Any]) -> str:
    """`himac_alfworld: alfworld, planner_executor, … with verl 0.9.1, seed 0.`"""
    parts, versions, seeds = (record.get(name) for name in ("parts", "versions", "seeds"))
    words = [f"{record.get('name', 'A run')}"]
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
    yield "nothing", f"{curve.values[0]:.3g}"
    for part in (1 / 2, 1):
        amounts = {budget: part * comparison.amounts[budget] for budget in BUDGETS}
        words = ", ".join(said(budget, amount) for budget, amount in amounts.items())
        yield words, f"{curve.at('tokens', amounts['tokens']):.3g}"


def _rollouts(run: Run, steps: Sequence[Step]) -> Iterator[Block]:
    """Alarms over all steps, and three groups of the last one."""
    found = overview(steps)
    look = f"verl-hier view {run.folder}"
    yield Heading("Alarms")
    rows = [
        (f"{alarm['many']} {alarm['says']}", *_place(found["groups"][alarm["places"][0]])) for alarm in found["alarms"]
    ]
    yield Table(("what", "worst in step", "its place on the page"), rows) if rows else Sentence("None.")
    yield Sentence(f"`{look}` opens the page, which says why each turn got its credit.")
    last = steps[-1]
    groups = [group for group in found["groups"] if group["step"] == last.number]
    for says, group in _examples(groups):
        yield Heading(f"{says}: {group['title']}")
        graph = last.graph(group["uid"])
        yield Listing(list(_tree(graph)))
        yield Sentence(f"Step {last.number}, place {_link(group)} on the page.")


def _place(group: Mapping[str, Any]) -> tuple[str, str]:
    return str(group["step"]), _link(group)


def _link(group: Mapping[str, Any]) -> str:
    return f"#/group/{group['step']}/{quote(str(group['uid']), safe='')}"


def _examples(groups: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Up to three groups: whose returns differ most, and those with the highest and the lowest mean."""
    left = [group for group in groups if group["mean"] is not None]
    for says, worth in (
        ("The group whose returns differ most", lambda group: group["spread"]),
        ("The best group", lambda group: group["mean"]),
        ("The worst group", lambda group: -group["mean"]),
    ):
        if left:
            chosen = max(left, key=worth)
            left.remove(chosen)
            yield says, chosen


def _tree(graph: RolloutGraph) -> Iterator[str]:
    """A line a turn, indented where the tree branches; the return of an episode follows its last turn."""
    below: dict[int, list[Node]] = {}
    for node in graph.nodes:
        below.setdefault(node.parent, []).append(node)
    ends = {episode.leaf: episode for episode in graph.episodes}
    credit: Sequence[float | None] = graph.credit or [None] * len(graph.nodes)
    # A stack, because trees may be deeper than Python's calls.
    stack = [(node, 0, False) for node in reversed(below.get(-1, []))]
    shown = 0
    while stack and shown < _MOST_LINES:
        node, depth, branches = stack.pop()
        value = credit[node.id]
        words = " ".join(node.text.split()) or f"{len(node.action)} tokens"
        start = f"{'│ ' * (depth - branches)}{'├ ' * branches}{node.role}: "
        end = "" if value is None else f"  {value:+.3f}"
        episode = ends.get(node.id)
        end += "" if episode is None else f"  return {episode.ret:.3g}, {episode.status}"
        room = max(10, _WIDEST - len(start) - len(end))
        yield f"{start}{words if len(words) <= room else f'{words[: room - 1]}…'}{end}"
        shown += 1
        children = below.get(node.id, [])
        forks = len(children) > 1
        stack += [(child, depth + forks, forks) for child in reversed(children)]
    if stack:
        yield f"… {len(graph.nodes) - shown} further turns"
