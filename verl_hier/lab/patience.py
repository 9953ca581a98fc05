"""A world in which to persist takes long and succeeds, under the queues of `verl_hier.lab.durations`.

The policy is one number, the probability to persist in an episode. A task is a group of episodes, which ends with the
last of them, and its gradient is that of a group-relative advantage, which is unbiased where no task is selected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from verl_hier.lab.durations import Played, Queue, Rules

Array = NDArray[np.float64]
BLOCK = 4096
"""Tasks that are drawn at once."""
EARLY = 10
"""First steps of a run, which are looked at by themselves."""


@dataclass(frozen=True)
class Patience:
    """The world.

    Attributes:
        persist: probability that an episode persists.
        episodes: of a task.
        chance: to succeed, of an episode that gives up, and of one that persists.
        seconds: mean of either; each takes half of it to one and a half times.
    """

    persist: float = 0.02
    episodes: int = 4
    chance: tuple[float, float] = (0.1, 0.9)
    seconds: tuple[float, float] = (1.0, 40.0)

    @property
    def value(self) -> float:
        """The mean return."""
        low, high = self.chance
        return low + self.persist * (high - low)

    @property
    def gradient(self) -> float:
        """Its derivative by the logit of persisting."""
        low, high = self.chance
        return self.persist * (1 - self.persist) * (high - low)

    @property
    def slow(self) -> float:
        """Share of the tasks in which an episode persists."""
        return 1 - (1 - self.persist) ** self.episodes


class Tasks:
    """Tasks of the world as they are launched, and what each of them says.

    Attributes:
        slow: whether an episode persists, of each task so far.
        value: mean return of its episodes.
        gradient: what its episodes say about the derivative.
    """

    def __init__(self, world: Patience, seed: int) -> None:
        self._world, self._drawn = world, np.random.default_rng(seed)
        self.slow, self.value, self.gradient, self.seconds = (np.zeros(0) for _ in range(4))

    def durations(self) -> Iterator[float]:
        """Seconds of one task after the other."""
        task = 0
        while True:
            if task == len(self.seconds):
                self._more()
            yield float(self.seconds[task])
            task += 1

    def _more(self) -> None:
        world, shape = self._world, (BLOCK, self._world.episodes)
        persists = self._drawn.random(shape) < world.persist
        returns = (self._drawn.random(shape) < np.where(persists, world.chance[1], world.chance[0])).astype(float)
        seconds = np.where(persists, world.seconds[1], world.seconds[0]) * self._drawn.uniform(0.5, 1.5, shape)
        others = (returns.sum(axis=1, keepdims=True) - returns) / (world.episodes - 1)
        gradient = ((returns - others) * (persists - world.persist)).mean(axis=1)
        for name, values in {
            "slow": persists.any(axis=1),
            "value": returns.mean(axis=1),
            "gradient": gradient,
            "seconds": seconds.max(axis=1),
        }.items():
            setattr(self, name, np.concatenate([getattr(self, name), values]))


@dataclass(frozen=True)
class Selected:
    """What a queue has trained against what was launched.

    Attributes:
        slow: share of slow tasks in the first steps, and later; the world has `Patience.slow`.
        value: mean return of what was trained, minus the true one, in units of it; with half of a 95 % interval.
        gradient: the same of the gradient.
        step_s: seconds of a step.
        later: mean and most steps from the launch of a task to its training.
        dropped: share of the launched tasks that were dropped.
    """

    slow: tuple[float, float]
    value: tuple[float, float]
    gradient: tuple[float, float]
    step_s: float
    later: tuple[float, int]
    dropped: float


@dataclass(frozen=True)
class Rule:
    """A way to take tasks.

    Attributes:
        name: as it is shown.
        options: of `Rules`.
        weights: of the trained tasks: `shares` is the inverse of the share of tasks about as long that are trained,
            `seconds` their duration.
    """

    name: str
    options: Mapping[str, Any]
    weights: Literal["equal", "shares", "seconds"] = "equal"


RULES = (
    Rule("verl, `drop` at 8", {}),
    Rule("the same, weights by shares", {}, "shares"),
    Rule("verl, `wait` at 8", {"strategy": "wait"}),
    Rule("verl, no threshold", {"threshold": None}),
    Rule("the same, weights by seconds", {"threshold": None}, "seconds"),
    Rule("`launch_order`", {"threshold": None, "late_steps": 0}),
    Rule("`late_steps: 4`", {"threshold": None, "late_steps": 4}),
    Rule("`late_steps: 16`", {"threshold": None, "late_steps": 16}),
)
TRAINERS = {
    "colocate_async": Rules(colocated=True),
    "separate_async": Rules(colocated=False, batches=4),
}
"""verl's asynchronous trainers with the batches a step that verl sets."""
AHEAD = (1.0, 4.0)
"""Batches that are sampled ahead: verl's default, and more."""


