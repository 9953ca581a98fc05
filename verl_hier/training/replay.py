"""An off-policy critic of whole turns, with a store of the turns of earlier batches (arXiv 2402.19446).

Two heads Q value what was said and two heads V value where it was said. The smaller of two counts, and targets come
from a copy of the critic that follows it slowly. Q learns from turns of any age, because what it bootstraps from is V
of the state that followed. V learns what the present policy is worth, so it learns from the newest batch alone.

Shapes: T turns of a batch, S transitions: a turn on an episode's path and what followed it there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verl_hier.credit import Floats, Ints
from verl_hier.errors import RecipeError
from verl_hier.graph.atomic_write import atomic_write
from verl_hier.training.options import ReplayOptions
from verl_hier.training.probes import Contexts

HEADS = ("q1", "q2", "v1", "v2")
"""Heads of the critic: two Q and two V, which are turn columns of these names."""
BASELINE = "baseline"
"""The fifth head, where the recipe wants it: the token column `tokens.baseline`."""
STATE_FILE = "critic/hier_replay.json"
"""A file of a checkpoint: which batches its replay holds. verl removes it with the critic."""
TOKEN_BYTES = 4

Tokens = NDArray[np.int32]
Array = NDArray[Any]


@dataclass(frozen=True)
class Row:
    """What the critic reads: a context and what was said in it, which may be nothing."""

    context: Tokens
    text: Tokens


class TurnCritic(Protocol):
    """The critic with its copy. Values of a row are (H, n + 1): those of each head in front of each of the n tokens of
    its text, and behind the last one."""

    def values(self, rows: Sequence[Row], *, copy: bool) -> list[Array]:
        """Values of the critic, or of its copy."""

    def fit(self, rows: Sequence[Row], targets: Sequence[Array], *, last: bool) -> Mapping[str, float]:
        """One optimiser step towards targets, which are NaN where a row says nothing; then the copy follows.

        Args:
            rows: of the mini-batch.
            targets: (H, n + 1) of each row.
            last: whether it is the last step of the batch.
        """


@dataclass(frozen=True)
class Turns:
    """The turns of one batch.

    Attributes:
        tokens: context and text of each turn, one turn after the other.
        sizes: (T, 2) tokens of both.
        turn: (S,) the turn of a transition.
        following: (S,) the turn that followed, -1 where the episode ended.
        reward: (S,) what was earned on the way.
    """

    tokens: Tokens
    sizes: Ints
    turn: Ints
    following: Ints
    reward: Floats

    @classmethod
    def of(cls, contexts: Contexts) -> tuple[Turns, Ints]:
        """The turns that stand in rows of a step, and the place of each of them in its turn table.

        A turn of a role that does not learn stands in none: it is part of the world, and what it earns belongs to the
        turn before it.
        """
        table = contexts.table
        places = np.flatnonzero(contexts.there)
        number = np.full(len(table), -1)
        number[places] = np.arange(len(places))
        episode, turn = np.asarray(table.step_episode), number[np.asarray(table.step_turn)]
        kept = np.flatnonzero(turn >= 0)
        owner = np.searchsorted(kept, np.arange(len(turn)), side="right") - 1
        ours = (owner >= 0) & (episode[kept[np.maximum(owner, 0)]] == episode)
        reward = np.asarray(table["reward"], np.float64)[table.step_turn]
        earned = np.bincount(owner[ours], reward[ours], len(kept))
        same = np.append(episode[kept][1:] == episode[kept][:-1], False)
        following = np.where(same, np.roll(turn[kept], -1), -1)
        rows = [(contexts.before(place), contexts.action(place)) for place in places.tolist()]
        sizes = np.array([[len(part) for part in row] for row in rows], np.int64).reshape(-1, 2)
        tokens = np.concatenate([np.zeros(0, np.int32), *(part for row in rows for part in row)]).astype(np.int32)
        return cls(tokens, sizes, turn[kept], following, earned.astype(np.float64)), places

    def row(self, turn: int, *, spoken: bool = True) -> Row:
        """A turn as the critic reads it, with what was said or only up to there."""
        context, text = (int(size) for size in self.sizes[turn])
        start = self._starts[turn]
        return Row(self.tokens[start : start + context], self.tokens[start + context :][: text if spoken else 0])

    @cached_property
    def _starts(self) -> Ints:
        return np.append(0, np.cumsum(self.sizes.sum(axis=1)))

    @property
    def nbytes(self) -> int:
        """Size on disk and in memory."""
        return sum(getattr(self, part.name).nbytes for part in fields(self))


class Replay:
    """The transitions of the newest batches, in memory and in a folder with a file for each batch.

    Whole batches leave, the oldest first. A file stays as long as a checkpoint beside the folder names it.

    Attributes:
        batches: by number.
        newest: number of the newest batch, 0 before the first.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        """
        Args:
            folder: of the files; made when it is needed.
            limit: transitions to keep at most; the newest batch is kept whatever its size.
        """
        self._folder, self._limit = folder, limit
        self.batches: dict[int, Turns] = {}
        self.newest = 0

    def __len__(self) -> int:
        return sum(len(batch.turn) for batch in self.batches.values())

    @property
    def nbytes(self) -> int:
        """Size of what is kept."""
        return sum(batch.nbytes for batch in self.batches.values())

    def add(self, turns: Turns) -> None:
        """Keep a batch, and let the oldest go."""
        self.newest += 1
        self._folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(self._file(self.newest)) as beside, beside.open("wb") as file:
            np.savez(file, **{part.name: getattr(turns, part.name) for part in fields(turns)})
        self.batches[self.newest] = turns
        while len(self) > self._limit and len(self.batches) > 1:
            del self.batches[min(self.batches)]
        self._clear()

    def sample(self, count: int, generator: np.random.Generator) -> list[tuple[Turns, int, int]]:
        """Transitions, each as likely as any other: (batch, transition, batches since then)."""
        numbers = sorted(self.batches)
        ends = np.cumsum([len(self.batches[number].turn) for number in numbers])
        drawn = generator.integers(ends[-1], size=count)
        found = []
        for place in drawn.tolist():
            at = int(np.searchsorted(ends, place, side="right"))
            batch = self.batches[numbers[at]]
            found.append((batch, place - int(ends[at]) + len(batch.turn), self.newest - numbers[at]))
        return found

    def save(self, checkpoint: Path) -> None:
        """Note in a checkpoint which batches it needs."""
        note = checkpoint / STATE_FILE
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps({"newest": self.newest, "batches": sorted(self.batches)}), encoding="utf-8")

    def load(self, checkpoint: Path) -> None:
        """Return to the batches of a checkpoint.

        Raises:
            RecipeError: when a file of it is gone.
        """
        held = json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
        for number in held["batches"]:
            if not self._file(number).exists():
                raise RecipeError(
                    f"hier.replay: {self._file(number)} is gone, from which the checkpoint {checkpoint} learns; put it "
                    "back beside the checkpoints, or start anew with trainer.resume_mode=disable."
                )
        self.newest = int(held["newest"])
        self.batches = {number: self._read(number) for number in held["batches"]}

    def _read(self, number: int) -> Turns:
        with np.load(self._file(number), allow_pickle=False) as stored:
            return Turns(**{part.name: stored[part.name] for part in fields(Turns)})

    def _file(self, number: int) -> Path:
        return self._folder / f"batch_{number:06d}.npz"

    def _clear(self) -> None:
        """Remove the files that neither the replay nor a checkpoint beside it names."""
        needed = {*self.batches}
        for note in self._folder.parent.glob(f"global_step_*/{STATE_FILE}"):
            needed |= {*json.loads(note.read_text(encoding="utf-8"))["batches"]}
        for file in self._folder.glob("batch_*.npz"):
            number = int(file.stem.removeprefix("batch_"))
            if number not in needed and number < self.newest:
                file.unlink()


