"""Options of the `delegation` worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from verl_hier.rollout.prompts import check_action_template

ANSWER = "answer"
RESULT = "result"


@dataclass(frozen=True)
class AgentOptions:
    """One agent that the planner can delegate tasks to."""

    prompt: str = "goal: {task} | {observation}"
    """First message of its context, new for each task. Also {task}, and {planned}, the planner's whole turn."""
    system: str | None = None
    """Its system message, for chat models."""
    actions: tuple[str, ...] = ()
    """Beginnings of the actions that it may take, such as `search` or `<search>`; empty: any."""
    turns: int = 12
    """Limit of turns for one task."""

    def __post_init__(self) -> None:
        if self.turns < 1:
            raise ValueError(f"turns must be at least 1, got {self.turns}")


@dataclass(frozen=True)
class DelegationOptions:
    """Options of `delegation`.

    Templates may use {instruction}, {observation}, {admissible} and whatever the environment puts into the `info` of
    its reset; the others also what their line names.
    """

    planner_prompt: str = "task: {instruction}"
    """First message of the planner."""
    planner_system: str | None = None
    """System message of the planner, for chat models; it should explain the tags."""
    result_prompt: str = "{agent}: {result}"
    """The planner's next message after a task; also {agent}, {result} and {task}."""
    agents: Mapping[str, AgentOptions] = field(default_factory=lambda: {"executor": AgentOptions()})
    """Agents by name; the planner delegates with `<name>task</name>`."""
    observation_prompt: str = "{observation}"
    """What an agent sees after each action."""
    answer_action: str | None = None
    """The action that the planner's `<answer>` makes, with {content}; omitted: the answer ends the episode."""
    max_tasks: int = 6
    """Limit of delegated tasks in one episode."""
    longest_result: int = 2000
    """Characters of a result that reach the planner."""
    refine: bool = False
    """Whether a refiner rewrites each result for the planner, given the agent's observations."""
    refiner_prompt: str = "task: {task} | {evidence}"
    """First message of the refiner, whose context is new each time. Also {task}, {result} and {evidence}."""
    refiner_system: str | None = None
    """System message of the refiner, for chat models."""
    planner_format: float = 0.0
    """Reward for the share of planner turns that delegate or answer properly (the planner term of PECO's reward)."""
    executor_format: float = 0.0
    """Reward for the share of agents' turns that are sound (the executor term of PECO's reward)."""

    def __post_init__(self) -> None:
        if not self.agents:
            raise ValueError("agents must name at least one agent")
        for name in self.agents:
            if not name.isidentifier() or name in (ANSWER, RESULT):
                raise ValueError(f"agents: {name!r} cannot be the name of an agent; use a word that is no other tag")
        if self.max_tasks < 1 or self.longest_result < 1:
            raise ValueError("max_tasks and longest_result must be at least 1")
        check_action_template("answer_action", self.answer_action)

    def vocabulary(self) -> Iterator[str]:
        """Every word that the worker itself adds to prompts and turns."""
        yield " ".join(f"<{tag}> </{tag}>" for tag in (*self.agents, ANSWER, RESULT))
