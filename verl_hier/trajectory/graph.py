"""The rollout graph of one task: every turn once, with what it adds, who spoke, and why it exists.

Two links run between turns. `parent` is the turn that happened before on the same path, whoever spoke; it makes the
tree that samplers grow and tree estimators credit. `context` is the turn whose token sequence this turn's prompt
continues; following it to the start and concatenating `observation + action` gives exactly the tokens that the server
saw. An episode is a path: from its leaf along `parent` to the root. Everything else is a view of this.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from verl_hier.errors import GraphError

SCHEMA_VERSION = 1
Status = Literal["running", "finished", "truncated", "failed", "pruned"]


@dataclass
class Node:
    """One turn: one policy call by one agent.

    Attributes:
        id: position in `RolloutGraph.nodes`.
        parent: turn before it on its path, -1 for a first turn.
        context: turn whose prompt and action this prompt continues, -1 when the context is new.
        episode: the episode that sampled it; forks share it.
        agent, role, level: who spoke; level 0 is the highest.
        turn: 0-based position on its path.
        segment: running number of the subgoal or plan on the path.
        plan: turn that holds the plan or design above this one, -1 without one.
        observation: token ids that the prompt adds after `context`.
        action: sampled token ids, in the server's order, end token included.
        logprobs: behaviour log p of each action token; empty when the server gives none.
        trained: False for turns that only evaluate (greedy execution of a plan) or belong to a frozen role.
        reward, done, truncated, valid: what the world answered to the action.
        anchor: state before the action, or None.
        text: decoded action, as the worker read it.
        masks: name to [start, stop) spans over the action tokens.
        policy_version: lowest and highest weight version that sampled the action.
        prompt_tokens, cached_tokens: length of the prompt, and how much of it the server did not compute again.
        stop_reason: why the server stopped.
        decision: the random or scripted decision that created the turn, for replay.
        extra: columns of workers and environments (numbers or strings).
    """

    id: int
    parent: int
    context: int
    episode: int
    agent: str
    role: str
    level: int
    turn: int
    segment: int
    plan: int
    observation: list[int]
    action: list[int]
    logprobs: list[float]
    trained: bool = True
    reward: float = 0.0
    done: bool = False
    truncated: bool = False
    valid: bool = True
    anchor: str | None = None
    text: str = ""
    masks: dict[str, list[list[int]]] = field(default_factory=dict)
    policy_version: list[int] = field(default_factory=lambda: [0, 0])
    prompt_tokens: int = 0
    cached_tokens: int = 0
    stop_reason: str | None = None
    decision: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class EpisodeRecord:
    """One attempt from reset to end: a path through the graph.

    Attributes:
        id: position in `RolloutGraph.episodes`.
        source: episode it was forked from, -1 for a fresh start; it shares the first `shared` turns of it.
        tree: number of the root it grows from, within the task.
        leaf: its last turn, -1 before the first.
        status: `failed` episodes were lost to a fault, `pruned` ones were given up by the sampler.
        ret: sum of the rewards along the path.
        success: won or lost, None when the world does not say.
        trained: False for episodes that only evaluate something, such as a plan; they are no leaves of their own.
        greedy: sampled at temperature 0.
        error: what failed, for failed episodes.
        decision: the sampler's decision that created it.
    """

    id: int
    source: int = -1
    shared: int = 0
    tree: int = 0
    leaf: int = -1
    status: Status = "running"
    ret: float = 0.0
    success: bool | None = None
    trained: bool = True
    greedy: bool = False
    error: str | None = None
    decision: dict[str, Any] = field(default_factory=dict)


@dataclass
class RolloutGraph:
    """Everything that happened on one task in one step.

    Attributes:
        task: identity: `uid`, `index` in the data set, `data_source`, and what else the recipe wants kept.
        nodes, episodes: see `Node` and `EpisodeRecord`; lists are indexed by id.
        step: trainer step whose weights started it.
        seed: root seed of its generators, None when the server chose.
        phase: what the schedule let learn when it was rolled out: `name`, and `levels` and `roles` or None for all.
        counts: counters of the rollout: `environment_calls`, `forks`, `failed_raised`, …
        credit: credit of each node after the estimator ran (filled by the trainer), or empty.
        short: fewer trained leaves than the sampler was asked for.
    """

    task: dict[str, Any]
    nodes: list[Node] = field(default_factory=list)
    episodes: list[EpisodeRecord] = field(default_factory=list)
    step: int = 0
    seed: int | None = None
    phase: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    credit: list[float] = field(default_factory=list)
    short: bool = False
    version: int = SCHEMA_VERSION

    def path(self, episode: int) -> list[int]:
        """Node ids of an episode, first turn first."""
        ids: list[int] = []
        node = self.episodes[episode].leaf
        while node >= 0:
            ids.append(node)
            node = self.nodes[node].parent
        return ids[::-1]

    def chain(self, node: int) -> list[int]:
        """Node ids along `context` up to and including `node`, first one first."""
        ids: list[int] = []
        while node >= 0:
            ids.append(node)
            node = self.nodes[node].context
        return ids[::-1]

    def prompt(self, node: int) -> list[int]:
        """The exact token sequence that the server was given for this turn."""
        tokens: list[int] = []
        for ancestor in self.chain(node)[:-1]:
            tokens += self.nodes[ancestor].observation
            tokens += self.nodes[ancestor].action
        return tokens + self.nodes[node].observation

    def complete(self) -> Iterator[EpisodeRecord]:
        """Episodes that ended by the world's or a limit's will, in order; what training and metrics count."""
        return (e for e in self.episodes if e.status in ("finished", "truncated") and e.leaf >= 0)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; see `trajectory/schema.json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RolloutGraph:
        """Inverse of `to_dict`.

        Raises:
            GraphError: when it was written by a newer schema version, or a field is missing or unknown.
        """
        version = data.get("version") if isinstance(data, dict) else None
        if not isinstance(version, int):
            raise GraphError("this is not a rollout graph: it has no integer `version`.")
        if version > SCHEMA_VERSION:
            raise GraphError(
                f"the graph has schema version {version}, this verl-hier reads up to {SCHEMA_VERSION}; upgrade it."
            )
        try:
            fields = dict(data)
            fields["nodes"] = [Node(**node) for node in data["nodes"]]
            fields["episodes"] = [EpisodeRecord(**episode) for episode in data["episodes"]]
            return cls(**fields)
        except (TypeError, KeyError) as error:
            raise GraphError(f"the graph does not fit schema version {version}: {error}.") from error

    def check(self) -> None:
        """Raise `GraphError` on the first broken invariant: links point back, lengths agree, forks share a prefix."""
        for index, node in enumerate(self.nodes):
            if node.id != index or node.parent >= index or node.context >= index or node.plan > index:
                raise GraphError(f"node {index} of task {self.task.get('uid')} has a link that does not point back.")
            if node.logprobs and len(node.logprobs) != len(node.action):
                raise GraphError(f"node {index} has {len(node.action)} tokens but {len(node.logprobs)} log-probs.")
            depth = 0 if node.parent < 0 else self.nodes[node.parent].turn + 1
            if node.turn != depth:
                raise GraphError(f"node {index} says turn {node.turn}, its parents say {depth}.")
            if node.prompt_tokens and node.prompt_tokens != len(self.prompt(index)):
                raise GraphError(f"node {index}: the stored tokens are not the {node.prompt_tokens} the server saw.")
        for episode in self.episodes:
            if episode.source >= 0:
                mine, other = self.path(episode.id)[: episode.shared], self.path(episode.source)[: episode.shared]
                if mine != other:
                    raise GraphError(f"episode {episode.id} does not share {episode.shared} turns with its source.")