def select(world: Patience, rules: Rules, runs: int, steps: int, weighted: str = "equal") -> Selected:
    """Play several runs, and compare what they train, with the weights of a `Rule`, with what the world is."""
    played: list[tuple[Played, Tasks]] = []
    for seed in range(runs):
        tasks = Tasks(world, seed)
        played.append((Queue(rules, tasks.durations(), np.random.default_rng(seed)).play(steps), tasks))

    def of(name: str, dropped: bool = False) -> Array:
        """A property of all trained tasks, or of all dropped ones."""
        chosen = [found.dropped if dropped else list(chain(*found.trained)) for found, _ in played]
        return np.concatenate(
            [getattr(tasks, name)[np.array(ids, int)] for ids, (_, tasks) in zip(chosen, played, strict=True)]
        )

    weights = {
        "equal": lambda: np.ones(len(of("seconds"))),
        "shares": lambda: _inverse_shares(of("seconds"), of("seconds", dropped=True)),
        "seconds": lambda: of("seconds"),
    }[weighted]()

    def off(name: str, true: float) -> tuple[float, float]:
        values = of(name)
        mean = float(np.average(values, weights=weights))
        spread = float(np.sqrt((weights**2 * (values - mean) ** 2).sum()) / weights.sum())
        return mean / true - 1, 1.96 * spread / abs(true)

    early = np.concatenate([np.array(found.steps) <= EARLY for found, _ in played])
    later = np.concatenate([np.array(found.spans) - 1 for found, _ in played])
    shares = [float(np.average(of("slow")[part], weights=weights[part])) for part in (early, ~early)]
    return Selected(
        slow=(shares[0], shares[1]),
        value=off("value", world.value),
        gradient=off("gradient", world.gradient),
        step_s=sum(found.seconds for found, _ in played) / (runs * steps),
        later=(float(later.mean()), int(later.max())),
        dropped=sum(len(found.dropped) for found, _ in played) / sum(len(found.launched) for found, _ in played),
    )


def _inverse_shares(trained: Array, dropped: Array) -> Array:
    """(T,) weights: of all tasks that took about as long, to a factor of two, over those of them that were trained."""
    bins = np.floor(np.log2(np.concatenate([trained, dropped]))).astype(int)
    bins -= bins.min()
    kept = bins[: len(trained)]
    weights: Array = np.bincount(bins)[kept] / np.bincount(kept)[kept]
    return weights


def compared(world: Patience, steps: int, runs: int = 4) -> Iterator[tuple[str, ...]]:
    """Rows under `HEAD`: both trainers by all rules, and one that samples nothing ahead for comparison."""
    for trainer, base in TRAINERS.items():
        for ahead in AHEAD:
            for rule in RULES:
                rules = replace(base, ahead=ahead, **rule.options)
                found = select(world, rules, runs, steps, rule.weights)
                yield trainer, f"{ahead:g}", rule.name, *_shown(found)
    waiting = replace(TRAINERS["colocate_async"], ahead=0, threshold=None, late_steps=0)
    yield "sync", "0", "waits for its own tasks", *_shown(select(world, waiting, runs, steps))


HEAD = (
    *("trainer", "ahead", "rule", f"slow, first {EARLY} steps", "slow, later"),
    *("return off by", "gradient off by", "seconds a step", "steps later", "dropped"),
)


def _shown(found: Selected) -> Iterator[str]:
    yield from (f"{100 * share:.1f} %" for share in found.slow)
    yield from (f"{100 * off:+.0f} ± {100 * half:.0f} %" for off, half in (found.value, found.gradient))
    yield f"{found.step_s:.1f}"
    yield f"{found.later[0]:.1f}, at most {found.later[1]}"
    yield f"{100 * found.dropped:.1f} %"
