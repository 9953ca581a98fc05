"""What verl's asynchronous trainers train when durations go with outcomes, and how far their gradient is off.

Two things are played: the queue, by the rules of verl 0.9.1 (verl/trainer/ppo/v1/replay_buffer.py,
`ReplayBufferAsync`; trainer_base.py, `PPOTrainer.step`; trainer_colocate_async.py and trainer_separate_async.py), which
a test compares with those classes; and a world in which the policy gives up at once, or persists, which takes long and
is what succeeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from verl_hier.training.launches import LaunchOrder

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Rules:
    """By which rules an asynchronous trainer takes its tasks; the words of verl's options are behind them.

    Attributes:
        colocated: whether episodes pause while the trainer trains, as under `colocate_async`.
        tasks: of a step (`data.train_batch_size`).
        batches: into which a step divides them (`parameter_sync_step`, which `separate_async` alone has).
        ahead: batches that are launched before the first step (`num_warmup_batches`).
        threshold: steps that a task may span (`max_off_policy_threshold`).
        strategy: what happens to a task that spans more (`max_off_policy_strategy`).
        late_steps: `hier.launch_order.late_steps`; None without an order.
        train_s: seconds in which a step trains.
        poll_s: seconds between two looks at the queue.
    """

    colocated: bool
    tasks: int = 32
    batches: int = 1
    ahead: float = 1.0
    threshold: int | None = 8
    strategy: Literal["drop", "wait"] = "drop"
    late_steps: int | None = None
    train_s: float = 1.0
    poll_s: float = 0.0625


@dataclass
class Played:
    """What a queue did: tasks are numbered as they were launched.

    Attributes:
        trained: of each batch, its tasks in order.
        steps: (T,) step of each trained task.
        spans: (T,) steps from its launch to its training, both counted.
        dropped: tasks that verl dropped.
        launched: seconds of generation before the launch of each task that was launched.
        updated: seconds of generation before each update of the weights.
        seconds: at the end.
    """

    trained: list[list[int]]
    steps: list[int]
    spans: list[int]
    dropped: list[int]
    launched: list[float]
    updated: list[float]
    seconds: float


class Queue:
    """The tasks of a run, by the rules of a trainer."""

    def __init__(self, rules: Rules, durations: Iterator[float], ties: np.random.Generator | None = None) -> None:
        """
        Args:
            durations: seconds of generation of each task, in the order of their launch.
            ties: verl takes tasks that were launched in the same step in the order of a set; None: by their number.
        """
        self._rules, self._durations, self._ties = rules, durations, ties
        most = math.inf if rules.late_steps is None else rules.late_steps * rules.tasks
        self._order = LaunchOrder(most)
        self._launched: dict[int, int] = {}  # outstanding task to the step of its launch
        self._ends: dict[int, float] = {}  # outstanding task to the end of its generation
        self._launches: list[float] = []
        self._now, self._generated = 0.0, 0.0

    def play(self, steps: int) -> Played:
        """Train so many steps."""
        rules, found = self._rules, Played([], [], [], [], self._launches, [], 0.0)
        self._launch(math.floor(rules.ahead * rules.tasks), 1)
        for step in range(1, steps + 1):
            self._launch(rules.tasks, step)
            for _ in range(rules.batches):
                chosen = self._take(step, rules.tasks // rules.batches, found.dropped)
                found.trained.append(chosen)
                found.steps += [step] * len(chosen)
                found.spans += [step - self._launched[task] + 1 for task in chosen]
                self._forget(chosen)
                self._now += rules.train_s / rules.batches
                self._generated += 0.0 if rules.colocated else rules.train_s / rules.batches
            found.updated.append(self._generated)
        found.seconds = self._now
        return found

    def _launch(self, tasks: int, step: int) -> None:
        for _ in range(tasks):
            task = len(self._launches)
            self._launches.append(self._generated)
            self._launched[task] = step
            self._ends[task] = self._generated + next(self._durations)

    def _forget(self, tasks: list[int]) -> None:
        for task in tasks:
            del self._launched[task], self._ends[task]

    def _take(self, step: int, tasks: int, dropped: list[int]) -> list[int]:
        """Wait until so many tasks can be taken, and drop those that are too old meanwhile."""
        rules = self._rules
        while True:
            finished = {task for task, end in self._ends.items() if end <= self._generated}
            old = [task for task, since in self._launched.items() if self._spans_more(step, since)]
            stale = [task for task in old if task in finished]
            if stale and rules.strategy == "drop":
                dropped += stale
                self._order.drop(stale)
                self._forget(stale)
                self._launch(len(stale), step)
                continue
            under_way = self._ends.keys() - finished
            if not (rules.strategy == "wait" and self._at_the_limit(step, under_way)):
                chosen = self._choose(finished, under_way, tasks)
                if chosen is not None:
                    self._order.take(chosen, under_way)
                    return chosen
            self._wait(min(self._ends[task] for task in under_way))

    def _spans_more(self, step: int, since: int) -> bool:
        return self._rules.threshold is not None and step - since + 1 > self._rules.threshold

    def _at_the_limit(self, step: int, under_way: set[int]) -> bool:
        return any(self._spans_more(step + 1, self._launched[task]) for task in under_way)

    def _choose(self, finished: set[int], under_way: set[int], tasks: int) -> list[int] | None:
        if self._rules.late_steps is not None or len(finished) < tasks:
            return self._order.choose(finished, under_way, tasks)
        drawn = np.array(sorted(finished))
        if self._ties is not None:
            self._ties.shuffle(drawn)
        return sorted(drawn.tolist(), key=self._launched.__getitem__)[:tasks]

    def _wait(self, end: float) -> None:
        """Look again when the next task has ended."""
        looks = max(1, math.ceil((end - self._generated) / self._rules.poll_s))
        self._now += looks * self._rules.poll_s
        self._generated += looks * self._rules.poll_s
