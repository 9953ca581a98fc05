"""Tasks of an asynchronous trainer in the order of their launch: which a step takes, and how long they took.

verl's asynchronous replay buffer takes what is finished (verl 0.9.1, verl/trainer/ppo/v1/replay_buffer.py,
`ReplayBufferAsync.wait_for_sampleable` and `_select_prompt_uids`), so that slow tasks come late, or never where
`max_off_policy_strategy` is `drop`. A task that is taken in its turn is trained whatever time it takes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Sequence


class LaunchOrder:
    """Lets no task be overtaken by more than so many later ones.

    A task is a number here, and smaller ones were launched earlier.

    Attributes:
        most: tasks that may overtake one; infinite where nothing is waited for, and overtaking is only counted.
    """

    def __init__(self, most: float = math.inf) -> None:
        self.most = most
        self._overtaken: dict[int, int] = {}

    def choose(self, finished: Iterable[int], under_way: Collection[int], tasks: int) -> list[int] | None:
        """The first finished tasks in the order of their launch.

        The oldest task under way has been overtaken by all that have overtaken another one, so that it alone decides.

        Args:
            finished: tasks that can be taken.
            under_way: tasks that cannot be taken yet.
            tasks: how many are wanted.

        Returns:
            so many tasks; None where fewer are finished, or a task under way would be overtaken by too many.
        """
        chosen = sorted(finished)[:tasks]
        if len(chosen) < tasks:
            return None
        oldest = min(under_way, default=math.inf)
        overtaking = sum(each > oldest for each in chosen)
        return None if overtaking and self._overtaken.get(int(oldest), 0) + overtaking > self.most else chosen

    def take(self, chosen: Sequence[int], under_way: Iterable[int]) -> int:
        """Note that tasks are trained now.

        Returns:
            by how many later tasks the one of them was overtaken that was overtaken most.
        """
        most = max((self._overtaken.pop(each, 0) for each in chosen), default=0)
        for each in under_way:
            later = sum(other > each for other in chosen)
            if later:
                self._overtaken[each] = self._overtaken.get(each, 0) + later
        return most

    def drop(self, tasks: Iterable[int]) -> None:
        """Note that tasks will never be trained."""
        for each in tasks:
            self._overtaken.pop(each, None)


class Durations:
    """Wall seconds that tasks took from their launch to their end: those that were trained against all of them."""

    def __init__(self) -> None:
        self._trained, self._dropped, self._new = _Sum(), _Sum(), _Sum()

    def drop(self, seconds: Iterable[float]) -> None:
        """Note tasks that were dropped before they could be trained."""
        for each in seconds:
            self._dropped.add(each)
            self._new.add(each)

    def metrics(
        self, trained: Sequence[float], ended: Sequence[float] = (), under_way: Sequence[float] = ()
    ) -> dict[str, float]:
        """What is logged when tasks are taken, `hier/durations/…`.

        Args:
            trained: seconds of these tasks.
            ended: seconds of those that are left and have ended.
            under_way: seconds so far of those that have not. Each of them counts as the mean of all that have ended
                where it has not yet taken longer.
        """
        for each in trained:
            self._trained.add(each)
        found = {"hier/durations/trained_s": statistics.fmean(trained)} if trained else {}
        if left := [*ended, *under_way]:
            found["hier/durations/left_s"] = statistics.fmean(left)
        if self._new.count:
            found["hier/durations/dropped_s"] = self._new.total / self._new.count
            self._new = _Sum()
        count = self._trained.count + self._dropped.count + len(ended)
        total = self._trained.total + self._dropped.total + sum(ended)
        if self._trained.count and total > 0:
            launched = total + sum(max(each, total / count) for each in under_way)
            mean = launched / (count + len(under_way))
            found["hier/durations/ratio"] = self._trained.total / self._trained.count / mean
        return found


class _Sum:
    """A sum of numbers, and how many they are."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1
