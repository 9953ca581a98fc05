"""What was said at one place: turns of several episodes whose agent had read exactly the same tokens.

Independent attempts meet at their first turn, and as long as they say the same; forks of an attempt at the turn after
which they were made. Turns with equal words at one place are one choice, whichever attempts made it.
"""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass, field

from verl_hier.graph.nodes import RolloutGraph
from verl_hier.graph.records import CONTINUED, CUT

Key = tuple[str, ...]
CUT_OFF, FROZEN, INSERTED, REFUSED, SILENT = (
    "turns that a limit of tokens has cut",
    "turns of agents that do not learn",
    "turns into which the worker has put words",
    "turns that the world did not understand",
    "turns without words",
)
"""Why nobody should learn to say what a turn says."""


@dataclass(frozen=True)
class Turn:
    """One turn, whose pieces are one.

    Attributes:
        node: its last node.
        place: what the agent had read, with its role and policy: equal for turns at one place.
        text: its words.
        policy: name of the policy that said them.
        flaw: why nobody should learn to say them; None where somebody may.
    """

    node: int
    place: Key
    text: str
    policy: str
    flaw: str | None


@dataclass
class Choice:
    """The turns at a place that say the same.

    Attributes:
        turns: in the order of their nodes.
        returns: of each complete episode through one of them.
    """

    turns: list[Turn] = field(default_factory=list)
    returns: dict[int, float] = field(default_factory=dict)

    @property
    def value(self) -> float:
        """The mean return of the episodes through it."""
        return sum(self.returns.values()) / len(self.returns)

    @property
    def said(self) -> Turn:
        """Its first turn without a flaw, or the first one where all have one."""
        return next((turn for turn in self.turns if turn.flaw is None), self.turns[0])


def read_before(graph: RolloutGraph) -> list[str]:
    """For each node a text that names the tokens that the policy had read before its action."""
    after: list[hashlib.blake2b] = []
    before: list[str] = []
    for node in graph.nodes:  # contexts point back
        tokens = after[node.context].copy() if node.context >= 0 else hashlib.blake2b(digest_size=16)
        tokens.update(array("q", node.observation).tobytes())
        before.append(tokens.hexdigest())
        tokens.update(array("q", node.action).tobytes())
        after.append(tokens)
    return before


def turns_of(graph: RolloutGraph) -> dict[int, Turn]:
    """Each turn of the complete episodes, by its last node."""
    read = read_before(graph)
    found: dict[int, Turn] = {}
    for episode in graph.complete():
        path = graph.path(episode.id)
        for number in path:
            node = graph.nodes[number]
            if number in found or (node.partial and number != path[-1]):
                continue
            pieces = graph.pieces(node)
            text = "".join(piece.text for piece in pieces)
            place = (read[pieces[0].id], node.role, node.policy)
            told = [message.role for piece in pieces for message in piece.messages]
            inserted = CONTINUED in told or any(piece.observation for piece in pieces[1:])
            flaws = {
                CUT_OFF: node.partial or node.stop_reason in CUT,
                FROZEN: not all(piece.trained for piece in pieces),
                INSERTED: inserted,
                REFUSED: not node.valid,
                SILENT: not text.strip(),
            }
            flaw = next((name for name, has in flaws.items() if has), None)
            found[number] = Turn(number, place, text, node.policy, flaw)
    return found


def choices_of(graph: RolloutGraph, turns: dict[int, Turn] | None = None) -> dict[Key, dict[str, Choice]]:
    """For each place of the complete episodes its choices by their words, in the order in which they were made.

    Args:
        graph: the rollout of a task.
        turns: what `turns_of` says of it, where that is known.
    """
    turns = turns_of(graph) if turns is None else turns
    found: dict[Key, dict[str, Choice]] = {}
    for number in sorted(turns):
        turn = turns[number]
        found.setdefault(turn.place, {}).setdefault(turn.text, Choice()).turns.append(turn)
    for episode in graph.complete():
        for turn in on_path(graph, episode.id, turns):
            found[turn.place][turn.text].returns[episode.id] = episode.ret
    return found


def on_path(graph: RolloutGraph, episode: int, turns: dict[int, Turn]) -> list[Turn]:
    """The turns of an episode, first one first."""
    path = graph.path(episode)
    return [turns[number] for number in path if number == path[-1] or not graph.nodes[number].partial]


def good_attempts(graph: RolloutGraph, least: float | None = None) -> set[int]:
    """The numbers of the complete episodes that others may learn from.

    Args:
        graph: the rollout of a task.
        least: their least return. None: they were won; where the world does not say so, they are those with the highest
            return, unless all have one.
    """
    found = [*graph.complete()]
    if least is not None:
        return {episode.id for episode in found if episode.ret >= least}
    if any(episode.success is not None for episode in found):
        return {episode.id for episode in found if episode.success}
    returns = [episode.ret for episode in found]
    best = max(returns, default=0.0)
    return {episode.id for episode in found if episode.ret == best} if min(returns, default=best) < best else set()
