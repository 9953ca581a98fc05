"""Options of the `team` worker: its roles and who speaks after whom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from verl_hier.errors import did_you_mean
from verl_hier.host.constraints import AboveZeroToOne, Count, CountOrZero, NonNegative, Template
from verl_hier.rollout.policy import DEFAULT_POLICY
from verl_hier.rollout.prompts import check_action_template
from verl_hier_plugins.workers.team.order import ANSWER, END, Order, TopologyOptions, never_ending, reached

Heard = Annotated[str, Template("said", "task", "brief")]


@dataclass(frozen=True)
class RoleOptions:
    """One role.

    Its prompts may also use {said}, the messages of others that it has not read yet, {task}, what a lead told it, and
    {brief}.
    """

    prompt: Heard = "task: {instruction} | {observation} | {said}"
    """First message of its context."""
    later_prompt: Heard = "{observation} | {said}"
    """What it reads when it speaks again."""
    observation_prompt: Heard = "{observation}"
    """What it reads after an action when it goes on acting."""
    system: str | None = None
    """Its system message, for chat models."""
    memory: bool = True
    """Whether it remembers what it read and said before; off: each time it speaks, it begins a new context by `prompt`,
    whose {said} has all messages of the conversation."""
    sees: tuple[str, ...] | None = None
    """Roles whose messages it reads; omitted: all others."""
    level: CountOrZero = 0
    """Its level, for schedules and estimators that go by levels; 0 is the highest."""
    policy: str = DEFAULT_POLICY
    """Name of the policy that generates its turns."""
    temperature: NonNegative | None = None
    """Its temperature in training steps; omitted: the recipe's, which a role that learns has to have."""
    top_p: AboveZeroToOne | None = None
    """Its top-p in training steps; omitted: the recipe's."""
    top_k: Count | None = None
    """Its top-k in training steps; omitted: the recipe's."""
    max_tokens: Count | None = None
    """Limit of a turn, below the recipe's."""
    action: str | None = None
    """The action that its turn makes in the environment, with {content}, such as `answer {content}`; omitted: it only
    speaks."""
    action_tag: str | None = None
    """When set, the {content} is the text inside <tag>…</tag>."""
    actions: tuple[str, ...] = ()
    """Beginnings of the actions that it may take, such as `search`; any other text is its message. Empty: any."""
    message_tag: str | None = None
    """When set, others read what it writes inside <tag>…</tag>, which also ends its turns; omitted: its whole text."""
    turns: Count = 1
    """How many turns it has each time before it has to let others speak."""
    brief: str = ""
    """What {brief} says, unless the schedule `boad` chooses it."""
    format_penalty: NonNegative = 0.0
    """Taken from the reward, and so from the return, of a turn without its tag."""

    def __post_init__(self) -> None:
        check_action_template("action", self.action)

    @property
    def sampling(self) -> dict[str, float]:
        """What differs from the recipe's sampling."""
        own = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        return {name: value for name, value in own.items() if value is not None}

    def may(self, action: str) -> bool:
        """Whether it may take an action."""
        return not self.actions or any(
            action.startswith(start) and (not start[-1:].isalnum() or not action[len(start) : len(start) + 1].isalnum())
            for start in self.actions
        )


@dataclass(frozen=True)
class RatingOptions:
    """How roles rate, at the end of a conversation, who has contributed to it."""

    roles: tuple[str, ...]
    """Who rates, one after the other, each in its own context; the first of them is the one whose part is asked for."""
    prompt: Heard = "{said} | part of the first agent, from 0.1 to 0.9:"
    """What they read."""
    max_tokens: Count | None = None
    """Limit of such a turn, below the recipe's."""


def _default_roles() -> dict[str, RoleOptions]:
    return {"adviser": RoleOptions(), "actor": RoleOptions(action="{content}")}


