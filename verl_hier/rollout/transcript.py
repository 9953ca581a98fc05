"""An episode in words: who said what, what it did to the world, and what the world answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from verl_hier.environments.base import Step
from verl_hier.trajectory.graph import Node

if TYPE_CHECKING:
    from verl_hier.rollout.episode import Episode


@dataclass(frozen=True)
class Call:
    """One action, and the world's answer."""

    action: str
    step: Step


@dataclass(frozen=True)
class Said:
    """One turn.

    Attributes:
        node: its entry in the rollout graph, the last one of several pieces: who spoke, level, segment, validity.
        text: the decoded action.
        calls: what it did to the world before the next turn.
    """

    node: Node
    text: str
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Transcript:
    """One episode.

    Attributes:
        instruction: the task in words.
        opening: what the world said at first; None when it was never reset.
        turns: in the order of time.
    """

    instruction: str
    opening: Step | None
    turns: tuple[Said, ...]

    @classmethod
    def of(cls, episode: Episode) -> Transcript:
        """The transcript of an episode, from everything that its worker was answered."""
        opening: Step | None = None
        turns: list[Said] = []
        pieces: list[str] = []
        for event in episode.events:
            if event.node is not None:
                pieces.append(event.node.text)
                if not event.node.partial:
                    turns.append(Said(event.node, "".join(pieces), ()))
                    pieces.clear()
            elif event.action is None:
                opening = event.step
            elif turns and event.step is not None:
                last = turns[-1]
                turns[-1] = Said(last.node, last.text, (*last.calls, Call(event.action, event.step)))
        return cls(str(episode.rollout.task.get("instruction", "")), opening, tuple(turns))
