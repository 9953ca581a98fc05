"""Options of the `delegation` worker."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from verl_hier.host.constraints import Count, NonNegative, Prompt, Template
from verl_hier.rollout.prompts import check_action_template

ANSWER = "answer"
RESULT = "result"
EXECUTOR = "executor"


@dataclass(frozen=True)
class AgentOptions:
    """One agent that the planner can delegate tasks to."""

    prompt: Annotated[str, Template("task", "planned")] = "goal: {task} | {observation}"
    """First message of its context, new for each task. Also {task}, and {planned}, the planner's whole turn."""
    system: str | None = None
    """Its system message, for chat models."""
    actions: tuple[str, ...] = ()
    """Beginnings of the actions that it may take, such as `search` or `<search>`; empty: any."""
    turns: Count = 12
    """Limit of turns for one task."""
    role: str = EXECUTOR
    """Its role, for schedules, rewards and policies; with one of its own it can have a policy of its own."""
    sound_tags: tuple[str, ...] = ()
    """As the planner's of this name, for its conversation about one task."""

    def may(self, action: str) -> bool:
        """Whether the agent may take an action."""
        text = action.strip()
        return not self.actions or any(
            text.startswith(start) and (not start[-1:].isalnum() or not text[len(start) : len(start) + 1].isalnum())
            for start in self.actions
        )


@dataclass(frozen=True)
class DelegationOptions:
    """Options of `delegation`.

    Templates may use {instruction}, {observation}, {admissible} and whatever the environment puts into the `info` of
    its reset; the others also what their line names.
    """

    planner_prompt: Prompt = "task: {instruction}"
    """First message of the planner."""
    planner_system: str | None = None
    """System message of the planner, for chat models; it should explain the tags."""
    result_prompt: Annotated[str, Template("agent", "result", "task")] = "{agent}: {result}"
    """The planner's next message after a task; also {agent}, {result} and {task}."""
    retry_prompt: Prompt | None = None
    """The planner's next message after a turn without a readable tag; omitted: such a turn ends the episode."""
    agents: Mapping[str, AgentOptions] = field(default_factory=lambda: {"executor": AgentOptions()})
    """Agents by name; the planner delegates with `<name>task</name>`."""
    observation_prompt: Annotated[str, Template("task")] = "{observation}"
    """What an agent sees after each action."""
    answer_action: str | None = None
    """The action that the planner's `<answer>` makes, with {content}; omitted: the answer ends the episode."""
    alone: tuple[str, ...] = ()
    """Agents that are given the question itself where there is no planner; their result is the answer. Each question
    goes to one of them, always the same."""
    alone_when: Literal["planner_frozen", "always"] = "planner_frozen"
    """There is no planner in the training steps in which level 0 does not learn, or never. Without `alone` there always
    is one."""
    max_tasks: Count = 6
    """Limit of delegated tasks in one episode; the planner has one turn more."""
    longest_result: Count = 2000
    """Characters of a result that reach the planner."""
    refine: bool = False
    """Whether a refiner rewrites each result for the planner, given the agent's observations."""
    refiner_prompt: Annotated[str, Template("task", "result", "evidence")] = "task: {task} | {evidence}"
    """First message of the refiner, whose context is new each time. Also {task}, {result} and {evidence}."""
    refiner_system: str | None = None
    """System message of the refiner, for chat models."""
    planner_format: NonNegative = 0.0
    """Reward for a planner that delegates and answers in sound turns (the planner term of PECO's reward)."""
    executor_format: NonNegative = 0.0
    """Reward for agents that act and report in sound turns (the executor term of PECO's reward)."""
    sound_tags: tuple[str, ...] = ()
    """When set, the planner's conversation is sound if it has each of these tags and closes each as often as it opens
    it, as the released code judges it, whatever else it says; without them, if it delegates, answers, and all turns are
    valid."""
    format_by: Literal["conversation", "turn"] = "conversation"
    """The format rewards are multiplied by the share of sound conversations, one for the planner and one for each task,
    as in the released code, or by the share of sound turns."""

    def __post_init__(self) -> None:
        if not self.agents:
            raise ValueError("agents must name at least one agent")
        for name in self.agents:
            if not name.isidentifier() or name in (ANSWER, RESULT):
                raise ValueError(f"agents: {name!r} cannot be the name of an agent; use a word that is no other tag")
            if not self.agents[name].role or self.agents[name].role in ("planner", "refiner"):
                raise ValueError(f"agents.{name}.role: {self.agents[name].role!r} cannot be the role of an agent")
        for name in self.alone:
            if name not in self.agents:
                raise ValueError(f"alone: there is no agent {name!r}; agents has {', '.join(self.agents)}")
        if self.alone_when == "always" and not self.alone:
            raise ValueError("alone_when is always, but alone names no agent")
        check_action_template("answer_action", self.answer_action)

    def roles(self) -> dict[str, int]:
        """The roles that take turns with these options, with their levels."""
        if self.alone_when == "always":
            return {self.agents[name].role: 1 for name in self.alone}
        agents = {agent.role: 1 for agent in self.agents.values()}
        return {"planner": 0, **agents, **({"refiner": 1} if self.refine else {})}

    def alone_for(self, instruction: str) -> str:
        """The agent that is given a question when there is no planner."""
        return self.alone[zlib.crc32(instruction.encode()) % len(self.alone)]

    def vocabulary(self) -> Iterator[str]:
        """Every word that the worker itself adds to prompts and turns."""
        yield " ".join(f"<{tag}> </{tag}>" for tag in (*self.agents, ANSWER, RESULT))