@dataclass(frozen=True)
class TeamOptions:
    """Options of `team`.

    Templates may use {instruction}, {observation}, {admissible} and whatever the environment puts into the `info` of
    its reset; those of roles also what `RoleOptions` names.
    """

    roles: Mapping[str, RoleOptions] = field(default_factory=_default_roles)
    """The roles by name."""
    topology: TopologyOptions = field(default_factory=TopologyOptions)
    """Who speaks after whom."""
    message: Annotated[str, Template("role", "text")] = "{role}: {text}"
    """How a message stands in {said}."""
    between: str = " | "
    """What stands between two messages in {said}."""
    longest_message: Count = 4000
    """Characters of a message that others read."""
    answer_from: str | None = None
    """The role whose last message is the answer, when the conversation is over."""
    answer_action: str = "{content}"
    """The action that this answer, or that of a lead, makes in the environment, with {content}."""

    ratings: RatingOptions | None = None
    """Ratings at the end of a conversation, before its answer is given; omitted: none."""

    def __post_init__(self) -> None:
        check_action_template("answer_action", self.answer_action)
        if not self.roles:
            raise ValueError("roles must name at least one role")
        for name in self.roles:
            if not name.isidentifier() or name in (ANSWER, END):
                raise ValueError(f"roles: {name!r} cannot be the name of a role; use a word other than answer and end")
        topology = self.topology
        named = {
            "topology.order": topology.order,
            "topology.ends": topology.ends,
            "topology.edges": [*topology.edges, *(to for edges in topology.edges.values() for to in edges.values())],
            "ratings.roles": () if self.ratings is None else self.ratings.roles,
            "answer_from": () if self.answer_from is None else (self.answer_from,),
        }
        named |= {f"roles.{name}.sees": role.sees or () for name, role in self.roles.items()}
        for line, names in named.items():
            self._check(line, names, allowed=(END,) if line == "topology.edges" else ())
        self._check_order()

    def _check(self, line: str, names: Iterable[str], allowed: tuple[str, ...]) -> None:
        for name in names:
            if name not in self.roles and name not in allowed:
                raise ValueError(
                    f"{line}: there is no role {name!r}{did_you_mean(name, self.roles)}; roles has "
                    f"{', '.join(self.roles) or 'none'}"
                )

    def _check_order(self) -> None:
        topology, order = self.topology, self.order
        if len(order.names) < 2 and topology.kind in ("verifier_loop", "router", "lead"):
            raise ValueError(
                f"topology.kind: {topology.kind} needs at least two roles, and there is {', '.join(order.names)}"
            )
        loop = never_ending(order) if topology.kind != "lead" else None
        if loop:
            raise ValueError(f"topology.rounds: {' → '.join(loop)} never ends; set how often a role may speak")
        idle = [name for name in self.roles if name not in reached(order)]
        if idle:
            raise ValueError(
                f"roles: {idle[0]} has nothing to do in this {topology.kind}; name it in the topology or leave it out"
            )
        if self.ratings is not None and (topology.kind == "lead" or self.answer_from is None):
            raise ValueError("ratings: roles rate before the answer is given; name who answers in `answer_from`")
        if topology.reads == "together" and (topology.kind, topology.each) != ("sequence", "step"):
            raise ValueError("topology.reads: together needs a sequence that speaks at each step; set kind and each")
        acts = topology.kind == "lead" or self.answer_from or any(role.action for role in self.roles.values())
        if not acts:
            raise ValueError("roles: nobody acts; give a role an `action`, or name who answers in `answer_from`")

    @property
    def hands_out_subgoals(self) -> bool:
        """Whether the second level works on a part of the task in each of its contexts; read by cold starts."""
        return self.topology.kind == "lead"

    @property
    def verdicts(self) -> tuple[str, str] | None:
        """What a verifier says of a right and of a wrong answer of the first level; read by cold starts."""
        return (self.topology.approve, "wrong") if self.topology.kind == "verifier_loop" else None

    @property
    def order(self) -> Order:
        """Who speaks after whom."""
        return Order.of(self.topology, tuple(self.roles))

    def levels(self) -> dict[str, int]:
        """Role to level."""
        return {name: role.level for name, role in self.roles.items()}

    def vocabulary(self) -> Iterator[str]:
        """Every word that the worker itself adds to prompts and turns."""
        tags = [*self.roles, ANSWER] if self.topology.kind == "lead" else []
        tags += [tag for role in self.roles.values() for tag in (role.action_tag, role.message_tag) if tag]
        yield " ".join(f"<{tag}> </{tag}>" for tag in tags)
        yield " ".join(
            [*self.roles, self.topology.approve, *(word for edges in self.topology.edges.values() for word in edges)]
        )
