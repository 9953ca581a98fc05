"""The turn table: what estimators see. Plain numpy columns, one entry a turn, and the paths of the episodes over them.

Shapes: T turns, E episodes, S steps (one per turn on each episode's path, so S = T when nothing branches), N tokens
(action tokens of all turns, in turn order). All indices are row numbers of these arrays; -1 means none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_hier.errors import CreditError, did_you_mean

Array = NDArray[Any]

TURN_COLUMNS: dict[str, str] = {
    "group": "int; task of the turn, 0..G-1 (verl's uid)",
    "episode": "int; episode that made the turn first (its owner), a row of `episodes`",
    "agent": "int; index into `names['agent']`: one holder of a role",
    "role": "int; index into `names['role']`",
    "policy": "int; index into `names['policy']`: the policy that generated the turn, see `hier.policies`",
    "level": "int; 0 is the highest level",
    "turn": "int; 0-based number of the turn on its path",
    "row": "int; number of the token sequence that trains it, of the first one where several do",
    "segment": "int; running number of the subgoal or plan on the path",
    "plan": "int; turn index of the plan or design above this turn, -1 without one",
    "parent": "int; turn before it on its path, -1 for a first turn",
    "depth": "int; number of turns above it (= turn, unless turns were sampled in pieces)",
    "leaves": "int; number of episodes whose path runs through it",
    "reward": "float; reward that the turn earned itself",
    "return": "float; mean return of the episodes through it",
    "done": "bool; the task ended with this turn",
    "truncated": "bool; the episode was cut after this turn",
    "valid": "bool; the action was understood",
    "complete": "bool; the turn ended by itself, and was not cut by its limit of tokens",
    "trained": "bool; the turn may be credited and trained (false for evaluation, frozen roles and withheld leaves)",
    "n_tokens": "int; action tokens of the turn",
    "n_prompt": "int; tokens that the prompt of the turn adds to its sequence, before the action",
    "anchor": "int; state before the action, equal numbers mean equal states, -1 when the environment gives none",
    "entropy": "float; mean entropy of its tokens (nats), from hier.rollout.entropy, else -log p of what was sampled",
}
EPISODE_COLUMNS: dict[str, str] = {
    "group": "int; task of the episode",
    "return": "float; sum of the rewards along its path",
    "success": "float; 1 when won, else 0, nan when the environment does not say",
    "leaf": "int; its last turn",
    "tree": "int; root tree of the episode, numbered over all groups",
    "trained": "bool; false for evaluation-only episodes and for withheld leaves",
    "withheld": "bool; a leaf that was evaluated and not kept: its return counts for the turns that it shares",
    "turns": "int; turns on its path",
    "task": "int; number of the task in its data set, the same in every step",
    "source": "int; index into `names['source']`: the data source or environment of the task",
}


class LazyColumns(MutableMapping[str, Array]):
    """Columns by name, each of which is made when it is asked for and kept from then on."""

    def __init__(self, makers: Mapping[str, Callable[[], Array]]) -> None:
        """
        Args:
            makers: what makes each column.
        """
        self._makers: dict[str, Callable[[], Array] | None] = dict(makers)
        self._made: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._made:
            make = self._makers[name]
            assert make is not None
            self._made[name], self._makers[name] = make(), None  # what makes a column may hold much memory
        return self._made[name]

    def __setitem__(self, name: str, column: Array) -> None:
        self._makers[name], self._made[name] = None, column

    def __delitem__(self, name: str) -> None:
        del self._makers[name]
        self._made.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def __contains__(self, name: object) -> bool:
        return name in self._makers


@dataclass
class TurnTable:
    """Columns of one batch. Estimators must not mutate it.

    Attributes:
        turns: column name to array of length T, see `TURN_COLUMNS`; workers and environments may add more.
        episodes: column name to array of length E, see `EPISODE_COLUMNS`.
        step_episode: (S,) int64, episode of each step; sorted.
        step_turn: (S,) int64, turn of each step; in time order inside an episode.
        tokens: optional token columns of length N: `turn` (int64, sorted) plus for instance `logprob`, `entropy`,
            `value`, and boolean masks such as `switch`, `subgoal`, `action`. Those of rollouts are made when they are
            asked for.
        names: what integer columns stand for: `agent`, `role`, and anything a plugin adds.
        anchors: text of each anchor number, for similarity grouping; may be empty.
        texts: words that workers have noted on turns, by name: (T,) str, or None for turns without. No estimator reads
            them; schedules and hooks do, such as a pool of questions.
    """

    turns: dict[str, Array]
    episodes: dict[str, Array]
    step_episode: NDArray[np.int64]
    step_turn: NDArray[np.int64]
    tokens: MutableMapping[str, Array] = field(default_factory=dict)
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    anchors: tuple[str, ...] = ()
    texts: Mapping[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, columns in (("turns", self.turns), ("episodes", self.episodes), ("tokens", self.tokens)):
            if isinstance(columns, LazyColumns):
                continue
            lengths = {len(column) for column in columns.values()}
            if len(lengths) > 1:
                raise CreditError(f"{what} columns have different lengths: {sorted(lengths)}.")
        if len(self.step_episode) != len(self.step_turn):
            raise CreditError("step_episode and step_turn must have one length.")

    def __len__(self) -> int:
        return len(next(iter(self.turns.values()), ()))

    def __getitem__(self, column: str) -> Array:
        """A column by its declared name: `reward`, `episodes.return`, `tokens.value`."""
        home, _, name = column.rpartition(".")
        columns: Mapping[str, Array] = {"": self.turns, "episodes": self.episodes, "tokens": self.tokens}[home]
        if name not in columns:
            known = [*self.columns()]
            near = did_you_mean(column, known) or did_you_mean(column, (each.rpartition(".")[2] for each in known))
            raise CreditError(f"the turn table has no column {column!r}{near}; it has {', '.join(known)}.")
        return columns[name]

    def __contains__(self, column: str) -> bool:
        home, _, name = column.rpartition(".")
        return name in {"": self.turns, "episodes": self.episodes, "tokens": self.tokens}.get(home, {})

    def columns(self) -> Iterator[str]:
        """Every column name in the form that `requires` uses."""
        yield from self.turns
        yield from (f"episodes.{name}" for name in self.episodes)
        yield from (f"tokens.{name}" for name in self.tokens)

    def code(self, vocabulary: str, name: str) -> int:
        """The number of `name` in an integer column, for instance `code("role", "planner")`; -1 when absent."""
        names = self.names.get(vocabulary, ())
        return names.index(name) if name in names else -1
