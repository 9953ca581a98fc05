"""Options of the `designer_executor` worker."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from verl_hier.host.constraints import Count, NonNegative, Template
from verl_hier_plugins.workers.designer_executor.design import ACT, Role
from verl_hier_plugins.workers.designer_executor.script import RESERVED, ROLE_NAME, Limits


@dataclass(frozen=True)
class RoleOptions:
    """A role that designs may call without defining it."""

    brief: str = ""
    """Description of its job: {brief} in the executor's prompt."""
    tools: tuple[str, ...] = (ACT,)
    """What it may do: `act` (any action), or first words of actions. Without tools it only writes."""
    context: Literal["own", "kept", "shared"] = "own"
    """`own`: a new context for each call; `kept`: one for all calls of the role; `shared`: one for all such roles."""
    turns: int | None = None
    """Limit of turns in one call; omitted: the worker's `turns`."""


@dataclass(frozen=True)
class DesignerExecutorOptions:
    """Options of `designer_executor`.

    Templates may use {instruction}, {observation}, {admissible} and whatever the environment puts into the `info` of
    its reset; the designer's also {roles}, {catalogue}, {tools} and {grammar}; the executors' also {role}, {brief},
    {order}, {tools} and {design}.
    """

    designer_prompt: Annotated[str, Template("roles", "catalogue", "tools", "grammar")] = "design: {instruction}"
    """What the designer sees."""
    designer_system: str | None = None
    """System message of the designer, for chat models."""
    executor_prompt: Annotated[str, Template("role", "brief", "order", "tools", "design")] = (
        "{role}: {order} | {observation}"
    )
    """What an executor sees when it is called."""
    executor_system: str | None = None
    """First system message of an executor's context, for chat models."""
    observation_prompt: Annotated[str, Template("role", "brief", "order", "tools", "design")] = "{observation}"
    """What an executor sees after each action."""
    refusal_prompt: Annotated[str, Template("role", "brief", "order", "tools", "design", "refusal")] = "{refusal}"
    """What an executor sees when its action was refused before it reached the environment."""
    roles: Mapping[str, RoleOptions] = field(default_factory=lambda: {"solver": RoleOptions()})
    """Roles that every design may call."""
    define_roles: bool = True
    """Whether designs may define roles of their own."""
    tools: tuple[str, ...] = (ACT,)
    """Tools that roles may be given, besides `act`: first words of the environment's actions."""
    design_tag: str | None = None
    """When set, the script is the text inside the last <tag>…</tag> of the designer's turn."""
    max_bytes: Count = 16384
    """Longest script."""
    max_steps: Count = 16
    """Limit of a design's calls in the worst case."""
    max_roles: Count = 8
    """Roles that a design may define."""
    turns: Count = 12
    """Turns of one call of a role with tools, at most; a role without tools has one."""
    done_word: str = "<sub_done>"
    """With this word a role with tools ends its call."""
    action_tag: str | None = None
    """When set, an executor's action is the text inside <tag>…</tag>."""
    delivery_tag: str | None = "delivery"
    """With <tag>…</tag> an executor hands the work in and ends the execution; null: the work is handed in when the
    environment ends the task."""
    delivery_acts: bool = True
    """Whether the work is also the last action in the environment, like an answer."""
    delivery_reward: NonNegative = 0.4
    """Reward of a turn that hands the work in."""
    final_pattern: str | None = None
    """Regular expression that the final text has to match; null: the environment has to accept the last action."""
    final_reward: NonNegative = 0.4
    """Reward of a valid final text, on the last turn of the execution."""
    design_reward: NonNegative = 0.0
    """Reward of the designer's turn when its script is valid."""
    design_penalty: NonNegative = 0.0
    """Subtracted from the reward of the designer's turn when its script is refused."""
    tool_penalty: NonNegative = 0.0
    """Subtracted from the reward of an executor's turn whose action is refused."""

    def __post_init__(self) -> None:
        for name, role in self.roles.items():
            if not ROLE_NAME.fullmatch(name) or name in RESERVED:
                raise ValueError(f"roles: {name!r} cannot be the name of a role; use letters, digits and _")
            unknown = set(role.tools) - {ACT, *self.tools}
            if unknown:
                raise ValueError(f"roles.{name}.tools: {sorted(unknown)[0]!r} is not among `tools`")
            if role.turns is not None and not 1 <= role.turns <= self.turns:
                raise ValueError(f"roles.{name}.turns must be from 1 to `turns` ({self.turns}), got {role.turns}")
        if not self.roles and not self.define_roles:
            raise ValueError("roles is empty and define_roles is false, so that no design could call a role")
        if not self.done_word:
            raise ValueError("done_word must not be empty")
        try:
            re.compile(self.final_pattern or "")
        except re.error as error:
            raise ValueError(f"final_pattern is no regular expression: {error}") from error

    def limits(self) -> Limits:
        """What a script may name, and its limits."""
        catalogue = {
            name: Role(name, role.brief, role.tools, role.context, role.turns) for name, role in self.roles.items()
        }
        return Limits(
            roles=catalogue,
            tools=self.tools,
            define_roles=self.define_roles,
            max_bytes=self.max_bytes,
            max_steps=self.max_steps,
            max_roles=self.max_roles,
            max_turns=self.turns,
        )

    def write_plan(self, subgoals: Sequence[str]) -> str:
        """A script under which executors work on `subgoals` one after the other, for demonstrations.

        A subgoal whose first word is a role of the recipe is a call of that role; the others are orders to its first
        role.
        """
        solver = next(iter(self.roles), "solver")
        calls = [] if self.roles else [f'{solver} = Role("Solve the task.", tools=["{ACT}"])']
        calls += [goal if goal.split()[0] in self.roles else f"{solver} {goal}" for goal in subgoals]
        script, tag = " ; ".join(calls), self.design_tag
        return f"<{tag}>{script}</{tag}>" if tag else script
