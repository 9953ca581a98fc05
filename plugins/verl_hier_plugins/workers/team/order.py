"""Who speaks after whom: every topology as moves between roles that the words of a turn decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from verl_hier.host.constraints import Count, Prompt

END = "end"
ANSWER = "answer"
OTHERWISE = "*"


@dataclass(frozen=True)
class TopologyOptions:
    """Who speaks after whom."""

    kind: Literal["sequence", "round_table", "verifier_loop", "router", "graph", "lead"] = "sequence"
    """`sequence`: one after the other. `round_table`: the same, in `rounds`. `verifier_loop`: the first solves, the
    second approves or sends it back. `router`: the first names who speaks next, and hears back. `graph`: by `edges`.
    `lead`: the first gives tasks to the others, `<role>task</role>`; those of one turn are done side by side, each in a
    context of its own; `<answer>` ends it."""
    order: tuple[str, ...] = ()
    """The roles, in their order; the first one begins. Omitted: as they stand in `roles`."""
    rounds: Count | None = None
    """How often a role may speak at most; what has a loop needs it."""
    approve: str = "approve"
    """The word with which the verifier of a `verifier_loop` ends it."""
    ends: tuple[str, ...] = ()
    """Roles of a `router` after whose turn the conversation is over."""
    edges: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """For each role of a `graph`: a word that its turn contains to the role that speaks next, or to `end`; `*` stands
    for all other turns. A role without edges ends the conversation."""
    reads: Literal["in_turn", "together"] = "in_turn"
    """`in_turn`: a role reads what was said and done before its own turn. `together`: all roles read what there was
    before any of them speaks in this step, as the released code of AT-GRPO asks its agents; for a `sequence` by
    `step`."""
    each: Literal["task", "step"] = "task"
    """They talk once for a task, or again and again until the environment ends the episode."""
    parallel: Count = 10
    """Tasks that a lead may give in one turn."""
    retry_prompt: Prompt | None = None
    """What a lead reads after a turn without a task and an answer; omitted: such a turn ends the episode."""


@dataclass(frozen=True)
class Order:
    """Moves between roles.

    Attributes:
        names: the roles in their order; the first one begins.
        moves: for each role, a word of its turn to the next role or `END`; `OTHERWISE` for all other turns.
        rounds: how often a role may speak in a conversation; None where no role speaks twice.
    """

    names: tuple[str, ...]
    moves: Mapping[str, Mapping[str, str]]
    rounds: int | None

    @classmethod
    def of(cls, topology: TopologyOptions, roles: tuple[str, ...]) -> Order:
        """The order that the options describe, among the roles of the team."""
        names = topology.order or (tuple(topology.edges) if topology.kind == "graph" else ()) or roles
        return cls(names, _moves(topology, names), topology.rounds)

    def after(self, role: str, text: str) -> str | None:
        """The role that speaks after a turn, or `END`; None when the turn names none.

        The word that comes last counts, so that words of a thought before do no harm.
        """
        moves = self.moves.get(role, {})
        said = text.lower()
        places = {word: said.rfind(word.lower()) for word in moves if word != OTHERWISE}
        word = max(places, key=places.__getitem__, default=None)
        if word is not None and places[word] >= 0:
            return moves[word]
        return moves.get(OTHERWISE, None if moves else END)


def _moves(topology: TopologyOptions, names: tuple[str, ...]) -> dict[str, dict[str, str]]:
    first, others = names[0] if names else END, names[1:]
    if topology.kind == "graph":
        return {role: dict(edges) for role, edges in topology.edges.items()}
    if topology.kind == "router":
        back = {name: {OTHERWISE: END if name in topology.ends else first} for name in others}
        return {first: {name: name for name in others}, **back}
    if topology.kind == "lead":
        return {first: {name: name for name in others}}
    after = {name: {OTHERWISE: following} for name, following in zip(names, [*others, END], strict=True)}
    if names and topology.kind == "round_table":
        after[names[-1]] = {OTHERWISE: first}
    if names and topology.kind == "verifier_loop":
        after[names[-1]] = {topology.approve: END, OTHERWISE: first}
    return after


def reached(order: Order) -> list[str]:
    """The roles that may speak."""
    found, left = list[str](), list(order.names[:1])
    while left:
        name = left.pop()
        if name not in found and name != END:
            found.append(name)
            left += order.moves.get(name, {}).values()
    return found


def never_ending(order: Order) -> list[str] | None:
    """A round of roles that would go on for ever because nothing limits it; None when there is none."""
    if order.rounds is not None:
        return None
    for start in reached(order):
        path = _back_to(order, start)
        if path:
            return path
    return None


def _back_to(order: Order, start: str) -> list[str] | None:
    """A way from a role back to itself."""
    ways, seen = [[start]], set[str]()
    while ways:
        way = ways.pop(0)
        for name in order.moves.get(way[-1], {}).values():
            if name == start:
                return [*way, name]
            if name not in seen and name != END:
                seen.add(name)
                ways.append([*way, name])
    return None
