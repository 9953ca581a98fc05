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
from typing import Any

from verl_hier.errors import GraphError
from verl_hier.graph.invariants import check_graph
from verl_hier.graph.records import (
    ANSWERS,
    CONTINUED,
    FIELDS_SINCE,
    SCHEMA_VERSION,
    EpisodeRecord,
    Message,
    Node,
    Status,
)
from verl_hier.graph.schema import require_fit

__all__ = ["CONTINUED", "SCHEMA_VERSION", "EpisodeRecord", "Message", "Node", "RolloutGraph", "Status", "cut_spans"]


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
        leaf = self.episodes[episode].leaf
        return 0 if leaf < 0 else self.nodes[leaf].turn + (not self.nodes[leaf].partial)

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
            decision={name: said for name, said in node.decision.items() if name != ANSWERS},
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
    def from_dict(cls, data: Any) -> RolloutGraph:
        """Inverse of `to_dict`. A graph of schema version 1 or 2 becomes one of version 3, whose fields are the present
        ones; `version` then still says how its success was recorded, see `graph.success`.

        Raises:
            GraphError: when it does not fit the JSON schema of its version, or a newer version wrote it. Whether its
                parts fit together is the matter of `check`.
        """
        version = require_fit(data)
        # A later version may say the same things of other episodes: the version stays as long as the fields are equal.
        fields = dict(data) | {"version": max(version, FIELDS_SINCE)}
        fields["nodes"] = [_node(node) for node in data["nodes"]]
        fields["episodes"] = [EpisodeRecord(**episode) for episode in data["episodes"]]
        graph = cls(**fields)
        if version < 3:
            graph._move_numbers()
        return graph

    def _move_numbers(self) -> None:
        """Put what schema versions 1 and 2 kept among counts and decisions into the fields of version 3."""
        milliseconds = self.counts.pop("rollout_ms", None)
        if milliseconds is not None:
            self.seconds["rollout"] = milliseconds / 1000
        for episode in self.episodes:
            episode.reward_info = found = episode.decision.pop("reward_extra_info", {})
            if not isinstance(found, dict) or not all(type(value) in (int, float) for value in found.values()):
                raise GraphError(f"episode {episode.id}: `reward_extra_info` is not a mapping to numbers.")

    def check(self) -> None:
        """Raise `GraphError` on the first broken invariant; see `verl_hier.graph.invariants`."""
        check_graph(self.nodes, self.episodes, self.credit, str(self.task.get("uid")))


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
