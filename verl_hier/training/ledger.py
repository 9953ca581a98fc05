"""The rows that one step trains, the rollouts they were cut from, and how credit reaches their tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verl_hier.credit import Credit, WeightBy, turn_credit
from verl_hier.errors import CreditError
from verl_hier.graph import SharedPrefix, TurnTable
from verl_hier.graph.columnar.light import Light
from verl_hier.graph.columnar.table import column_numbers, complete_episodes, table_of
from verl_hier.graph.columnar.writing import Explained
from verl_hier.training.schedule import Phase

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

BLOCK = 4096
"""Runs of tokens that are added up at a time."""


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
    def of(cls, sizes: Ints, node: Ints, turn: Ints, observed: Ints, acted: Ints) -> Runs:
        """The runs of rows, each of which is the actions of a chain of nodes and what was observed between them.

        Args:
            sizes: (R,) length of the chain of each row.
            node: the nodes of all chains, in token order.
            turn: (M,) table turn of each node.
            observed, acted: (M,) tokens that each node observes, and that it acts by.
        """
        turns = np.stack([np.full(len(node), -1), turn[node]], axis=1).ravel()
        length = np.stack([observed[node], acted[node]], axis=1)
        length[(np.cumsum(sizes) - sizes)[sizes > 0], 0] = 0  # what was observed before the first action is the prompt
        length = length.ravel()
        row = np.repeat(np.arange(len(sizes)), 2 * sizes)
        kept = length > 0
        return cls(turns[kept], row[kept], (np.cumsum(length) - length)[kept], length[kept])

    def spread(self, values: Floats, places: Ints) -> Floats:
        """(N,) the value at the place of each run; 0 where that is -1."""
        return np.repeat(np.append(values, 0.0)[places], self.length)

    def count(self, chosen: NDArray[np.bool_]) -> Ints:
        """How many tokens of each run are chosen, of (N,). Runs stand side by side, and none is empty."""
        return np.add.reduceat(chosen.view(np.int8), self.start, dtype=np.int64) if len(self.start) else self.start

    def sum(self, values: NDArray[Any], chosen: NDArray[np.bool_]) -> Floats:
        """The sum over the chosen tokens of each run, of (N,)."""
        sums = np.zeros(len(self.start))
        # In blocks, because new memory for millions of tokens takes longer than adding them up.
        for first in range(0, len(sums), BLOCK):
            starts = self.start[first : first + BLOCK]
            tokens = slice(starts[0], self.start[first + BLOCK] if first + BLOCK < len(sums) else len(chosen))
            counted = np.where(chosen[tokens], values[tokens], np.zeros((), values.dtype))
            sums[first : first + BLOCK] = np.add.reduceat(counted, starts - starts[0], dtype=np.float64)
        return sums

    def of_turns(self, mask: NDArray[Any]) -> NDArray[np.bool_]:
        """(N,) whether a token belongs to a turn and its mask is not 0."""
        chosen = np.repeat(self.turn >= 0, self.length)
        chosen &= np.asarray(mask) > 0
        return chosen


class Ledger:
    """Rows, rollouts and turn table of one step. Token arrays are flat: all rows one after the other.

    Tokens of one turn, or of one observation, stand together in a row. Such a run of tokens is treated as one entry
    wherever possible: R rows have fewer of them than tokens (N) by the length of a turn.

    Attributes:
        light: what is known of the tasks.
        table: the turn table over all tasks, in their order.
        lengths: tokens of each row.
        episode: (R,) episode of each row, as in the turn table.
        policies: (R,) name of the policy of each row: a row is one context, and a context has one policy.
        phase_weight: (T,) loss weight that the schedule gives each turn, 1 unless its phase sets another one.
    """

    def __init__(self, light: Light, keys: Sequence[str]) -> None:
        """
        Args:
            light: of the tasks of all rows.
            keys: of each row in TransferQueue, `{uid}_{episode}_{place of the row in its episode}`.

        Raises:
            CreditError: for a row that is not known of its task.
        """
        self.light = light
        columns = light.columns
        phases = [Phase.from_dict(phase) for phase in light.records("phase")]
        self.table: TurnTable
        self.table, self._turn_of = table_of(columns, [phase.learns for phase in phases])
        self.phase_weight = self._phase_weights(phases)
        tasks, places = self._find(keys)
        sizes, counts = light.sizes("nodes"), light.sizes("episodes")
        found = light.rows.take(pa.array(places))
        lists = found["nodes"].combine_chunks()
        chain = column_numbers(pc.list_value_length(lists))
        node = lists.flatten().to_numpy() + np.repeat((np.cumsum(sizes) - sizes)[tasks], chain)
        turn_of = np.concatenate([np.zeros(0, np.int64), *self._turn_of])
        observed, acted = (column_numbers(columns.nodes[name]) for name in ("n_observation", "n_action"))
        self._runs = Runs.of(chain, node, turn_of, observed, acted)
        lengths = np.bincount(self._runs.row, self._runs.length, len(keys))
        self.lengths: list[int] = lengths.astype(np.int64).tolist()
        first = np.cumsum(chain) - chain  # no row is without a turn
        self.policies: list[str] = columns.nodes["policy"].take(pa.array(node[first])).to_pylist()
        numbers = np.cumsum(complete_episodes(columns)) - 1
        self.episode: Ints = numbers[(np.cumsum(counts) - counts)[tasks] + column_numbers(found["episode"])]

    def _find(self, keys: Sequence[str]) -> tuple[Ints, Ints]:
        """The task of each row, and its place in `light.rows`."""
        numbers = {uid: number for number, uid in enumerate(self.light.uids)}
        uids, episodes, within = zip(*(key.rsplit("_", 2) for key in keys), strict=True) if keys else ((), (), ())
        missing = {*uids} - numbers.keys()
        if missing:
            raise CreditError(f"rows of task {min(missing)} arrived without their rollout graph.")
        tasks = np.fromiter((numbers[uid] for uid in uids), np.int64, len(keys))
        known = np.repeat(np.arange(len(numbers)), self.light.sizes("rows"))
        width = int(self.light.sizes("episodes").max(initial=0)) + 1
        owner = known * width + column_numbers(self.light.rows["episode"])
        wanted = tasks * width + np.fromiter(map(int, episodes), np.int64, len(keys))
        places = np.searchsorted(owner, wanted) + np.fromiter(map(int, within), np.int64, len(keys))
        strange = np.append(owner, -1)[np.minimum(places, len(owner))] != wanted
        if strange.any():
            raise CreditError(f"the row {keys[int(strange.argmax())]} is not among those of its task.")
        return tasks, places

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
        if not len(self.table):
            return weights
        group, levels = np.asarray(self.table["group"]), np.asarray(self.table["level"])
        for number, phase in enumerate(phases):
            mine = slice(*np.searchsorted(group, [number, number + 1]))
            for level, weight in phase.weights:
                weights[mine][levels[mine] == level] = weight
        return weights

    def node_credit(self, credit: Credit) -> list[Floats]:
        """The credit of each node of each task, 0 where it is no turn of the table. Steps and tokens are averaged."""
        values = np.append(turn_credit(self.table, credit), 0.0)
        return [values[turn_of] for turn_of in self._turn_of]

    def explain(
        self, credit: Credit, weights: NDArray[Any], mask: NDArray[Any], difference: NDArray[Any] | None = None
    ) -> dict[str, Explained]:
        """What training makes of each node, by the uid of its task: the columns `EXPLAINED` of the store.

        Args:
            credit: of the step.
            weights: (N,) loss weights.
            mask: (N,) 1 on trained tokens.
            difference: (N,) |log p(rollout) - log p(training)|; None where one of them is not known.
        """
        trained = self._runs.of_turns(mask)
        columns = {"weight": np.append(self._means(weights, trained, 0.0), 0.0)}
        if difference is not None:
            columns["logprob_difference"] = np.append(self._means(difference, trained, np.nan), np.nan)
        groups = np.bincount(np.asarray(self.table["episodes.group"], np.int64), minlength=len(self._turn_of))
        return {
            uid: {
                "credit": values,
                "group_size": np.full(len(turn_of), group),
                **{name: column[turn_of] for name, column in columns.items()},
            }
            for uid, values, turn_of, group in zip(
                self.light.uids, self.node_credit(credit), self._turn_of, groups.tolist(), strict=True
            )
        }

    def reject(self, before: NDArray[Any], left: NDArray[Any]) -> None:
        """Take turns and episodes of which a correction has left no token out of what is compared and trained.

        They are no longer `trained` in the table, and `return` and `leaves` of shared turns are those of the other
        episodes. A turn goes with its last trained token, and an episode with the last trained token on its path.

        Args:
            before: (N,) 1 on tokens that would be trained without the correction.
            left: (N,) 1 on those that are left.
        """
        table, turn = self.table, np.maximum(self._runs.turn, 0)
        had, has = (
            np.bincount(turn, self._runs.count(self._runs.of_turns(mask)), len(table)) > 0 for mask in (before, left)
        )
        if not (had & ~has).any():
            return
        episodes = len(table["episodes.trained"])
        once, still = (np.bincount(table.step_episode, each[table.step_turn], episodes) > 0 for each in (had, has))
        table.turns["trained"] = np.asarray(table["trained"], bool) & ~(had & ~has)
        gone = once & ~still
        table.episodes["trained"] = np.asarray(table["episodes.trained"], bool) & ~gone
        steps = ~gone[table.step_episode]
        turns, returns = table.step_turn[steps], np.asarray(table["episodes.return"])[table.step_episode[steps]]
        leaves = np.bincount(turns, minlength=len(table))
        sums = np.bincount(turns, returns, len(table))
        table.turns["return"] = np.where(leaves > 0, sums / np.maximum(leaves, 1), table["return"])
        table.turns["leaves"] = leaves

    def turn_means(self, values: NDArray[Any], mask: NDArray[Any]) -> Floats:
        """(T,) mean over the trained tokens of each turn; 0 for turns without one. The reverse of `spread`.

        Args:
            values: (N,) a number a token.
            mask: (N,) 1 on trained tokens.
        """
        return self._means(values, self._runs.of_turns(mask), 0.0)

    def _means(self, values: NDArray[Any], trained: NDArray[np.bool_], otherwise: float) -> Floats:
        """(T,) means over the trained tokens of each turn, which the values of other tokens do not touch."""
        runs, size = self._runs, len(self.table)
        turn = np.maximum(runs.turn, 0)
        counted = np.bincount(turn, runs.count(trained), size)
        sums = np.bincount(turn, runs.sum(np.asarray(values), trained), size)
        return np.where(counted > 0, sums / np.maximum(counted, 1), otherwise)

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

    def turn_runs(self) -> Iterator[tuple[int, int, int, int, int]]:
        """(turn, row, first token, tokens, tokens observed before it) of each run of actions. Tokens count through all
        rows; observed ones stand between the action before and this one in its row, and a first action has none."""
        runs = self._runs
        before = np.append(-1, runs.turn[:-1])
        same = np.append(False, runs.row[1:] == runs.row[:-1])
        observed = np.where(same & (before < 0), np.append(0, runs.length[:-1]), 0)
        for place in np.flatnonzero(runs.turn >= 0):
            yield tuple(int(column[place]) for column in (runs.turn, runs.row, runs.start, runs.length, observed))  # type: ignore[misc]

    def token_positions(self) -> Ints:
        """(N,) position in the table's token columns: start of the turn plus the place within its run."""
        runs = self._runs
        counts = np.asarray(self.table["n_tokens"], dtype=np.int64) if len(self.table) else np.zeros(0, dtype=np.int64)
        starts = np.cumsum(counts) - counts
        on_action = runs.turn >= 0
        first = np.full(len(runs.turn), -1)
        first[on_action] = starts[runs.turn[on_action]]
        last = np.where(on_action, first + runs.length - 1, -1)
        # How much the position grows from one token to the next.
        positions: Ints = np.repeat(on_action.astype(np.int64), runs.length)
        positions[runs.start] = first - np.append(0, last[:-1])
        return np.cumsum(positions, out=positions)

    def _steps(self) -> Ints:
        """Step of the episode of the row and the turn of each run; -1 on observations."""
        runs = self._runs
        width = len(self.table) + 1
        keys = self.table.step_episode * width + self.table.step_turn
        order = np.argsort(keys)
        wanted = self.episode[runs.row] * width + np.maximum(runs.turn, 0)
        places = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
        return np.where(runs.turn >= 0, order[places], -1)

    def weights(
        self, credit: Credit, mask: NDArray[Any], by: WeightBy, rule: SharedPrefix, row_mean: bool = False
    ) -> Floats | None:
        """(N,) loss weights by which every unit has the same part in the loss, or None where the loss adds up tokens as
        it does by itself.

        Args:
            credit: its `weight` is multiplied in.
            mask: (N,) 1 on trained tokens.
            by: the unit: `row`, `turn`, `episode` or `role`; with `token` all tokens weigh the same.
            rule: with `first_owner`, a shared turn counts once for each episode through it.
            row_mean: whether the loss is a mean over rows of means over tokens, instead of a mean over all tokens; the
                weights make up for it.

        Turns whose `credit.weight` is 0 are left out as if they were not in the step. Before `credit.weight` and
        `phase_weight` are applied, the other weights sum to the number of trained tokens, theirs included, by which
        verl divides; with `row_mean`, the means of the rows sum to the number of rows. With `token` and `first_owner`
        they are the numbers of episodes instead. Each policy has batches of its own, and all of this holds within each
        of them.
        """
        names = sorted({*self.policies})
        if len(names) < 2:
            return self._weights(credit, mask, by, rule, row_mean)
        policy = np.asarray(self.policies)[self.row]
        found = [self._weights(credit, np.where(policy == name, mask, 0), by, rule, row_mean) for name in names]
        # Either all of them or none of them has weights, which does not depend on the rows.
        return None if found[0] is None else np.sum([part for part in found if part is not None], axis=0)

    def _weights(
        self, credit: Credit, mask: NDArray[Any], by: WeightBy, rule: SharedPrefix, row_mean: bool
    ) -> Floats | None:
        """`weights` of the rows of one policy, on whose tokens alone the mask is not 0."""
        phase = self.phase_weight if (self.phase_weight != 1).any() else None
        own = by == "token" or (by == "row" and row_mean)
        if own and credit.weight is None and phase is None and rule != "first_owner":
            return None
        runs = self._runs
        trained = runs.of_turns(mask)
        tokens = runs.count(trained)
        turn = np.maximum(runs.turn, 0)
        scale = np.ones(len(self.table)) if credit.weight is None else np.asarray(credit.weight, dtype=np.float64)
        kept = np.where(scale[turn] != 0, tokens, 0)
        weights = (scale[turn] != 0).astype(np.float64)
        if rule == "first_owner":
            weights *= np.asarray(self.table["leaves"], dtype=np.float64)[turn]
        counts = weights.copy()
        units = self._units(by, turn)
        whole = tokens.sum()
        if row_mean:
            of_row = np.bincount(runs.row, weights=tokens)
            weights *= of_row[runs.row]
            whole = int((of_row > 0).sum())
            if units is None:
                left = np.bincount(runs.row, weights=kept)[runs.row]
                rows_left = len(np.unique(runs.row[kept > 0]))
                weights *= np.divide(whole / max(rows_left, 1), left, out=np.zeros_like(left), where=left > 0)
        elif units is None:
            weights *= whole / max(kept.sum(), 1)
        if units is not None and kept.any():
            # Whole numbers, which have the same sum in any order.
            total = np.bincount(units, weights=counts * kept)
            present = int((total > 0).sum())
            weights *= np.divide(whole / present, total, out=np.zeros_like(total), where=total > 0)[units]
        weights *= scale[turn]
        if phase is not None:
            weights *= phase[turn]
        spread = np.repeat(weights, runs.length)
        np.putmask(spread, ~trained, 0.0)
        return spread

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
