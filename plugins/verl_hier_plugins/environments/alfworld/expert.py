"""A scripted expert: it searches the room as a player has to, and knows the steps of each goal type.

It uses only what it has observed, so its demonstrations can be imitated from the texts alone. It decides anew in every
state, so a random action in between costs steps but does not lose the episode.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from verl_hier_plugins.environments.alfworld.engine import Node
from verl_hier_plugins.environments.alfworld.environment import AlfworldEnvironment
from verl_hier_plugins.environments.alfworld.goals import PROOFS, held_item, of_type
from verl_hier_plugins.environments.alfworld.world import STAGES, Goal


@dataclass(frozen=True)
class Subgoal:
    """One line of the plan: `find`, `clean`/`heat`/`cool`, `put` or `use`; `count` items must lie in the target."""

    verb: str
    item: str
    target: str = ""
    count: int = 1

    def __str__(self) -> str:
        item, target = self.item.lower(), self.target.lower()
        if self.verb == "put":
            return f"put {item} in {target}"
        if self.verb == "use":
            return f"use {target}"
        if self.verb == "find" and self.count > 1:
            return f"find {item} not in {target}"
        return f"{self.verb} {item}"


def plan(goals: Iterable[Goal], rng: random.Random, skip_stage: float = 0.0) -> tuple[Subgoal, ...]:
    """The subgoals of each goal in order; a needed clean, heat or cool is left out with chance `skip_stage`."""
    found: list[Subgoal] = []
    for goal in goals:
        item, target = goal.item, goal.target
        found.append(Subgoal("find", item))
        if goal.kind == "look":
            found.append(Subgoal("use", item, target))
            continue
        if goal.kind in STAGES and rng.random() >= skip_stage:
            found.append(Subgoal(goal.kind, item, STAGES[goal.kind]))
        found.append(Subgoal("put", item, target))
        if goal.kind == "two":
            found += [Subgoal("find", item, target, count=2), Subgoal("put", item, target, count=2)]
    return tuple(found)


class View:
    """A state in the terms that the expert needs, with the names that commands use."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.facts = node.facts
        location = {place for _, place in self.facts.get("atlocation", ())}
        self.here = {r for r, place in self.facts.get("receptacleatlocation", ()) if place in location}
        self.held = held_item(self.facts)

    def name(self, entity: str) -> str:
        return self.node.game.entities[entity].name

    def receptacles(self, kind: str = "") -> list[str]:
        """Receptacles in the room's order, all or those of a type."""
        every = sorted(r for r, _ in self.facts.get("receptacleatlocation", ()))
        wanted = of_type(self.facts, "receptacletype", kind) if kind else set(every)
        return [r for r in every if r in wanted]

    def items(self, kind: str) -> set[str]:
        return of_type(self.facts, "objecttype", kind)

    def closed(self, receptacle: str) -> bool:
        return (receptacle,) in self.facts.get("openable", ()) and (receptacle,) not in self.facts.get("opened", ())

    def inside(self, receptacle: str) -> set[str]:
        return {item for item, place in self.facts.get("inreceptacle", ()) if place == receptacle}

    def can_hold(self, receptacle: str, item: str) -> bool:
        kinds = {kind for r, kind in self.facts.get("receptacletype", ()) if r == receptacle}
        types = {kind for i, kind in self.facts.get("objecttype", ()) if i == item}
        return any(r in kinds and o in types for r, o in self.facts.get("cancontain", ()))


