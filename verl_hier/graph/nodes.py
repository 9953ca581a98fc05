"""The rollout graph of one task: every turn once, with the tokens it adds, its agent, and why it exists.

Two links run between turns. `parent` is the turn before it on the same path, whichever agent took it; it makes the
tree that samplers grow and tree estimators credit. `context` is the turn whose token sequence this turn's prompt
continues; following it to the start and concatenating `observation + action` gives exactly the tokens that the server
saw. An episode is a path: from its leaf along `parent` to the root. Everything else is a view of this.

A turn may be several nodes: a sampler that branches inside turns samples them in pieces, or cuts a finished one in two
(`RolloutGraph.split`). All pieces but the last are `partial`; reward, end and validity of the turn are stored in the
last one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from verl_hier.errors import GraphError

SCHEMA_VERSION = 3
CONTINUED = "continued"
"""Role of a message that continues the agent's own; see `Context.extend`."""
Status = Literal["running", "finished", "truncated", "failed", "pruned"]


@dataclass
class Message:
    """One message that a turn's prompt adds.

    Attributes:
        role: chat role: `system`, `user`, `tool`, …; `assistant` for the agent's own text where its context was
            rendered again, `CONTINUED` for text that is inserted into the message that it generated last.
        content: the text, as the worker gave it.
        sources: turns whose text it contains, for instance a planner's in the prompt of an executor; the last piece
            of a turn of several pieces. Empty for text of the environment or the recipe.
    """

    role: str
    content: str
    sources: list[int] = field(default_factory=list)


