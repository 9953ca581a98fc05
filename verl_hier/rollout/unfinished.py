"""Episodes that one trainer step leaves and a later one goes on with: what is kept of them, and where.

A sampler leaves an episode with `episode.discard(LEFT_UNFINISHED)`, and finds what earlier steps left of its task in
`rollout.unfinished`, to be given to `rollout.resume`. Nothing but tokens and what the server said about them is kept:
worker and world are run again, and have to ask and answer as before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from verl_hier.graph.nodes import EpisodeRecord, Node, RolloutGraph

LEFT_UNFINISHED = "carried_over"
"""Why an episode is no leaf although it may go on: a later step gets it."""


@dataclass(frozen=True)
class UnfinishedEpisode:
    """An episode as far as it came.

    Attributes:
        step: trainer step that left it.
        origin: name of its worker's random generator.
        nodes: its nodes, first one first; `context` and `plan` are places in this list. Their messages are left out:
            the worker says them anew.
    """

    step: int
    origin: str
    nodes: tuple[Node, ...]

    @property
    def began(self) -> int:
        """Trainer step of its oldest token."""
        return min(sampled_in(node, self.step) for node in self.nodes)

    @classmethod
    def left_in(cls, graph: RolloutGraph) -> Iterator[UnfinishedEpisode]:
        """What a finished rollout leaves to later steps."""
        for record in graph.episodes:
            if record.status == "pruned" and record.error == LEFT_UNFINISHED and record.leaf >= 0:
                yield cls(graph.step, _origin(graph, record), _detached(graph, graph.path(record.id)))

    @classmethod
    def resumed_in(cls, graph: RolloutGraph) -> Iterator[UnfinishedEpisode]:
        """What a finished rollout was left by earlier steps and went on with."""
        for record in graph.episodes:
            resumed = record.decision.get("resumed")
            if resumed is not None:
                mine = (graph.nodes[number] for number in graph.path(record.id))
                old = [node.id for node in mine if node.episode == record.id and sampled_earlier(node)]
                yield cls(resumed["step"], resumed["origin"], _detached(graph, old))


class UnfinishedEpisodes:
    """What steps have left, by task, in the memory of one process.

    Args:
        most: episodes to keep; of more, those of the tasks that were left longest ago are dropped.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._left: OrderedDict[str, list[UnfinishedEpisode]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._left.values()))

    def keep(self, task: str, graph: RolloutGraph) -> None:
        """Remember what a rollout leaves of a task."""
        for unfinished in UnfinishedEpisode.left_in(graph):
            self._left.setdefault(task, []).append(unfinished)
            self._left.move_to_end(task)
        while len(self) > self._most:
            oldest = next(iter(self._left.values()))
            oldest.pop(0)
            if not oldest:
                self._left.popitem(last=False)

    def take(self, task: str, step: int) -> tuple[UnfinishedEpisode, ...]:
        """What steps before `step` have left of a task, which is forgotten here with it."""
        return tuple(unfinished for unfinished in self._left.pop(task, ()) if unfinished.step < step)


def sampled_earlier(node: Node) -> bool:
    """Whether an earlier step has sampled a node of a resumed episode."""
    return "carried" in node.decision


def sampled_in(node: Node, step: int) -> int:
    """Trainer step that has sampled a node of a rollout of `step`."""
    return int(node.decision.get("carried", step))


def conversation_name(step: int, index: object, validate: bool) -> str:
    """What names the random generators of one task in one step."""
    return f"{step}/{index}/{int(validate)}"


def _origin(graph: RolloutGraph, record: EpisodeRecord) -> str:
    while record.source >= 0:
        record = graph.episodes[record.source]
    if "resumed" in record.decision:
        return str(record.decision["resumed"]["origin"])
    name = conversation_name(graph.step, graph.task.get("index"), graph.request.get("validate", False))
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
