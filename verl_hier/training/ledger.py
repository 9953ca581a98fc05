"""The rows that one step trains, the graphs they were cut from, and how credit reaches their tokens."""

from __future__ import annotations

import contextlib
import gc
import itertools
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_hier.credit import Credit, WeightBy, turn_credit
from verl_hier.errors import CreditError
from verl_hier.graph import RolloutGraph, SharedPrefix, TurnTable, number_turns
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


@dataclass(frozen=True)
class Runs:
    """Neighbouring tokens of one row that belong to one turn, or to none.

    Attributes:
        turn: table turn of each run, -1 on observations.
        row: row number of each run.
        start: first token of each run.
        length: tokens of each run.
    """

    turn: Ints
    row: Ints
    start: Ints
    length: Ints

    @classmethod
    def of(cls, turn: Ints, lengths: Sequence[int]) -> Runs:
        """The runs of rows.

        Args:
            turn: (N,) table turn of each token of all rows, -1 on observations.
            lengths: tokens of each row.
        """
        ends = np.cumsum(np.asarray(lengths, np.int64))
        fresh = np.ones(len(turn), dtype=bool)
        fresh[1:] = turn[1:] != turn[:-1]
        fresh[ends[ends < len(turn)]] = True
        start = np.flatnonzero(fresh)
        row = np.searchsorted(ends, start, side="right")
        return cls(turn[start], row, start, np.diff(start, append=len(turn)))

    def spread(self, values: Floats, places: Ints) -> Floats:
        """(N,) the value at the place of each run; 0 where that is -1."""
        return np.repeat(np.append(values, 0.0)[places], self.length)

    def count(self, chosen: NDArray[np.bool_]) -> Ints:
        """How many tokens of each run are chosen, of (N,)."""
        before = np.concatenate([[0], np.cumsum(chosen)])
        return before[self.start + self.length] - before[self.start]


