"""The turn table of a batch, read off its rollout graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from verl_hier.graph.nodes import EpisodeRecord, Node, RolloutGraph
from verl_hier.graph.rows import owning_chains
from verl_hier.graph.turn_table import Array, TurnTable


class TableBuilder:
    """Collects graphs into one `TurnTable` and remembers which table turn each node became."""

    def __init__(self) -> None:
        self._turns: list[dict[str, Any]] = []
        self._episodes: list[dict[str, Any]] = []
        self._step_episode: list[int] = []
        self._step_turn: list[int] = []
        self._tokens: dict[str, list[Array]] = {}
        self._token_count = 0
        self._anchors: dict[str, int] = {}
        self._names: dict[str, dict[str, int]] = {"agent": {}, "role": {}, "source": {}}
        self._groups = 0
        self._trees = 0
        self._rows = 0
        self.turn_of: list[dict[int, int]] = []

    def add(self, graph: RolloutGraph, trained: Callable[[Node], bool] = lambda node: True) -> None:
        """Append one task. Turns of failed or pruned episodes are left out unless a complete episode shares them.

        Args:
            graph: a graph whose `check` passes.
            trained: whether the schedule trains a turn in this step.
        """
        complete = list(graph.complete())
        paths = {episode.id: graph.path(episode.id) for episode in complete}
        used = sorted({node for path in paths.values() for node in path})
        turn_of = {node: len(self._turns) + i for i, node in enumerate(used)}
        first_episode = len(self._episodes)
        owners: dict[int, int] = {}
        for i, episode in enumerate(complete):
            path = paths[episode.id]
            for node in path:
                owners.setdefault(node, first_episode + i)
                self._step_episode.append(first_episode + i)
                self._step_turn.append(turn_of[node])
            self._episodes.append(self._episode(graph, episode, turn_of, len(path)))
        through: dict[int, list[EpisodeRecord]] = {node: [] for node in used}
        for episode in complete:
            for node in paths[episode.id]:
                through[node].append(episode)
        row_of = owning_chains(graph)
        for node in used:
            turn = self._turn(graph.nodes[node], turn_of, owners[node], through[node])
            kept = not all(episode.withheld for episode in through[node])
            turn["trained"] = kept and graph.nodes[node].trained and trained(graph.nodes[node])
            turn["row"] = self._rows + row_of[node]
            self._turns.append(turn)
            self._add_tokens(graph.nodes[node], turn_of[node])
        self.turn_of.append(turn_of)
        self._groups += 1
        self._rows += 1 + max(row_of.values(), default=0)
        self._trees += 1 + max((episode.tree for episode in graph.episodes), default=0)

    def _episode(
        self, graph: RolloutGraph, episode: EpisodeRecord, turn_of: dict[int, int], turns: int
    ) -> dict[str, Any]:
        return {
            "group": self._groups,
            "return": episode.ret,
            "success": float("nan") if episode.success is None else float(episode.success),
            "leaf": turn_of[episode.leaf],
            "tree": self._trees + episode.tree,
            "trained": episode.trained,
            "withheld": episode.withheld,
            "turns": turns,
            "task": int(graph.task.get("index", self._groups)),
            "source": self._code("source", str(graph.task.get("data_source", "unknown"))),
        }

    def _code(self, vocabulary: str, name: str) -> int:
        codes = self._names[vocabulary]
        return codes.setdefault(name, len(codes))

    def _turn(
        self, node: Node, turn_of: dict[int, int], owner: int, through: Sequence[EpisodeRecord]
    ) -> dict[str, Any]:
        parent = turn_of.get(node.parent, -1)
        depth = 0 if parent < 0 else self._turns[parent]["depth"] + 1
        anchor = -1 if node.anchor is None else self._anchors.setdefault(node.anchor, len(self._anchors))
        known = node.entropy or [-logprob for logprob in node.logprobs]
        entropy = sum(known) / len(known) if known else float("nan")
        return {
            "group": self._groups,
            "episode": owner,
            "agent": self._code("agent", node.agent),
            "role": self._code("role", node.role),
            "level": node.level,
            "turn": node.turn,
            "segment": node.segment,
            "plan": turn_of.get(node.plan, -1),
            "parent": parent,
            "depth": depth,
            "leaves": len(through),
            "reward": float(node.reward),
            "return": float(np.mean([e.ret for e in through])),
            "done": node.done,
            "truncated": node.truncated,
            "valid": node.valid,
            "complete": node.stop_reason not in ("length", "aborted"),
            "n_tokens": len(node.action),
            "n_prompt": len(node.observation),
            "anchor": anchor,
            "entropy": entropy,
            **{name: value for name, value in node.extra.items() if isinstance(value, int | float)},
        }

    def _add_tokens(self, node: Node, turn: int) -> None:
        n = len(node.action)
        columns: dict[str, Array] = {
            "turn": np.full(n, turn, dtype=np.int64),
            "logprob": np.asarray(node.logprobs or [np.nan] * n, dtype=np.float64),
        }
        if node.entropy:
            columns["entropy"] = np.asarray(node.entropy, dtype=np.float64)
        for name, spans in node.masks.items():
            mask = np.zeros(n, dtype=bool)
            for start, stop in spans:
                mask[start:stop] = True
            columns[name] = mask
        for name, column in columns.items():
            parts = self._tokens.setdefault(name, [])
            if not parts and self._token_count:
                parts.append(np.zeros(self._token_count, dtype=column.dtype))
            parts.append(column)
        for name, parts in self._tokens.items():
            if name not in columns:
                parts.append(np.zeros(n, dtype=parts[0].dtype))
        self._token_count += n

    def build(self) -> TurnTable:
        """The table of everything added so far."""
        return TurnTable(
            turns=_columns(self._turns),
            episodes=_columns(self._episodes),
            step_episode=np.asarray(self._step_episode, dtype=np.int64),
            step_turn=np.asarray(self._step_turn, dtype=np.int64),
            tokens={name: np.concatenate(parts) for name, parts in self._tokens.items()},
            names={name: tuple(codes) for name, codes in self._names.items()},
            anchors=tuple(self._anchors),
        )


def _columns(records: list[dict[str, Any]]) -> dict[str, Array]:
    names: dict[str, None] = {}
    for record in records:
        names.update(dict.fromkeys(record))
    return {name: np.asarray([record.get(name, np.nan) for record in records]) for name in names}


def build_table(graphs: Sequence[RolloutGraph]) -> TurnTable:
    """The turn table of several tasks, all turns trained that may be; see `TableBuilder`."""
    builder = TableBuilder()
    for graph in graphs:
        builder.add(graph)
    return builder.build()
