"""What a recipe can say about `delegation`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

ANSWER = "answer"
RESULT = "result"


@dataclass(frozen=True)
class AgentOptions:
    """One agent that the planner can delegate to."""

    prompt: str = "goal: {task} | {observation}"
    """What it sees when it gets a task; its context starts anew. Also {planned}, the planner's whole text."""
    system: str | None = None
    """Its system message, for chat models."""
    actions: tuple[str, ...] = ()
    """Beginnings of the actions it may take, such as `search` or `<search>`; empty: any."""
    turns: int = 12
    """Turns it may take on one task."""

    def __post_init__(self) -> None:
        if self.turns < 1:
            raise ValueError(f"turns must be at least 1, got {self.turns}")


@dataclass(frozen=True)
class DelegationOptions:
    """Options of `delegation`.

    Templates may use {instruction}, {observation}, {admissible} and whatever the environment puts into the `info` of
    its reset; the others what their line says.
    """

    planner_prompt: str = "task: {instruction}"
    """First message of the planner."""
    planner_system: str | None = None
    """System message of the planner, for chat models; it should explain the tags."""
    result_prompt: str = "{agent}: {result}"
    """What the planner is told of a finished task; also {task}."""
    agents: Mapping[str, AgentOptions] = field(default_factory=lambda: {"executor": AgentOptions()})
    """Agents by name; the planner delegates with `<name>task</name>`."""
    observation_prompt: str = "{observation}"
    """What an agent sees after each action."""
    answer_action: str | None = None
    """The world's action that the planner's `<answer>` makes, with {content}; omitted: it just ends the episode."""
    max_tasks: int = 6
    """Tasks that may be delegated in one episode."""
    longest_result: int = 2000
    """Characters of a result that reach the planner."""
    refine: bool = False
    """Whether a refiner reads each result and what the agent saw, and writes what the planner is told instead."""
    refiner_prompt: str = "task: {task} | {evidence}"
    """What the refiner sees; its context starts anew. Also {result} and {instruction}."""
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
                raise ValueError(f"agents: {name!r} is no name for an agent; use a word that is no tag of the worker's")
        if self.max_tasks < 1 or self.longest_result < 1:
            raise ValueError("max_tasks and longest_result must be at least 1")
        if self.answer_action is not None:
            try:
                self.answer_action.format(content="")
            except (KeyError, IndexError, ValueError) as error:
                raise ValueError(f"answer_action may use {{content}} only ({error})") from error

    def vocabulary(self) -> Iterator[str]:
        """Every word that the worker brings."""
        yield " ".join(f"<{tag}> </{tag}>" for tag in (*self.agents, ANSWER, RESULT))
