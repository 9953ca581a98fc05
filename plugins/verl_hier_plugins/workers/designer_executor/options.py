"""Options of the `designer_executor` worker."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from string import Formatter
from typing import Annotated, Literal

from verl_hier.host.constraints import Count, NonNegative, Template
from verl_hier.rollout.prompts import check_action_template
from verl_hier_plugins.workers.designer_executor.design import ACT, Block, Role
from verl_hier_plugins.workers.designer_executor.script import RESERVED, ROLE_NAME, Limits

WRONG = "wrong"
"""What a critic of demonstrations says of a wrong answer."""
Said = Annotated[str, Template("role", "brief", "order", "tools", "design", "said")]


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
    block: Block = "call"
    """How a call of it is done. `call`: by one agent. The others only speak, so that they have no tools:
    `self_consistency`: several agents answer and what most say counts. `reflexion`: an agent answers again until a
    critic approves. `debate`: several sides answer, read each other and answer again, and one more agent decides."""


@dataclass(frozen=True)
class BlockOptions:
    """The blocks of `roles.*.block`.

    Their templates may use what the executors' may, and {said}, the turns of other agents of the block.
    """

    samples: Count = 5
    """Agents that answer in `self_consistency`."""
    rounds: Count = 5
    """Verdicts of the critic in `reflexion`, and rounds of a `debate`."""
    sides: tuple[str, ...] = ("first", "second")
    """Who debates, where the design does not say so: what {role} of `executor_prompt` is for each."""
    approve: str = "true"
    """The answer with which the critic approves."""
    critic_prompt: Said = "{role} critic: {instruction} | {said}"
    """What the critic reads, in a new context each time."""
    revise_prompt: Said = "{said}"
    """What the agent reads whose answer the critic did not approve."""
    debate_prompt: Said = "{said}"
    """What a side reads in later rounds: the last answers of the others."""
    decide_prompt: Said = "{role} decision: {instruction} | {said}"
    """What the agent reads who decides."""
    message: Annotated[str, Template("role", "text")] = "{text}"
    """How what one agent said stands in {said}."""
    between: str = " | "
    """What stands between two of them."""

    def __post_init__(self) -> None:
        if len(self.sides) < 2:
            raise ValueError(f"blocks.sides must name at least two sides of a debate, got {list(self.sides)}")
        if not self.approve.strip():
            raise ValueError("blocks.approve must not be empty")

    def vocabulary(self) -> Iterator[str]:
        """Every word of the templates."""
        for name, value in vars(self).items():
            if isinstance(value, str) and name.endswith("prompt"):
                yield " ".join(literal for literal, *_ in Formatter().parse(value))


@dataclass(frozen=True)
class DesignerExecutorOptions:
    """Options of `designer_executor`.

    Templates may use {instruction}, {observation}, {admissible} and whatever the environment puts into the `info` of
    its reset; the designer's also {roles}, {catalogue}, {tools} and {grammar}; the executors' also {role}, {brief},
    {order}, {tools} and {design}.
    """

    language: Literal["script", "graph"] = "script"
    """How a design is written. `script`: statements. `graph`: agents and edges in tags, as in MAS-Orchestra."""
    designer_prompt: Annotated[str, Template("roles", "catalogue", "tools", "grammar")] = "design: {instruction}"
    """What the designer sees."""
    designer_system: str | None = None
    """System message of the designer, for chat models."""
    feedback_prompt: Annotated[str, Template("roles", "catalogue", "tools", "grammar", "result", "refusal")] = (
        "{refusal} {result} {observation}"
    )
    """What the designer reads before it plans again: {refusal} says why the last design was refused, and {result} what
    its last call has said."""
    plans: Count = 1
    """Designs in an episode: after one that was refused, or has not ended the task, the designer writes another."""
    direct_tag: str | None = None
    """When set, a designer's turn with <tag>…</tag> is the answer itself, and nobody is called."""
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
    answer_tag: str | None = None
    """When set, what an executor says to others is the text inside <tag>…</tag>, with which one that has tools ends its
    call; omitted: its whole turn."""
    answer_action: str | None = None
    """The action that what the last call says makes in the environment, with {content}; omitted: executors with tools
    act themselves."""
    blocks: BlockOptions = field(default_factory=BlockOptions)
    """How the blocks of roles are done."""
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
    """Reward of the first turn of the designer whose design is valid, or that answers itself."""
    design_penalty: NonNegative = 0.0
    """Subtracted from the reward of the designer's turn when its script is refused."""
    tool_penalty: NonNegative = 0.0
    """Subtracted from the reward of an executor's turn whose action is refused."""

    def __post_init__(self) -> None:
        check_action_template("answer_action", self.answer_action)
        for name, role in self.roles.items():
            if not ROLE_NAME.fullmatch(name) or name in RESERVED:
                raise ValueError(f"roles: {name!r} cannot be the name of a role; use letters, digits and _")
            unknown = set(role.tools) - {ACT, *self.tools}
            if unknown:
                raise ValueError(f"roles.{name}.tools: {sorted(unknown)[0]!r} is not among `tools`")
            if role.turns is not None and not 1 <= role.turns <= self.turns:
                raise ValueError(f"roles.{name}.turns must be from 1 to `turns` ({self.turns}), got {role.turns}")
            if role.block != "call" and (role.tools or role.context != "own"):
                raise ValueError(
                    f"roles.{name}: the agents of {role.block} only speak, each in a context of its own; write "
                    "`tools: []` and leave `context` out"
                )
        if self.language == "graph" and self.define_roles:
            raise ValueError("define_roles: a graph calls the roles of the recipe; set it to false")
        if not self.roles and not self.define_roles:
            raise ValueError("roles is empty and define_roles is false, so that no design could call a role")
        if not self.done_word:
            raise ValueError("done_word must not be empty")
        try:
            re.compile(self.final_pattern or "")
        except re.error as error:
            raise ValueError(f"final_pattern is no regular expression: {error}") from error

    @property
    def only_speaks(self) -> bool:
        """Whether no role has tools, so that what the last call says is the answer; read by cold starts."""
        return self.answer_action is not None and not any(role.tools for role in self.roles.values())

    def vocabulary(self) -> Iterator[str]:
        """Every word that the worker itself adds to prompts and turns."""
        tags = [tag for tag in (self.answer_tag, self.direct_tag) if tag]
        yield from self.blocks.vocabulary()
        yield " ".join([*self.roles, *self.blocks.sides, self.blocks.approve, WRONG, *(f"<{t}> </{t}>" for t in tags)])

    def limits(self) -> Limits:
        """What a script may name, and its limits."""
        catalogue = {
            name: Role(name, role.brief, role.tools, role.context, role.turns, role.block)
            for name, role in self.roles.items()
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
