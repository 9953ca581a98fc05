"""Many rollouts of a task as one graph of states: turns that were taken in equal states are one state.

States are equal where the world gives them equal names (`Node.anchor`), as for estimators that compare turns in equal
states. Turns without a name are counted; an edge leads from a named turn to the next named one of the attempt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from verl_hier.graph.choices import good_attempts, on_path, turns_of
from verl_hier.graph.nodes import RolloutGraph

END = None
"""Where an edge leads whose attempt has no further named turn."""


@dataclass
class Tally:
    """What became of the attempts that were somewhere.

    Attributes:
        turns: how many turns were taken there.
        attempts: how many attempts were there, each once.
        total: the sum of their returns.
        good: how many of them were good, see `good_attempts`.
    """

    turns: int = 0
    attempts: int = 0
    total: float = 0.0
    good: int = 0

    def fields(self) -> dict[str, Any]:
        """Numbers for a file."""
        mean = self.total / self.attempts
        return {"turns": self.turns, "attempts": self.attempts, "return": mean, "good": self.good / self.attempts}


@dataclass
class StateGraph:
    """All that was done in the states of one task.

    Attributes:
        task: `data_source`, and `index` in the data set, or `uid` where the task has no
            index; whether it is one of `validation`.
        steps: trainer steps of the rollouts.
        states: by the name of the state.
        edges: by the state, the role and the words of a turn, and the next state or `END`.
        attempts: complete attempts.
        unnamed: turns in states without a name, by role.
    """

    task: dict[str, Any]
    steps: set[int] = field(default_factory=set)
    states: dict[str, Tally] = field(default_factory=dict)
    edges: dict[tuple[str, str, str, str | None], Tally] = field(default_factory=dict)
    attempts: int = 0
    unnamed: Counter[str] = field(default_factory=Counter)

    def add(self, graph: RolloutGraph) -> None:
        """Add the complete attempts of a rollout; a turn that several attempts share counts as one turn."""
        turns, good = turns_of(graph), good_attempts(graph)
        self.steps.add(graph.step)
        counted: set[int] = set()
        for episode in graph.complete():
            self.attempts += 1
            path = on_path(graph, episode.id, turns)
            names = [graph.pieces(graph.nodes[turn.node])[0].anchor for turn in path]
            named = [(turn, name) for turn, name in zip(path, names, strict=True) if name is not None]
            fresh = {turn.node for turn in path} - counted
            self.unnamed.update(
                graph.nodes[turn.node].role
                for turn, name in zip(path, names, strict=True)
                if name is None and turn.node in fresh
            )
            here: set[int] = set()
            later = [*(name for _, name in named[1:]), END]
            for (turn, name), after in zip(named, later, strict=False):  # where no turn is named, none is last
                edge = (name, graph.nodes[turn.node].role, turn.text, after)
                for tally in (self.states.setdefault(name, Tally()), self.edges.setdefault(edge, Tally())):
                    tally.turns += turn.node in fresh
                    if id(tally) not in here:
                        here.add(id(tally))
                        tally.attempts += 1
                        tally.total += episode.ret
                        tally.good += episode.id in good
            counted |= fresh

    def fields(self) -> dict[str, Any]:
        """Values of JSON: `states` with their numbers, and `edges` from one number to another."""
        number = {name: place for place, name in enumerate(self.states)}
        return {
            **self.task,
            "steps": sorted(self.steps),
            "attempts": self.attempts,
            "unnamed_turns": dict(self.unnamed),
            "states": [{"state": name, **tally.fields()} for name, tally in self.states.items()],
            "edges": [
                {"from": number[name], "to": None if after is END else number[after], "role": role, "text": text}
                | tally.fields()
                for (name, role, text, after), tally in self.edges.items()
            ],
        }


def state_graphs(graphs: Iterable[RolloutGraph]) -> Iterator[StateGraph]:
    """One graph of states for each task, over all its rollouts."""
    found: dict[tuple[Any, ...], StateGraph] = {}
    for graph in graphs:
        names = ("data_source", "index" if graph.task.get("index") is not None else "uid")
        task = {name: graph.task.get(name) for name in names}
        task["validation"] = bool(graph.request.get("validate"))
        found.setdefault((*task.items(),), StateGraph(task)).add(graph)
    yield from found.values()
