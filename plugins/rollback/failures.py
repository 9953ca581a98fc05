"""Which turns of an episode were failed attempts that the next turn put right, and what is left without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verl_hier.rollout.episode import Episode
from verl_hier.rollout.transcript import Call, Said, Transcript


@dataclass(frozen=True)
class Again:
    """A recorded turn that the clean episode makes again.

    Attributes:
        agent: who spoke.
        tokens: the whole turn.
        calls: what it did to the world, and what that answered.
    """

    agent: str
    tokens: list[int]
    calls: tuple[Call, ...]

    def was_answered_by(self, calls: Sequence[Call]) -> bool:
        """Whether the world has answered the same now."""
        return [_told(call) for call in self.calls] == [_told(call) for call in calls]


@dataclass(frozen=True)
class Clean:
    """An episode without its corrected failures.

    Attributes:
        after: nodes before the first of them.
        left_out: numbers of the turns that were failures.
        turns: the turns from there on, corrected ones first.
    """

    after: int
    left_out: list[int]
    turns: list[Again]


def clean(episode: Episode, attempts: int | None) -> Clean | None:
    """An episode without its corrected failures; None when it has none."""
    turns = Transcript.of(episode).turns
    left_out = corrected(turns, attempts)
    if not left_out:
        return None
    first = left_out[0]
    kept = [turns[number] for number in range(first, len(turns)) if number not in left_out]
    graph = episode.rollout.graph
    again = [
        Again(said.node.agent, [token for piece in graph.pieces(said.node) for token in piece.action], said.calls)
        for said in kept
    ]
    return Clean(episode.boundaries[first], left_out, again)


def corrected(turns: Sequence[Said], attempts: int | None) -> list[int]:
    """Numbers of the failed turns that the same agent's next turn, directly after them, put right.

    Args:
        turns: of an episode.
        attempts: failures in a row, at most; a longer row is left as it is. None: any number.
    """
    found: list[int] = []
    row: list[int] = []
    for number, said in enumerate(turns):
        if row and said.node.agent != turns[row[-1]].node.agent:
            row = []
        if not said.node.valid:
            row.append(number)
            continue
        if attempts is None or len(row) <= attempts:
            found += row
        row = []
    return found


def _told(call: Call) -> tuple[object, ...]:
    step = call.step
    return call.action, step.text, step.reward, step.done, step.truncated, step.valid
