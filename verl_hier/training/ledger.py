"""The rows that one step trains, the graphs they were cut from, and how credit reaches their tokens."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_hier.credit import Credit, WeightBy, turn_credit
from verl_hier.errors import CreditError
from verl_hier.graph import RolloutGraph, SharedPrefix, TableBuilder, TurnTable
from verl_hier.training.schedule import Phase

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RowIdentity:
    """Where a row comes from, as it travels in verl's `extra_fields["hier"]`.

    Attributes:
        uid: task.
        episode: episode within the task.
        turn_index: (L,) node of each response token, -1 on observations.
        graph: the pickled rollout graph, in the first row of a task only.
    """

    uid: str
    episode: int
    turn_index: list[int]
    graph: bytes | None = None


class Ledger:
    """Rows, graphs and turn table of one step. Token arrays are flat: all rows one after the other.

    Attributes:
        graphs: uid to graph.
        table: the turn table over all graphs, in the order of `graphs`.
        turn: (N,) table turn of each response token of all rows, -1 on observations.
        row: (N,) row number of each token.
        lengths: tokens of each row.
        phase_weight: (T,) loss weight that the schedule gives each turn, 1 unless its phase sets another one.
    """

    def __init__(self, rows: Sequence[RowIdentity]) -> None:
        self.graphs: dict[str, RolloutGraph] = {
            row.uid: pickle.loads(row.graph) for row in sorted(rows, key=lambda r: r.uid) if row.graph is not None
        }
        missing = {row.uid for row in rows} - set(self.graphs)
        if missing:
            raise CreditError(f"rows of task {sorted(missing)[0]} arrived without their rollout graph.")
        builder = TableBuilder()
        for graph in self.graphs.values():
            builder.add(graph, Phase.from_dict(graph.phase).trains)
        self.table: TurnTable = builder.build()
        self.phase_weight = self._phase_weights()
        numbers = {uid: number for number, uid in enumerate(self.graphs)}
        self._turn_of = builder.turn_of
        self._first_episode = self._episode_offsets()
        self.lengths = [len(row.turn_index) for row in rows]
        self.row: Ints = np.repeat(np.arange(len(rows)), self.lengths)
        turns = [self._turns(numbers[row.uid], row.turn_index) for row in rows]
        self.turn: Ints = np.concatenate(turns) if turns else np.zeros(0, dtype=np.int64)
        episodes = [self._first_episode[numbers[row.uid]][row.episode] for row in rows]
        self.episode: Ints = np.asarray(episodes, dtype=np.int64)

    def _episode_offsets(self) -> list[dict[int, int]]:
        offsets: list[dict[int, int]] = []
        total = 0
        for graph in self.graphs.values():
            ids = [episode.id for episode in graph.complete()]
            offsets.append({episode: total + i for i, episode in enumerate(ids)})
            total += len(ids)
        return offsets

    def _phase_weights(self) -> Floats:
        weights = np.ones(len(self.table))
        for number, graph in enumerate(self.graphs.values()):
            for level, weight in Phase.from_dict(graph.phase).weights:
                weights[(self.table["group"] == number) & (self.table["level"] == level)] = weight
        return weights

    def _turns(self, graph: int, nodes: Sequence[int]) -> Ints:
        turn_of = self._turn_of[graph]
        return np.asarray([-1 if node < 0 else turn_of[node] for node in nodes], dtype=np.int64)

    def node_credit(self, credit: Credit) -> None:
        """Write the credit of each turn into the graphs, for the store. Steps and tokens are averaged."""
        values = turn_credit(self.table, credit)
        for graph, turn_of in zip(self.graphs.values(), self._turn_of, strict=True):
            graph.credit = [float(values[turn_of[node.id]]) if node.id in turn_of else 0.0 for node in graph.nodes]

    def turn_means(self, values: NDArray[Any], mask: NDArray[Any]) -> Floats:
        """(T,) mean over the trained tokens of each turn; 0 for turns without one. The reverse of `spread`.

        Args:
            values: (N,) a number a token.
            mask: (N,) 1 on trained tokens.
        """
        trained = (np.asarray(mask) > 0) & (self.turn >= 0)
        turns = self.turn[trained]
        count = np.maximum(np.bincount(turns, minlength=len(self.table)), 1)
        means: Floats = np.bincount(turns, np.asarray(values, np.float64)[trained], len(self.table)) / count
        return means

    def spread(self, values: NDArray[Any], per: str, rule: SharedPrefix) -> Floats:
        """Values per turn, step or token as (N,) token values; 0 on observations.

        Args:
            values: `Credit.values` or `Credit.returns`.
            per: `Credit.per`.
            rule: with `repeat`, a shared turn takes the value of the row's own episode; otherwise its mean.
        """
        on_action = self.turn >= 0
        out = np.zeros(len(self.turn))
        if per == "token":
            out[on_action] = np.asarray(values, dtype=np.float64)[self.token_positions()[on_action]]
        elif per == "step" and rule == "repeat":
            out[on_action] = np.asarray(values, dtype=np.float64)[self._steps()[on_action]]
        else:
            out[on_action] = turn_credit(self.table, Credit(values, per))[self.turn[on_action]]  # type: ignore[arg-type]
        return out

    def token_positions(self) -> Ints:
        """(N,) position in the table's token columns: start of the turn plus the place within its run."""
        counts = np.asarray(self.table["n_tokens"], dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]]) if len(counts) else np.zeros(0, dtype=np.int64)
        index = np.arange(len(self.turn))
        fresh = np.ones(len(self.turn), dtype=bool)
        fresh[1:] = (self.turn[1:] != self.turn[:-1]) | (self.row[1:] != self.row[:-1])
        within = index - np.maximum.accumulate(np.where(fresh, index, 0))
        positions: Ints = np.where(self.turn >= 0, starts[np.maximum(self.turn, 0)] + within, -1)
        return positions

    def _steps(self) -> Ints:
        """(N,) step of (episode of the row, turn of the token)."""
        width = len(self.table) + 1
        keys = self.table.step_episode * width + self.table.step_turn
        order = np.argsort(keys)
        wanted = self.episode[self.row] * width + np.maximum(self.turn, 0)
        places = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
        steps: Ints = order[places]
        return steps

    def weights(self, credit: Credit, mask: NDArray[Any], by: WeightBy, rule: SharedPrefix) -> Floats | None:
        """(N,) loss weights with the same sum for every unit, or None where verl's loss aggregation stays as it is.

        Args:
            credit: its `weight` is multiplied in.
            mask: (N,) 1 on trained tokens.
            by: the unit: `row`, `turn`, `episode` or `role`; with `token` all tokens weigh the same.
            rule: with `first_owner`, a shared turn counts once for each episode through it.

        Turns whose `credit.weight` is 0 are left out as if they were not in the step. Before `credit.weight` and
        `phase_weight` are applied, the other weights sum to the number of trained tokens, theirs included, by which
        verl divides. With `token` and `first_owner` they are the numbers of episodes instead.
        """
        phase = self.phase_weight if (self.phase_weight != 1).any() else None
        if by == "token" and credit.weight is None and phase is None and rule != "first_owner":
            return None
        trained = (np.asarray(mask) > 0) & (self.turn >= 0)
        turn = np.maximum(self.turn, 0)
        scale = np.ones(len(self.table)) if credit.weight is None else np.asarray(credit.weight, dtype=np.float64)
        kept = trained & (scale[turn] != 0)
        weights = kept.astype(np.float64)
        if rule == "first_owner":
            weights *= np.asarray(self.table["leaves"], dtype=np.float64)[turn]
        units = self._units(by, turn)
        if units is None:
            weights *= trained.sum() / max(kept.sum(), 1)
        elif kept.any():
            total = np.bincount(units, weights=weights)
            present = int((total > 0).sum())
            weights *= np.divide(trained.sum() / present, total, out=np.zeros_like(total), where=total > 0)[units]
        weights *= scale[turn]
        return weights if phase is None else weights * phase[turn]

    def _units(self, by: WeightBy, turn: Ints) -> Ints | None:
        choices: Mapping[str, Any] = {
            "token": lambda: None,
            "row": lambda: self.row,
            "turn": lambda: turn,
            "episode": lambda: self.episode[self.row],
            "role": lambda: np.asarray(self.table["role"], dtype=np.int64)[turn],
        }
        units: Ints | None = choices[by]()
        return units

    def split(self, flat: NDArray[Any]) -> list[NDArray[Any]]:
        """A flat token array as one array a row."""
        return np.split(flat, np.cumsum(self.lengths)[:-1]) if self.lengths else []
