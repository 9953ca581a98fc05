"""Disjoint splits of generated tasks: a hash of a task's content decides which split it belongs to.

Therefore train, val and test share no task, whatever their sizes and seeds.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from verl_hier.errors import RecipeError

SPLITS = ("train", "val", "test")
MISSES = 1000
"""Consecutive draws without a new task after which a generator counts as exhausted."""


def pool(options: Any, split: str) -> float:
    """The most tasks of a split, for environments with the options `pool` and `validation`; infinite where it is 0."""
    return float(options.pool if split == "train" else options.validation) or math.inf


def hash_number(text: str, size: int = 8) -> int:
    """A number of `size` bytes that depends on the text alone, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=size).digest(), "big")


def split_of(fingerprint: str) -> str:
    """The split of a task: three fifths are for training, one fifth each for `val` and `test`."""
    return SPLITS[max(0, hash_number(fingerprint) % 5 - 2)]


def held_out(text: str) -> str:
    """The split of a task of a file that serves all splits: a tenth each for `val` and `test`."""
    return {0: "val", 1: "test"}.get(hash_number(text, 4) % 10, "train")


class Balance:
    """Keeps one answer from being right too often: a policy that always gives it would be rewarded for that.

    An answer may have the share that it has if all answers are equally frequent, `more` on top, and one task more.
    """

    def __init__(self, more: float) -> None:
        self._more = more
        self._counts: Counter[str] = Counter()
        self._tasks = 0
        self._latest: tuple[Collection[str], int] | None = None

    def admits(self, answers: Collection[str], there: int) -> bool:
        """Whether one more task may have these answers.

        Args:
            answers: the different right answers of a task that may be added next.
            there: how many tasks there are so far, see `draw_tasks`; tells whether the task before was added.
        """
        if self._latest is not None and there > self._latest[1]:
            self._counts.update(self._latest[0])
            self._tasks += 1
        self._latest = None
        different = len(self._counts) + sum(answer not in self._counts for answer in answers)
        most = (1 / max(different, 1) + self._more) * (self._tasks + 1)
        if any(self._counts[answer] > most for answer in answers):
            return False
        self._latest = (answers, there)
        return True


def draw_tasks(
    make: Callable[[int, int], tuple[str, dict[str, Any]] | None], split: str, size: int, name: str
) -> list[dict[str, Any]]:
    """The first `size` different tasks of a split.

    Args:
        make: `make(draw, number)` returns the fingerprint and the task of a draw (0, 1, …), where `number` tasks have
            been found so far, or None when the draw gives no task. The task's `id` is added here.
        split: one of `SPLITS`.
        size: number of tasks.
        name: the environment's name, for errors.

    Raises:
        RecipeError: for an unknown split, or when the generator has too few different tasks.
    """
    if split not in SPLITS:
        raise RecipeError(f"hier.environment: {name} has no split {split!r}; it has {', '.join(SPLITS)}.")
    found: list[dict[str, Any]] = []
    seen: set[str] = set()
    misses = 0
    for draw in itertools.count():
        if len(found) == size:
            return found
        if misses == MISSES:
            break
        made = make(draw, len(found))
        if made is None or made[0] in seen or split_of(made[0]) != split:
            misses += 1
            continue
        misses = 0
        seen.add(made[0])
        found.append({**made[1], "id": f"{split}-{len(found):05d}"})
    option = "pool" if split == "train" else "validation"
    raise RecipeError(
        f"hier.environment.{option}: {name} found only {len(found)} different tasks for the split {split!r}, {size} "
        "are asked for; lower it, or raise the difficulty or the number of families."
    )