class Ledger:
    """Rows, graphs and turn table of one step. Token arrays are flat: all rows one after the other.

    Tokens of one turn, or of one observation, stand together in a row. Such a run of tokens is treated as one entry
    wherever possible: R rows have fewer of them than tokens (N) by the length of a turn.

    Attributes:
        graphs: uid to graph.
        table: the turn table over all graphs, in the order of `graphs`.
        lengths: tokens of each row.
        episode: (R,) episode of each row, as in the turn table.
        phase_weight: (T,) loss weight that the schedule gives each turn, 1 unless its phase sets another one.
    """

    def __init__(self, rows: Sequence[RowIdentity]) -> None:
        with _no_collection():
            self.graphs: dict[str, RolloutGraph] = {
                row.uid: pickle.loads(row.graph) for row in sorted(rows, key=lambda r: r.uid) if row.graph is not None
            }
        missing = {row.uid for row in rows} - set(self.graphs)
        if missing:
            raise CreditError(f"rows of task {sorted(missing)[0]} arrived without their rollout graph.")
        graphs = list(self.graphs.values())
        phases = [Phase.from_dict(graph.phase) for graph in graphs]
        self.table: TurnTable
        self.table, self._turn_of = number_turns(graphs, [phase.learns for phase in phases])
        self.phase_weight = self._phase_weights(phases)
        numbers = {uid: number for number, uid in enumerate(self.graphs)}
        self.lengths = [len(row.turn_index) for row in rows]
        turns = [self._turns(numbers[row.uid], row.turn_index) for row in rows]
        self._runs = Runs.of(np.concatenate(turns) if turns else np.zeros(0, np.int64), self.lengths)
        episodes = _episode_numbers(graphs)
        self.episode: Ints = np.asarray([episodes[numbers[row.uid]][row.episode] for row in rows], dtype=np.int64)

    @cached_property
    def turn(self) -> Ints:
        """(N,) table turn of each response token of all rows, -1 on observations."""
        return np.repeat(self._runs.turn, self._runs.length)

    @cached_property
    def row(self) -> Ints:
        """(N,) row number of each token."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def _phase_weights(self, phases: Sequence[Phase]) -> Floats:
        weights = np.ones(len(self.table))
        if not len(self.table) or not any(phase.weights for phase in phases):
            return weights
        group, levels = np.asarray(self.table["group"]), np.asarray(self.table["level"])
        for number, phase in enumerate(phases):
            mine = slice(*np.searchsorted(group, [number, number + 1]))
            for level, weight in phase.weights:
                weights[mine][levels[mine] == level] = weight
        return weights

    def _turns(self, graph: int, nodes: Sequence[int]) -> Ints:
        places = np.fromiter(nodes, np.int64, len(nodes))
        return np.where(places < 0, -1, self._turn_of[graph][places])

    def node_credit(self, credit: Credit) -> None:
        """Write the credit of each turn into the graphs, for the store. Steps and tokens are averaged."""
        values = turn_credit(self.table, credit)
        for graph, turn_of in zip(self.graphs.values(), self._turn_of, strict=True):
            graph.credit = np.where(turn_of >= 0, values[turn_of], 0.0).tolist()

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
        if per == "token":
            out = np.zeros(len(self.turn))
            on_action = self.turn >= 0
            out[on_action] = np.asarray(values, dtype=np.float64)[self.token_positions()[on_action]]
            return out
        if per == "step" and rule == "repeat":
            found, places = np.asarray(values, dtype=np.float64), self._steps()
        else:
            found, places = turn_credit(self.table, Credit(values, per)), self._runs.turn  # type: ignore[arg-type]
        return self._runs.spread(found, places)

    def token_positions(self) -> Ints:
        """(N,) position in the table's token columns: start of the turn plus the place within its run."""
        runs = self._runs
        counts = np.asarray(self.table["n_tokens"], dtype=np.int64) if len(self.table) else np.zeros(0, dtype=np.int64)
        starts = np.cumsum(counts) - counts
        on_action = runs.turn >= 0
        first = np.full(len(runs.turn), -1)
        first[on_action] = starts[runs.turn[on_action]]
        positions: Ints = np.repeat(first - runs.start * on_action, runs.length)
        positions += np.arange(len(positions)) * np.repeat(on_action, runs.length)
        return positions

    def _steps(self) -> Ints:
        """Step of the episode of the row and the turn of each run; -1 on observations."""
        runs = self._runs
        width = len(self.table) + 1
        keys = self.table.step_episode * width + self.table.step_turn
        order = np.argsort(keys)
        wanted = self.episode[runs.row] * width + np.maximum(runs.turn, 0)
        places = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
        return np.where(runs.turn >= 0, order[places], -1)

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
        runs = self._runs
        trained = (np.asarray(mask) > 0) & np.repeat(runs.turn >= 0, runs.length)
        tokens = runs.count(trained)
        turn = np.maximum(runs.turn, 0)
        scale = np.ones(len(self.table)) if credit.weight is None else np.asarray(credit.weight, dtype=np.float64)
        kept = np.where(scale[turn] != 0, tokens, 0)
        weights = (scale[turn] != 0).astype(np.float64)
        if rule == "first_owner":
            weights *= np.asarray(self.table["leaves"], dtype=np.float64)[turn]
        units = self._units(by, turn)
        if units is None:
            weights *= tokens.sum() / max(kept.sum(), 1)
        elif kept.any():
            total = np.bincount(units, weights=weights * kept)  # whole numbers, which have the same sum in any order
            present = int((total > 0).sum())
            weights *= np.divide(tokens.sum() / present, total, out=np.zeros_like(total), where=total > 0)[units]
        weights *= scale[turn]
        if phase is not None:
            weights *= phase[turn]
        return np.where(trained, np.repeat(weights, runs.length), 0.0)

    def _units(self, by: WeightBy, turn: Ints) -> Ints | None:
        """The unit of each run, None where every token is one."""
        row = self._runs.row
        choices: Mapping[str, Any] = {
            "token": lambda: None,
            "row": lambda: row,
            "turn": lambda: turn,
            "episode": lambda: self.episode[row],
            "role": lambda: np.asarray(self.table["role"], dtype=np.int64)[turn],
        }
        units: Ints | None = choices[by]()
        return units

    def split(self, flat: NDArray[Any]) -> list[NDArray[Any]]:
        """A flat token array as one array a row."""
        return np.split(flat, np.cumsum(self.lengths)[:-1]) if self.lengths else []


def _episode_numbers(graphs: Sequence[RolloutGraph]) -> list[dict[int, int]]:
    """For each graph, the complete episodes by their ids: their numbers in the turn table."""
    numbers = itertools.count()
    return [{episode.id: next(numbers) for episode in graph.complete()} for graph in graphs]


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Leave out the garbage collector, which looks at all of many new objects again and again, and here finds none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
