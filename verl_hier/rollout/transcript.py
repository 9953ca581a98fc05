"""An episode in words: who said what, what it did to the world, and what the world answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from verl_hier.environments.base import StepResult
from verl_hier.graph.nodes import Node

if TYPE_CHECKING:
    from verl_hier.rollout.episode import Episode


@dataclass(frozen=True)
class EnvironmentCall:
    """One action, and the world's answer."""

    action: str
    step: StepResult


@dataclass(frozen=True)
class TranscriptTurn:
    """One turn.

    Attributes:
        node: its entry in the rollout graph, the last one of several pieces: who spoke, level, segment, validity.
        text: the decoded action.
        calls: what it did to the world before the next turn.
    """

    node: Node
    text: str
    calls: tuple[EnvironmentCall, ...]


@dataclass(frozen=True)
class Transcript:
    """One episode.

    Attributes:
        instruction: the task in words.
        opening: what the world said at first; None when it was never reset.
        turns: in the order of time.
    """

    instruction: str
    opening: StepResult | None
    turns: tuple[TranscriptTurn, ...]

    @classmethod
    def of(cls, episode: Episode) -> Transcript:
        """The transcript of an episode, from everything that its worker was answered."""
        opening: StepResult | None = None
        turns: list[TranscriptTurn] = []
        pieces: list[str] = []
        for event in episode.events:
            if event.node is not None:
                pieces.append(event.node.text)
                if not event.node.partial:
                    turns.append(TranscriptTurn(event.node, "".join(pieces), ()))
                    pieces.clear()
            elif event.action is None:
                opening = event.step
            elif turns and event.step is not None:
                last = turns[-1]
                turns[-1] = TranscriptTurn(
                    last.node, last.text, (*last.calls, EnvironmentCall(event.action, event.step))
                )
        return cls(str(episode.rollout.task.get("instruction", "")), opening, tuple(turns))
