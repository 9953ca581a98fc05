"""Everything that a page can ask for, by its name: the same answers over the server and inside of a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

import pyarrow as pa

from verl_hier.credit.blame import by_the_others
from verl_hier.errors import HierError
from verl_hier.viewer.glance import first_groups, glance
from verl_hier.viewer.group import paths, tree_view, words_view
from verl_hier.viewer.overview import View, overview
from verl_hier.viewer.steps import Reading, Step, find, stamp
from verl_hier.viewer.why import Explainer

Render = Callable[[dict[str, Any], list[dict[str, Any]]], str | None]
LARGEST_PICTURE = 100_000
"""Characters of what an environment draws."""
MOST_HITS = 500
"""Turns that a search returns; it counts all of them."""
_LEAST = 300
"""Characters of the texts of a turn, at the least: the names of its fields alone are as many."""
_ASIDE = 30
"""Groups of each alarm that a file takes before it takes others."""


@dataclass(frozen=True)
class Metrics:
    """The metrics of a run.

    Attributes:
        file: that grows while the run goes on.
        read: gives those of each step that has ended, with its number as `step`; raises `HierError` when they are
            damaged.
    """

    file: Path
    read: Callable[[], Sequence[Mapping[str, Any]]]


class Book:
    """Stored rollouts, read again when a step was added."""

    def __init__(
        self,
        source: Path,
        explainer: Explainer,
        run: Mapping[str, Any] | None = None,
        render: Render | None = None,
        metrics: Metrics | None = None,
        against: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            source: store, step, graph file, or a folder of them.
            explainer: of the credit.
            run: what `run.json` says, see `run_record`; None for rollouts that stand alone.
            render: draws the state after a path of turns, see `hier_render`; None where no plugin does.
            metrics: of the run; None for rollouts that stand alone.
            against: another run: its `name`, and the `lines` in which the recipes differ, each a key and two values.
        """
        self._source, self._explainer, self._render, self._metrics = source, explainer, render, metrics
        self._run = _about(run or {}, source) | {"against": against}
        self._stamp: str | None = None
        self._reading = Reading()
        self._steps: dict[int, Step] = {}
        self._overview: View = {}
        self._nodes: tuple[tuple[str | None, int, str], pa.Table] | None = None  # of the group that was opened last

    @property
    def name(self) -> str:
        """What the run, or the source, is called."""
        return str(self._run["name"])

    def overview(self, patience: float = inf) -> View:
        """The overview, with `run` (what ran), `notes`, `unread` and `stamp`, which changes with the content.

        Args:
            patience: seconds after which the steps that were read so far are shown; `unread` says how many are left,
                which the next call goes on with. The last step is read first.
        """
        end = monotonic() + patience
        now = stamp(self._source) + ("" if self._metrics is None else f"-{stamp(self._metrics.file)}")
        begins = now != self._stamp
        if begins:
            self._reading, self._stamp = Reading(self._source, self._reading), now
        changed = begins
        while self._reading.unread and (begins or monotonic() < end):
            self._reading.read_one()
            begins, changed = False, True
        if changed:
            self._show()
        return self._overview

    def _show(self) -> None:
        steps, notes = self._reading.found()
        self._steps = {step.number: step for step in steps}
        methods = [method.spec.name for method in self._explainer.methods]
        unread = self._reading.unread
        records: Sequence[Mapping[str, Any]] = ()
        try:
            records = () if self._metrics is None else self._metrics.read()
        except HierError as error:
            notes.append(str(error))
        about = {"run": self._run, "notes": notes, "methods": methods, "unread": unread}
        found = overview(steps, self._run["guards"], records)
        seen = glance(found, records, lambda step, uid: tree_view(self._steps[step], uid))
        self._overview = about | {"stamp": f"{self._stamp}-{unread}"} | found | seen

    def group(self, step: int, uid: str) -> View:
        """The trees of a group, see `tree_view`.

        Raises:
            HierError: when it is not stored.
        """
        return tree_view(self._step(step, uid), uid)

    def words(self, step: int, uid: str, turns: Sequence[int] | None = None) -> View:
        """What was said in some turns of a group, or in all: `turns`, see `words_view`.

        Raises:
            HierError: when the group is not stored, or has no such turn.
        """
        found = self._step(step, uid)
        rows = found.turns(uid)
        numbers = range(rows.stop - rows.start)
        wrong = next((turn for turn in turns or () if turn not in numbers), None)
        if wrong is not None:
            raise HierError(f"step {step} with a task {uid!r:.60} has no turn {wrong}.")
        key = (self._stamp, step, uid)
        if self._nodes is None or self._nodes[0] != key:
            self._nodes = key, found.nodes(uid)
        nodes, chosen = self._nodes[1], numbers if turns is None else turns
        views = words_view(nodes, chosen)
        if self._render is not None:
            task = found.tasks[found.uids().index(uid)]
            for view, path in zip(views, paths(nodes, chosen), strict=True):
                picture = self._render(task, path)
                view |= {} if picture is None else {"picture": picture[:LARGEST_PICTURE]}
        return {"turns": views}

    def why(self, step: int, uid: str) -> View:
        """What the estimators say about the credit of a group: `methods`, see `Explainer.view`; and who `lost` its lost
        attempts, as far as the others tell: for each its `episode`, `turn` and `drop`, and of `turns` their `drops`.

        Raises:
            HierError: when it is not stored.
        """
        found = self._step(step, uid)
        blamed = by_the_others(found.graph(uid))
        lost = [
            {"episode": one.episode, "turn": one.node, "drop": one.drop, "turns": one.turns, "drops": one.drops}
            for one in blamed
        ]
        return {"methods": self._explainer.view(found, uid), "lost": lost}

    def _step(self, step: int, uid: str) -> Step:
        self.overview(patience=0.0)
        while step not in self._steps and self._reading.unread:
            self._reading.read_one(step)
            self._show()
        if step not in self._steps or uid not in self._steps[step].uids():
            raise HierError(f"step {step} with a task {uid!r:.60} is not stored.")
        return self._steps[step]

    def search(self, words: str, over: Callable[[], bool] = lambda: False) -> Callable[[], View]:
        """A search for the turns that said or were told some words, in the steps of now.

        Returns:
            what makes the search, which may go on beside other calls: `hits` of `step`, `uid` and `node`, and how
            `many` there are. It ends early once `over` is true.
        """
        self.overview()
        steps = [*self._steps.values()]

        def made() -> View:
            hits = list(find(steps, words, over))
            shown = [{"step": step, "uid": uid, "node": node} for step, uid, node in hits[:MOST_HITS]]
            return {"words": words, "many": len(hits), "hits": shown}

        return made

    def pages(self, most: int) -> Iterator[tuple[str, str]]:
        """Names and texts of JSON: the overview, and as many groups as fit.

        The groups of the first page come first, which are also those that the report names; then those of alarms and
        hints, then those of all steps.

        Args:
            most: characters of all texts together.
        """
        found = self.overview()
        text = dumps(found)
        yield "overview", text
        left = most - len(text)
        for number in _order(found):
            step, uid = found["groups"][number]["step"], found["groups"][number]["uid"]
            if left < _LEAST * found["groups"][number]["turns"]:
                continue  # without being made, since a run may have a thousand groups that do not fit
            views = {"group": self.group(step, uid), "words": self.words(step, uid), "why": self.why(step, uid)}
            texts = [(f"{name}/{step}/{uid}", dumps(view)) for name, view in views.items()]
            size = sum(len(text) for _, text in texts)
            if size <= left:
                left -= size
                yield from texts


