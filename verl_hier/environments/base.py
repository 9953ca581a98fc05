"""The world as verl-hier sees it: `reset`, `step`, `fork`, `close`, and what one step answers.

An environment is plain synchronous code that knows nothing of tokens, roles or Ray. It runs in a process of its own
behind `environments.pool`, which adds time limits, crash recovery by replay and an asyncio face.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class StepResult:
    """What the world answers to a reset or an action. Must be picklable and small.

    Attributes:
        text: the observation, as the policy may read it.
        reward: reward of this step; 0 for a reset.
        done: the task ended by its own rules (won or lost).
        truncated: the world cut the episode (its own step limit), which is not an end of the task.
        valid: False when the action was not understood or not admissible; the state is then unchanged.
        admissible: actions that are possible now, if the world can tell.
        anchor: identity of the state *before the next action*; equal strings mean equal states.
        info: anything else that is JSON-able; `won` (bool) and `score` (float) are read by the trainer's metrics.
    """

    text: str
    reward: float = 0.0
    done: bool = False
    truncated: bool = False
    valid: bool = True
    admissible: tuple[str, ...] = ()
    anchor: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


class Environment(ABC):
    """One instance of a world. Deterministic: same task, seed and actions give the same steps."""

    @abstractmethod
    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Start `task` (a JSON-able dict made by the spec's `tasks`); may be called again for another task."""

    @abstractmethod
    def step(self, action: str) -> StepResult:
        """Apply one action. An action that makes no sense is answered with `valid=False`, not with an exception."""

    def fork(self) -> Environment | None:
        """An independent copy in the same state, or None when only replay can make one."""
        return None

    def close(self) -> None:  # noqa: B027 - optional
        """Free what the instance holds. Called once."""
