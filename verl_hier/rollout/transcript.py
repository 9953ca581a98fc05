"""An episode as text: its turns, their actions, and the environment's answers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from verl_hier.environments.base import StepResult
from verl_hier.graph.nodes import Node
from verl_hier.rollout.episode_state import EpisodeState


@dataclass(frozen=True)
class EnvironmentCall:
    """One action, and the environment's answer."""

    action: str
    step: StepResult


@dataclass(frozen=True)
class TranscriptTurn:
    """One turn.

    Attributes:
        node: its entry in the rollout graph, the last one of several pieces.
        text: the decoded action.
        calls: its actions before the next turn.
    """

    node: Node
    text: str
    calls: tuple[EnvironmentCall, ...]


@dataclass(frozen=True)
class Transcript:
    """One episode.

    Attributes:
        instruction: the task in words.
        opening: the answer to the reset; None when there was none.
        turns: in the order of time.
    """

    instruction: str
    opening: StepResult | None
    turns: tuple[TranscriptTurn, ...]

    @property
    def subgoals(self) -> list[str]:
        """The subgoals of a planner's first turn, separated by `;` or line breaks; none where there is no planner."""
        for turn in self.turns:
            if turn.node.level == 0 and not turn.calls:
                return [part.strip() for part in re.split(r"[;\n]", turn.text) if part.strip()]
        return []

    @classmethod
    def of(cls, episode: EpisodeState) -> Transcript:
        """The transcript of an episode, from all answers to its worker."""
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