def dumps(value: Any) -> str:
    """JSON that every browser reads: NaN and infinity, which JSON does not have, are null."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {str(name): _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def _order(found: View) -> list[int]:
    """Groups in the order in which a file takes them: of the first page, of alarms, of steps, the last step first."""
    alarmed = [place for alarm in found["alarms"] for place in alarm["places"][:_ASIDE]]
    by_step: dict[int, list[int]] = {}
    for number, group in enumerate(found["groups"]):
        by_step.setdefault(group["step"], []).append(number)
    columns = [by_step[step] for step in sorted(by_step, reverse=True)]
    longest = max(map(len, columns), default=0)
    rest = [column[place] for place in range(longest) for column in columns if place < len(column)]
    # One group of each kind of alarm, and one of each step, come before the second of any.
    firsts = [*first_groups(found)]
    firsts += [place for alarm in found["alarms"] for place in alarm["places"][:1]] + [column[0] for column in columns]
    return list(dict.fromkeys([*firsts, *alarmed, *rest]))


def _about(record: Mapping[str, Any], source: Path) -> View:
    recipe = record.get("recipe", {})
    hier = recipe.get("hier", {}) if isinstance(recipe, Mapping) else {}
    return {
        "name": str(record.get("name", source.name)),
        **{name: record.get(name, {}) for name in ("parts", "versions", "seeds")},
        "overrides": record.get("overrides", []),
        "revision": record.get("revision"),
        "guards": hier.get("guards", {}) if isinstance(hier, Mapping) else {},
    }
