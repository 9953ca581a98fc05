"""How old the rows of samplers are under an asynchronous trainer: the product's samplers on a clock, in verl's queue.

Every turn takes a second, half of it to one and a half times, and turns that a sampler plays side by side take their
seconds side by side. The clock jumps from one end of a turn to the next, so that nothing is waited for.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from verl_hier.graph.rows import graph_rows
from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_options
from verl_hier.host.specs import SamplerSpec
from verl_hier.lab.durations import Queue, Rules
from verl_hier.lab.patience import AHEAD
from verl_hier.lab.sampled import Sampled, Stage, TablePolicy
from verl_hier.lab.worlds import WORLDS
from verl_hier.rollout import Generation, Sampling
from verl_hier.training.schedule import Phase

UNIT = 1000
"""Parts of a second in which the clock is read."""
WORLD = "horizon"
TASKS = 100
"""Tasks that are played of each sampler, again and again in another order."""
FIRST = 10
"""Steps that are not counted: the queue is not yet as it will be."""


class _Jumping(selectors.DefaultSelector):
    """Waits no time at all, and says how much would have gone by."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """See `selectors.BaseSelector.select`."""
        self.now += max(0.0, timeout or 0.0)
        return super().select(0)


class _Clock(asyncio.SelectorEventLoop):
    """An event loop whose time jumps."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """See `asyncio.AbstractEventLoop.time`."""
        return self._jumping.now


class _TimedPolicy(TablePolicy):
    """A table whose answers take their time, and have it in the place of the version of the weights."""

    async def generate(self, prompt: list[int], sampling: Sampling, conversation: str) -> Generation:
        """See `Policy.generate`."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(random.Random(f"{sampling.seed} seconds").uniform(0.5, 1.5))
        found = await super().generate(prompt, sampling, conversation)
        return replace(found, version=(round(began * UNIT), round(loop.time() * UNIT)))


@dataclass(frozen=True)
class TimedTask:
    """A task that was played on the clock.

    Attributes:
        seconds: from its launch to its end.
        rows: (R, 2) seconds at which the first turn of each row began, and its last one ended.
        turns: that were sampled.
    """

    seconds: float
    rows: NDArray[np.float64]
    turns: int


def play_timed(sampler: str, n: int, tasks: int = TASKS) -> list[TimedTask]:
    """Play tasks with a sampler and a policy that acts by chance. Rows are those of `shared_prefix: repeat`."""
    spec, world = PluginHost.load({"builtin": True}).spec("sampler", sampler), WORLDS[WORLD]
    policy = _TimedPolicy(world.policy(np.zeros(world.legal.shape)))
    assert isinstance(spec, SamplerSpec)
    stage = Stage(world, policy, Sampled(spec, build_options(spec, {}), n), seed=0)
    start, phase = int(world.start.argmax()), Phase("all")
    found = []
    for number in range(tasks):
        with asyncio.Runner(loop_factory=_Clock) as runner:
            graph = runner.run(stage.play(number, start, phase))
        times = np.array([node.policy_version for node in graph.nodes]) / UNIT
        rows = [times[row.nodes] for row in graph_rows(graph, phase.trains, "repeat")]
        spans = np.array([(row[:, 0].min(), row[:, 1].max()) for row in rows])
        found.append(TimedTask(float(times.max()), spans, len(times)))
    return found


@dataclass(frozen=True)
class Staleness:
    """What the rows of a run are like, in the words of verl's metrics `training/off_policy/…`.

    Attributes:
        task_s: seconds of a trained task.
        spans: weights that sampled a row, in the mean and at most (`trajectory_spans`).
        age: updates between the end of a row and its training (`trajectory_staleness`).
        oldest: between its beginning and its training (`trajectory_staleness_worst`).
        turns: that were sampled for a task.
        step_s: seconds of a step.
    """

    task_s: float
    spans: tuple[float, int]
    age: float
    oldest: float
    turns: float
    step_s: float


def measure(tasks: list[TimedTask], rules: Rules, steps: int) -> Staleness:
    """Train such tasks by the rules of a trainer."""
    order = np.random.default_rng(0).permutation(len(tasks))
    played = Queue(rules, cycle(tasks[place].seconds for place in order), np.random.default_rng(0)).play(steps)
    trained = [task for batch in played.trained for task in batch]
    counted = [(task, step) for task, step in zip(trained, played.steps, strict=True) if step > FIRST]
    found = []
    for task, step in counted:
        launched = played.launched[task]
        for times in tasks[order[task % len(order)]].rows:
            first, last = (bisect_right(played.updated, launched + time) for time in times)
            found.append((last - first + 1, step - 1 - last, step - 1 - first))
    spans, age, oldest = np.array(found).T
    of = [tasks[order[task % len(order)]] for task, _ in counted]
    return Staleness(
        task_s=float(np.mean([task.seconds for task in of])),
        spans=(float(spans.mean()), int(spans.max())),
        age=float(age.mean()),
        oldest=float(oldest.mean()),
        turns=float(np.mean([task.turns for task in of])),
        step_s=played.seconds / steps,
    )


ARMS = {
    "`tree_grpo`, 6 leaves": ("tree_grpo", 6),
    "6 independent episodes": ("independent", 6),
    "4 independent episodes": ("independent", 4),
}
TRAINS = {"4 s": 4.0, "40 s": 40.0}
"""How long a step trains: much shorter than a task takes, or about as long."""
HEAD = (
    *("a step trains", "ahead", "episodes of a task", "turns", "seconds of a task", "weights in a row", "age"),
    *("oldest turn", "seconds a step"),
)


def compared(steps: int) -> Iterator[tuple[str, ...]]:
    """Rows under `HEAD`, under verl's `separate_async` with four batches a step."""
    played = {arm: play_timed(sampler, n) for arm, (sampler, n) in ARMS.items()}
    for train, train_s in TRAINS.items():
        for ahead in AHEAD:
            for arm, tasks in played.items():
                found = measure(tasks, Rules(colocated=False, batches=4, ahead=ahead, train_s=train_s), steps)
                yield (
                    *(train, f"{ahead:g}", arm, f"{found.turns:.0f}", f"{found.task_s:.1f}"),
                    *(f"{found.spans[0]:.2f}, at most {found.spans[1]}", f"{found.age:.2f}", f"{found.oldest:.2f}"),
                    f"{found.step_s:.1f}",
                )
