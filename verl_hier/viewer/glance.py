"""The run at a glance: three answers in a sentence each, and the trees that are worth a look first."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from verl_hier.graph.outline import examples

View = dict[str, Any]
MOST_TREES = 8
LARGEST_TREE = 600
"""Turns of a tree that is drawn small; a larger one is a link without a picture."""
_HELD_OUT = ("hier/validation/success", "hier/validation/return")
_OF_ROLE = re.compile(r"size of credit of (.+)")


def glance(found: View, records: Sequence[Mapping[str, Any]], tree: Callable[[int, str], View]) -> View:
    """What the first page shows above everything else.

    Args:
        found: the overview.
        records: metrics of steps, each with its number as `step`.
        tree: the trees of a group by its step and uid, see `tree_view`.

    Returns:
        `answers`, of each what it `asks` and `says`; and `trees`, of each its place (`step`, `uid`, `title`), `why` it
        is shown, and, where it is small enough, of its turns `parent`, `level` and `credit`, and its `leaves`: turn,
        return, and whether it was won, None where nobody said.
    """
    answers = [
        {"asks": "Did it learn?", "says": _learned(found["steps"], records)},
        {"asks": "Who learned?", "says": _who(found["steps"])},
        {"asks": "What is wrong?", "says": _wrong(found["alarms"])},
    ]
    trees = [{"why": why, **_small(tree, group)} for why, group in chosen(found)]
    return {"answers": answers, "trees": trees}


def chosen(found: View) -> list[tuple[str, Mapping[str, Any]]]:
    """The groups that are worth a look: those of the last step that the report names, of alarms, of other steps."""
    groups = found["groups"]
    last = max((group["step"] for group in groups), default=0)
    named = list(examples(group for group in groups if group["step"] == last))
    for alarm in found["alarms"]:
        if alarm["kind"] == "alarm":
            named += [(f"Alarm: {alarm['many']} {alarm['says']}", groups[place]) for place in alarm["places"][:1]]
    others = sorted((group for group in groups if group["spread"] > 0), key=lambda group: -group["spread"])
    named += [("Returns differ much", group) for group in others]
    places: dict[tuple[int, str], tuple[str, Mapping[str, Any]]] = {}
    for why, group in named:
        places.setdefault((group["step"], group["uid"]), (why, group))
    return list(places.values())[:MOST_TREES]


def _small(tree: Callable[[int, str], View], group: Mapping[str, Any]) -> View:
    place = {name: group[name] for name in ("step", "uid", "title", "turns", "episodes", "succeeded")}
    if group["turns"] > LARGEST_TREE:
        return place
    view = tree(group["step"], group["uid"])
    turns, episodes = view["turns"], view["episodes"]
    ends = zip(episodes["leaf"], episodes["ret"], episodes["success"], episodes["status"], strict=True)
    leaves = [[leaf, ret, won] for leaf, ret, won, status in ends if leaf >= 0 and status in ("finished", "truncated")]
    return place | {name: turns[name] for name in ("parent", "level", "credit")} | {"leaves": leaves}


def _learned(steps: Sequence[View], records: Sequence[Mapping[str, Any]]) -> str:
    """From held-out measurements, where there are two; else from the episodes of training."""
    for name in _HELD_OUT:
        held = [(record["step"], float(record[name])) for record in records if name in record]
        if len(held) > 1:
            (first, before), (last, after) = held[0], held[-1]
            what = name.rpartition("/")[2]
            return f"Held-out {what} {_change(what, before, after)} from step {first} to step {last}."
    for what in ("success", "return"):
        seen = [(step["step"], step[what]) for step in steps if step.get(what) is not None]
        if not seen:
            continue
        if len(seen) == 1:
            return f"One step is stored, which says nothing of learning; its {what} is {seen[0][1]:.2f}."
        part = max(1, len(seen) // 3)
        before, after = (statistics.mean(value for _, value in each) for each in (seen[:part], seen[-part:]))
        where = f"between the first and the last {part} stored steps" if part > 1 else "between the first and last step"
        return (
            f"In training {what} {_change(what, before, after)} {where}; nothing was measured on held-out tasks before "
            "and after."
        )
    return "Nothing is stored yet."


def _change(what: str, before: float, after: float) -> str:
    if what == "success":
        return f"{before:.1%} → {after:.1%} ({100 * (after - before):+.1f} points)"
    return f"{before:.2f} → {after:.2f} ({after - before:+.2f})"


def _who(steps: Sequence[View]) -> str:
    """Each role with the size of its credit, over all stored steps, and how its entropy went."""
    roles = dict.fromkeys(match[1] for step in steps for name in step if (match := _OF_ROLE.fullmatch(name)))
    ordered = sorted(roles, key=lambda role: (role.rpartition(" ")[2], role))  # level 0 first
    said = [text for role in ordered if (text := _role(role, steps))]
    return f"{'; '.join(said)}." if said else "Nothing is stored yet."


def _role(role: str, steps: Sequence[View]) -> str:
    sizes, entropy = (
        [step[name] for step in steps if step.get(name) is not None]
        for name in (f"size of credit of {role}", f"entropy of {role}")
    )
    if not sizes:
        return f"{role} has no stored credit"
    size = statistics.mean(sizes)
    text = f"{role}: credit of size {size:.2f} a turn" if size else f"{role}: no credit, so it learned nothing"
    return f"{text}, entropy {entropy[0]:.2f} → {entropy[-1]:.2f}" if len(entropy) > 1 else text


def _wrong(alarms: Sequence[View]) -> str:
    said = [f"{alarm['many']} {alarm['says']}" for alarm in alarms if alarm["kind"] == "alarm"]
    hints = sum(alarm["kind"] == "hint" for alarm in alarms)
    more = f" {hints} hint{'s' * (hints > 1)} below." if hints else ""
    return f"{'; '.join(said)}.{more}" if said else f"No alarm.{more}"


def first_groups(found: View) -> Iterator[int]:
    """The numbers of the groups of `chosen`, which a file takes before others."""
    numbers = {(group["step"], group["uid"]): number for number, group in enumerate(found["groups"])}
    yield from (numbers[group["step"], group["uid"]] for _, group in chosen(found))