@dataclass
class Node:
    """One turn: one policy call by one agent.

    Attributes:
        id: position in `RolloutGraph.nodes`.
        parent: turn before it on its path, -1 for a first turn.
        context: turn whose prompt and action this prompt continues, -1 when the context is new.
        episode: the episode that sampled it; forks share it.
        agent, role, level: the agent that took the turn; level 0 is the highest.
        turn: 0-based number of the turn on its path; the pieces of a turn share it.
        segment: running number of the subgoal or plan on the path.
        plan: turn that holds the plan or design above this one, -1 without one.
        observation: token ids that the prompt adds after `context`.
        action: sampled token ids, in the server's order, end token included.
        logprobs: behaviour log p of each action token; empty when the server gives none.
        entropy: estimated entropy of the policy at each action token (nats); empty when the log-probs are all there is.
        top: likeliest [token id, log p] at each action token, likeliest first; only where a sampler asked for them.
        partial: whether the turn goes on in the next node of its path.
        trained: False for turns that only evaluate (greedy execution of a plan) or belong to a frozen role.
        reward, done, truncated, valid: the environment's answer to the action.
        anchor: state before the action, or None; None for all pieces of a turn but the first.
        text: decoded action, as the worker read it; of a piece, what it adds to the text of the pieces before.
        messages: `observation` as text, see `Message`; empty where a prompt adds none, and in graphs that schema
            version 1 wrote.
        masks: name to [start, stop) spans over the action tokens.
        policy_version: lowest and highest weight version that sampled the action.
        prompt_tokens, cached_tokens: length of the prompt, and how much of it the server did not compute again; 0 when
            the server was not asked for this node by itself.
        stop_reason: why the server stopped.
        decision: the random or scripted decision that created the turn, for replay.
        extra: columns of workers and environments (numbers or strings).
        policy: name of the policy that generated the turn; `default` where a run trains one policy.
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
    entropy: list[float] = field(default_factory=list)
    top: list[list[list[Any]]] = field(default_factory=list)
    partial: bool = False
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
    messages: list[Message] = field(default_factory=list)
    policy: str = "default"


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
        success: whether the task was solved, None when the environment does not say.
        trained: False for episodes that only evaluate something, such as a plan; they are no leaves of their own.
        greedy: sampled at temperature 0.
        error: for failed episodes what failed, for truncated and pruned ones the reason; None for finished ones.
        decision: the sampler's decisions about it: why it was created, and `kept: false` where it was not kept.
        reward_info: numbers that verl's reward function reported beside the score, by name.
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
    reward_info: dict[str, float] = field(default_factory=dict)

    @property
    def withheld(self) -> bool:
        """Whether it is a complete leaf that the sampler evaluated and did not keep (`Episode.withhold`): its return
        counts for the turns that it shares with kept leaves, and no row trains it."""
        return not self.trained and self.decision.get("kept") is False


@dataclass
class RolloutGraph:
    """Everything that happened on one task in one step.

    Attributes:
        task: identity: `uid`, `index` in the data set, `data_source`, and anything else that the recipe keeps.
        nodes, episodes: see `Node` and `EpisodeRecord`; lists are indexed by id.
        step: trainer step whose weights started it.
        seed: root seed of its generators, None when the server chose.
        phase: the schedule's phase during the rollout: `name`, and the `levels` and `roles` that learn, None for all.
        request: parameters of the rollout: `n`, `validate`, `levels`, `temperature`, `top_p`, `top_k`; with them and
            the recipe it can be replayed.
        counts: counters of the rollout: `environment_calls`, `forks`, `failed_raised`, …
        seconds: wall time of parts of the rollout in seconds: `rollout`, …
        budget: name of a limited budget to `[used, limit]`.
        credit: credit of each node after the estimator ran (filled by the trainer), or empty.
        short: fewer trained leaves than the sampler was asked for.
    """

    task: dict[str, Any]
    nodes: list[Node] = field(default_factory=list)
    episodes: list[EpisodeRecord] = field(default_factory=list)
    step: int = 0
    seed: int | None = None
    phase: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    budget: dict[str, list[float]] = field(default_factory=dict)
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

    def turns(self, episode: int) -> int:
        """How many turns an episode has; one that was sampled in pieces counts once."""
        return sum(not self.nodes[i].partial for i in self.path(episode))

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
        """Episodes that finished or were truncated, in order; training and metrics count these."""
        return (e for e in self.episodes if e.status in ("finished", "truncated") and e.leaf >= 0)

    def pieces(self, node: Node) -> list[Node]:
        """All nodes of the turn that ends with `node`, in order; one when it was sampled in one piece."""
        found = [node]
        while found[0].parent >= 0 and self.nodes[found[0].parent].partial:
            found.insert(0, self.nodes[found[0].parent])
        return found

    def split(self, node: Node, at: int) -> Node:
        """Cut a node in two and return the new first part; `node` keeps the other tokens and all other fields.

        Args:
            node: a node of this graph.
            at: action tokens of the first part, 1 to `len(node.action) - 1`.

        The numbers of `node` and of all later nodes grow by one, and so does `shared` of episodes whose shared nodes
        include `node`. The first part has no text, because the graph has no tokenizer; see `Rollout.split`.

        Raises:
            ValueError: when one part would be empty.
        """
        if not 0 < at < len(node.action):
            raise ValueError(f"cannot cut {len(node.action)} tokens after {at}")
        through = [e for e in self.episodes if e.source >= 0 and node.id in self.path(e.id)[: e.shared]]
        first = dataclasses.replace(
            node,
            observation=node.observation,
            action=node.action[:at],
            logprobs=node.logprobs[:at],
            entropy=node.entropy[:at],
            top=node.top[:at],
            partial=True,
            reward=0.0,
            done=False,
            truncated=False,
            valid=True,
            masks=cut_spans(node.masks, 0, at),
            decision=dict(node.decision),
            extra={},
            text="",
        )
        for episode in through:
            episode.shared += 1
        for other in self.nodes:
            for link in ("id", "parent", "context", "plan"):
                if getattr(other, link) >= first.id:
                    setattr(other, link, getattr(other, link) + 1)
            for message in other.messages:
                message.sources = [source + (source >= first.id) for source in message.sources]
        for episode in self.episodes:
            episode.leaf += episode.leaf >= first.id
        self.nodes.insert(first.id, first)
        node.parent = node.context = first.id
        node.observation, node.messages, node.anchor = [], [], None
        for name in ("action", "logprobs", "entropy", "top"):
            setattr(node, name, getattr(node, name)[at:])
        node.masks = cut_spans(node.masks, at, at + len(node.action))
        node.prompt_tokens = node.cached_tokens = 0  # the server was asked once, for both parts
        return first

    def sort(self) -> None:
        """Number the nodes episode by episode, so that equal rollouts have equal graphs whoever answered first."""
        order = sorted(self.nodes, key=lambda node: (node.episode, node.id))
        place = {node.id: number for number, node in enumerate(order)} | {-1: -1}
        for node in order:
            node.id, node.parent = place[node.id], place[node.parent]
            node.context, node.plan = place[node.context], place[node.plan]
            for message in node.messages:
                message.sources = [place[source] for source in message.sources]
        for episode in self.episodes:
            episode.leaf = place[episode.leaf]
        self.nodes = order

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; `graph/schema.json` describes it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RolloutGraph:
        """Inverse of `to_dict`. A graph of an older schema version becomes one of the present version.

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
            fields = dict(data) | {"version": SCHEMA_VERSION}
            fields["nodes"] = [_node(node) for node in data["nodes"]]
            fields["episodes"] = [EpisodeRecord(**episode) for episode in data["episodes"]]
            graph = cls(**fields)
        except (TypeError, KeyError) as error:
            raise GraphError(f"the graph does not fit schema version {version}: {error}.") from error
        if version < 3:
            graph._move_numbers()
        return graph

    def _move_numbers(self) -> None:
        """Put what schema versions 1 and 2 kept among counts and decisions into the fields of version 3."""
        milliseconds = self.counts.pop("rollout_ms", None)
        if milliseconds is not None:
            self.seconds["rollout"] = milliseconds / 1000
        for episode in self.episodes:
            episode.reward_info = episode.decision.pop("reward_extra_info", {})

    def check(self) -> None:
        """Raise `GraphError` on the first broken invariant: links point back, lengths agree, forks share a prefix."""
        for index, node in enumerate(self.nodes):
            if node.id != index or node.parent >= index or node.context >= index or node.plan > index:
                raise GraphError(f"node {index} of task {self.task.get('uid')} has a link that does not point back.")
            if node.logprobs and len(node.logprobs) != len(node.action):
                raise GraphError(f"node {index} has {len(node.action)} tokens but {len(node.logprobs)} log-probs.")
            if node.entropy and len(node.entropy) != len(node.action):
                raise GraphError(f"node {index} has {len(node.action)} tokens but {len(node.entropy)} entropies.")
            if node.top and len(node.top) != len(node.action):
                raise GraphError(f"node {index} has {len(node.action)} tokens but alternatives for {len(node.top)}.")
            if any(not 0 <= source < index for message in node.messages for source in message.sources):
                raise GraphError(f"a message of node {index} names a source that is not before it.")
            before = None if node.parent < 0 else self.nodes[node.parent]
            turn = 0 if before is None else before.turn + (not before.partial)
            if node.turn != turn:
                raise GraphError(f"node {index} has turn {node.turn}, its parents make it {turn}.")
            unfinished = before is not None and before.partial
            if unfinished and (node.context != node.parent or node.observation or node.messages):
                raise GraphError(f"node {index} does not continue the tokens of the unfinished turn before it.")
            if node.prompt_tokens and node.prompt_tokens != len(self.prompt(index)):
                raise GraphError(f"node {index}: the stored tokens are not the {node.prompt_tokens} the server saw.")
        for episode in self.episodes:
            if episode.source >= 0:
                mine, other = self.path(episode.id)[: episode.shared], self.path(episode.source)[: episode.shared]
                if mine != other:
                    raise GraphError(f"episode {episode.id} does not share {episode.shared} turns with its source.")


def _node(data: Mapping[str, Any]) -> Node:
    node = Node(**data)
    node.messages = [Message(**message) for message in data.get("messages", ())]
    return node


def cut_spans(masks: Mapping[str, list[list[int]]], start: int, stop: int) -> dict[str, list[list[int]]]:
    """Name to the part of each span within [start, stop), counted from `start`."""
    return {
        name: [[max(a, start) - start, min(b, stop) - start] for a, b in spans if a < stop and b > start]
        for name, spans in masks.items()
    }