class AlfworldExpert:
    """Follows one environment; see `verl_hier.environments.expert.Expert`."""

    def __init__(self, environment: AlfworldEnvironment, steps: tuple[Subgoal, ...], remember: bool) -> None:
        self._environment = environment
        self._steps = steps
        self._remember = remember
        self._current = -1
        self._searched: set[str] = set()
        self._seen: dict[str, str] = {}
        self._arrived: Node | None = None
        self.subgoals = tuple(str(step) for step in steps)

    def advise(self, subgoal: int) -> str | None:
        """The next command towards a subgoal, None when it is reached."""
        view = View(self._environment.node)
        if subgoal != self._current and not self._remember:
            # A context that starts here contains the last observation only, so nothing else is known.
            self._searched.clear()
            self._seen.clear()
            self._arrived = self._environment.node
        if self._remember or self._environment.node is not self._arrived:
            self._arrived = None
            self._look_around(view)
        self._current = subgoal
        step = self._steps[subgoal]
        if step.verb == "find":
            return self._find(view, step)
        if step.verb == "put":
            return self._put(view, step)
        if step.verb == "use":
            return self._use(view, step)
        return self._stage(view, step)

    def mistake(self, subgoal: int, rng: random.Random) -> str | None:
        """The command that would reach the subgoal if the agent were at the right place with the right object."""
        view, step = View(self._environment.node), self._steps[subgoal]
        item = view.name(rng.choice(sorted(view.items(step.item))))
        if step.verb == "find":
            # Mostly where the agent is: taking an object that is not there is the commonest mistake.
            spots = sorted(view.here) or view.receptacles()
            return f"take {item} from {view.name(rng.choice(spots))}"
        if step.verb == "put":
            return f"move {item} to {view.name(rng.choice(view.receptacles(step.target)))}"
        if step.verb == "use":
            return f"use {view.name(rng.choice(sorted(view.items(step.target))))}"
        return f"{step.verb} {item} with {view.name(view.receptacles(step.target)[0])}"

    def _look_around(self, view: View) -> None:
        for receptacle in view.here:
            if not view.closed(receptacle):
                self._searched.add(receptacle)
                self._seen = {item: r for item, r in self._seen.items() if r != receptacle}
                self._seen.update(dict.fromkeys(view.inside(receptacle), receptacle))

    def _find(self, view: View, step: Subgoal) -> str | None:
        wanted = view.items(step.item)
        if view.held in wanted:
            return None
        if view.held is not None:
            return self._drop(view, view.held)
        done = set(view.receptacles(step.target)) if step.count > 1 else set()
        return self._take(view, {item: r for item, r in self._seen.items() if item in wanted and r not in done}, done)

    def _take(self, view: View, known: dict[str, str], done: set[str]) -> str:
        """Fetch an item whose place is known, or search on."""
        for item, receptacle in sorted(known.items()):
            if receptacle in view.here:
                return f"take {view.name(item)} from {view.name(receptacle)}"
        if known:
            return self._go(view, sorted(known.values())[0])
        return self._search(view, done)

    def _search(self, view: View, done: set[str]) -> str:
        # Where the agent stood when the subgoal began comes last: its context does not say whether that is open.
        here = [] if self._arrived is not None else sorted(view.here)
        open_here = [r for r in here if view.closed(r) and r not in done]
        if open_here:
            return f"open {view.name(open_here[0])}"
        places = [r for r in view.receptacles() if r not in done and r not in view.here]
        left = [r for r in places if r not in self._searched]
        if not left:
            # Everything was seen, so something must have been moved since: search again.
            self._searched.clear()
        return self._go(view, (left or places)[0])

    def _drop(self, view: View, item: str) -> str:
        """Put down an object that is not needed, here if possible."""
        fit = [r for r in view.receptacles() if view.can_hold(r, item)]
        near = [r for r in fit if r in view.here]
        return self._place(view, item, (near or fit)[0])

    def _place(self, view: View, item: str, receptacle: str) -> str:
        if receptacle not in view.here:
            return self._go(view, receptacle)
        if view.closed(receptacle):
            return f"open {view.name(receptacle)}"
        return f"move {view.name(item)} to {view.name(receptacle)}"

    def _stage(self, view: View, step: Subgoal) -> str | None:
        missing = self._find(view, Subgoal("find", step.item))
        if missing is not None:
            return missing
        assert view.held is not None
        if (view.held,) in view.facts.get(PROOFS[step.verb], ()):
            return None
        appliance = view.receptacles(step.target)[0]
        if appliance not in view.here:
            return self._go(view, appliance)
        return f"{step.verb} {view.name(view.held)} with {view.name(appliance)}"

    def _put(self, view: View, step: Subgoal) -> str | None:
        wanted = view.items(step.item)
        # All items of a goal go to one receptacle: the one that already contains most of them.
        target = max(view.receptacles(step.target), key=lambda r: len(view.inside(r) & wanted))
        if view.held not in wanted and len(view.inside(target) & wanted) >= step.count:
            return None
        missing = self._find(view, Subgoal("find", step.item, step.target, step.count))
        if missing is not None:
            return missing
        assert view.held is not None
        return self._place(view, view.held, target)

    def _use(self, view: View, step: Subgoal) -> str | None:
        missing = self._find(view, Subgoal("find", step.item))
        if missing is not None:
            return missing
        lamps = view.items(step.target)
        known = {lamp: r for lamp, r in self._seen.items() if lamp in lamps}
        for lamp, receptacle in sorted(known.items()):
            if receptacle in view.here:
                return None if (lamp,) in view.facts.get("istoggled", ()) else f"use {view.name(lamp)}"
        return self._go(view, sorted(known.values())[0]) if known else self._search(view, set())

    def _go(self, view: View, receptacle: str) -> str:
        return f"go to {view.name(receptacle)}"
