"""The interface of an environment: `reset`, `step`, `fork`, `close`, and the result of a step.

An environment is plain synchronous code that knows nothing of tokens, roles or Ray. It runs in a process of its own
behind `environments.pool`, which adds time limits, crash recovery by replay and an asyncio interface.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

FINAL_ANSWER = "final_answer"
"""What an episode answers, in the `info` of a step, in the `extra` of the turn, and in the column of that name."""


@dataclass(frozen=True)
class StepResult:
    """The answer to a reset or an action. Must be picklable and small.

    Attributes:
        text: the observation as the policy reads it.
        reward: reward of this step; 0 for a reset. It belongs to the agent that acted.
        rewards: further rewards by agent, for environments with several agents. Each is credited to the last turn that
            the agent has taken in the episode. Where other episodes (forks) share that turn, and for agents without a
            turn, it is credited to the turn that acted. All of them count in the return.
        done: the task has ended by its own rules (won or lost).
        truncated: the environment cut the episode off (its step limit), which does not end the task.
        valid: False when the action was not understood or not admissible; the state is then unchanged.
        admissible: the actions that are possible now, if the environment knows them.
        anchor: identity of the state *before the next action*: equal strings mean equal states.
        info: further JSON-able values. The last `won` (bool) of an episode is its success, see `last_word`: say it in
            every answer, those with `valid=False` included. At the end of a solved episode `used_tool` (bool) of
            environments with a tool is counted, which a guard watches. `final_answer` (text) is what the episode
            answers, in a form in which equal answers are equal; worlds that say it have it in their spec's `provides`,
            so that votes can be taken.
    """

    text: str
    reward: float = 0.0
    done: bool = False
    truncated: bool = False
    valid: bool = True
    admissible: tuple[str, ...] = ()
    anchor: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    rewards: Mapping[str, float] = field(default_factory=dict)


def last_word(before: bool | None, step: StepResult) -> bool | None:
    """What an environment has said last about the outcome of an episode: the `won` of an answer, else what it was
    `before` that answer; None while it has said nothing."""
    won = step.info.get("won")
    return before if won is None else bool(won)


class Environment(ABC):
    """One instance of an environment. Deterministic: equal task, seed and actions give equal steps."""

    @abstractmethod
    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Start `task` (a JSON-able dict made by the spec's `tasks`); may be called again for another task."""

    @abstractmethod
    def step(self, action: str) -> StepResult:
        """Apply one action. Nonsensical actions are answered with `valid=False`, not with an exception."""

    def fork(self) -> Environment | None:
        """An independent copy in the same state, or None when only replay can make one."""
        return None

    def close(self) -> None:  # noqa: B027 - optional
        """Free the resources of the instance. Called once."""


def with_admissible(text: str, commands: Iterable[str]) -> str:
    """An observation followed by the admissible commands."""
    return f"{text}\nYou can: {'; '.join(commands)}"