def q_targets(reward: ArrayLike, done: ArrayLike, next_values: ArrayLike, gamma: float = 0.95) -> Floats:
    """(..., S) what the heads Q learn: r + gamma (1 - done) V of the copy at the next state."""
    alive = 1.0 - np.asarray(done, np.float64)
    return np.asarray(reward, np.float64) + gamma * alive * np.asarray(next_values, np.float64)


def learn(
    critic: TurnCritic, replay: Replay, fresh: Turns, options: ReplayOptions, generator: np.random.Generator
) -> dict[str, float]:
    """Train the critic on the replay and on the newest batch.

    Args:
        critic: which learns.
        replay: has the newest batch already.
        fresh: the newest batch.
        options: of the recipe.
        generator: of the mini-batches.

    Returns:
        the metrics `hier/replay/…`, and means of those of `fit`.
    """
    ages, found = [], []
    for number in range(options.updates):
        old = replay.sample(options.batch, generator)
        now = generator.integers(len(fresh.sizes), size=options.batch).tolist()
        rows, targets = _mini_batch(critic, old, [fresh.row(turn) for turn in now], options)
        found.append(critic.fit(rows, targets, last=number == options.updates - 1))
        ages += [age for _, _, age in old]
    means = {name: float(np.mean([update[name] for update in found if name in update])) for name in found[-1]}
    return means | {
        "hier/replay/transitions": float(len(replay)),
        "hier/replay/batches": float(len(replay.batches)),
        "hier/replay/gib": replay.nbytes / 2**30,
        "hier/replay/staleness": float(np.mean(ages)),
    }


