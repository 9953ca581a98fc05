"""Episodes that one trainer step leaves unfinished and a later one continues.

A sampler leaves an episode with `episode.discard(EndReason.LEFT_UNFINISHED)`, and finds the unfinished episodes of its
task in `rollout.unfinished`, to be given to `rollout.resume`. Only tokens and the server's numbers about them are kept:
worker and environment run again, and must produce the same prompts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from verl_hier.graph.nodes import EpisodeRecord, Node, RolloutGraph
from verl_hier.graph.records import RESET
from verl_hier.rollout.end_reason import EndReason


@dataclass(frozen=True)
class UnfinishedEpisode:
    """The part of an episode that was played.

    Attributes:
        step: trainer step that left it.
        worker_seed_name: name of its worker's random generator.
        nodes: its nodes, first one first; `context` and `plan` are places in this list. Their messages are left out:
            the worker makes them again.
        reset: the answer to the reset, where the world's answers are stored; see `recorded_world`.
    """

    step: int
    worker_seed_name: str
    nodes: tuple[Node, ...]
    reset: Mapping[str, Any] | None = None

    @property
    def began(self) -> int:
        """Trainer step of its oldest token."""
        return min(sampled_in(node, self.step) for node in self.nodes)

    @classmethod
    def left_in(cls, graph: RolloutGraph) -> Iterator[UnfinishedEpisode]:
        """The episodes that a finished rollout leaves to later steps."""
        for record in graph.episodes:
            left = record.status == "pruned" and record.error == EndReason.LEFT_UNFINISHED and record.leaf >= 0
            if left and "stand_ins" not in record.decision:
                yield cls(
                    graph.step,
                    _origin(graph, record),
                    _detached(graph, graph.path(record.id)),
                    graph.request.get(RESET),
                )

    @classmethod
    def resumed_in(cls, graph: RolloutGraph) -> Iterator[UnfinishedEpisode]:
        """The episodes of earlier steps that a finished rollout continued."""
        for record in graph.episodes:
            resumed = record.decision.get("resumed")
            if resumed is not None:
                mine = (graph.nodes[number] for number in graph.path(record.id))
                old = [node.id for node in mine if node.episode == record.id and sampled_earlier(node)]
                yield cls(resumed["step"], resumed["origin"], _detached(graph, old), graph.request.get(RESET))


class UnfinishedEpisodes:
    """Unfinished episodes by task, in the memory of one process.

    Args:
        most: limit of episodes; beyond it those of the tasks that were left longest ago are dropped.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._left: OrderedDict[str, list[UnfinishedEpisode]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._left.values()))

    def keep(self, task: str, graph: RolloutGraph) -> None:
        """Keep the unfinished episodes of a rollout of a task."""
        for unfinished in UnfinishedEpisode.left_in(graph):
            self._left.setdefault(task, []).append(unfinished)
            self._left.move_to_end(task)
        while len(self) > self._most:
            oldest = next(iter(self._left.values()))
            oldest.pop(0)
            if not oldest:
                self._left.popitem(last=False)

    def take(self, task: str, step: int) -> tuple[UnfinishedEpisode, ...]:
        """Remove and return the unfinished episodes of a task that steps before `step` have left."""
        return tuple(unfinished for unfinished in self._left.pop(task, ()) if unfinished.step < step)


def sampled_earlier(node: Node) -> bool:
    """Whether an earlier step has sampled a node of a resumed episode."""
    return "carried" in node.decision


def sampled_in(node: Node, step: int) -> int:
    """Trainer step that has sampled a node of a rollout of `step`."""
    return int(node.decision.get("carried", step))


def task_seed_name(step: int, index: object, validate: bool) -> str:
    """The name that all seeds of one task in one step are derived from."""
    return f"{step}/{index}/{int(validate)}"


def _origin(graph: RolloutGraph, record: EpisodeRecord) -> str:
    while record.source >= 0:
        record = graph.episodes[record.source]
    if "resumed" in record.decision:
        return str(record.decision["resumed"]["origin"])
    name = task_seed_name(graph.step, graph.task.get("index"), graph.request.get("validate", False))
    return f"{name}/{record.id}"


def _detached(graph: RolloutGraph, path: Sequence[int]) -> tuple[Node, ...]:
    places = {number: place for place, number in enumerate(path)} | {-1: -1}
    return tuple(
        replace(
            node,
            id=places[node.id],
            parent=places[node.id] - 1,
            context=places[node.context],
            plan=places[node.plan],
            messages=[],
            decision={**node.decision, "carried": sampled_in(node, graph.step)},
        )
        for node in (graph.nodes[number] for number in path)
    )