def _mini_batch(
    critic: TurnCritic, old: Sequence[tuple[Turns, int, int]], fresh: Sequence[Row], options: ReplayOptions
) -> tuple[list[Row], list[Array]]:
    """The rows of one optimiser step and what their heads learn: Q on old transitions, V and the baseline on fresh
    turns."""
    follow = [int(batch.following[place]) for batch, place, _ in old]
    states = [batch.row(turn, spoken=False) for (batch, _, _), turn in zip(old, follow, strict=True) if turn >= 0]
    said = critic.values([*states, *fresh], copy=True)
    after, own = iter(said[: len(states)]), said[len(states) :]
    rows = [batch.row(int(batch.turn[place])) for batch, place, _ in old]
    targets = [_nothing(row, options) for row in (*rows, *fresh)]
    for target, (batch, place, _), turn in zip(targets, old, follow, strict=False):
        value = next(after)[2:4, 0] if turn >= 0 else np.zeros(2)
        target[:2, -1] = q_targets(batch.reward[place], turn < 0, value, options.gamma)
    for target, values in zip(targets[len(rows) :], own, strict=True):
        target[2:4, 0] = values[:2, -1]
        if options.baseline:
            target[4, :-1] = values[:2, -1].min() - values[2:4, 0].min()
    return [*rows, *fresh], targets


def _nothing(row: Row, options: ReplayOptions) -> Array:
    return np.full((len(heads_of(options)), len(row.text) + 1), np.nan)


def heads_of(options: ReplayOptions) -> tuple[str, ...]:
    """Names of the critic's heads, in order."""
    return (*HEADS, BASELINE) if options.baseline else HEADS


def turn_values(critic: TurnCritic, fresh: Turns, places: Ints, table: Any, options: ReplayOptions) -> None:
    """Add what the critic says of the newest batch to its turn table: `q1`, `q2`, `v1`, `v2`, `tokens.baseline`.

    Args:
        critic: after it has learned.
        fresh: the newest batch.
        places: of its turns in the table.
        table: the turn table; turns that stand in no row have the value 0.
        options: of the recipe.
    """
    found = critic.values([fresh.row(turn) for turn in range(len(places))], copy=False)
    for head, name in enumerate(HEADS):
        column = np.zeros(len(table))
        column[places] = [values[head, -1 if name.startswith("q") else 0] for values in found]
        table.turns[name] = column
    if options.baseline:
        turn = np.asarray(table["tokens.turn"])
        baseline = np.zeros(len(turn))
        for place, values in zip(places.tolist(), found, strict=True):
            baseline[turn == place] = values[4, :-1]
        table.tokens[BASELINE] = baseline
