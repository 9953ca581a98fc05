"""GDRO: tasks weigh, and are rolled out, by how hard they are now (arXiv 2601.19280), docs/methods/gdro.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from verl_hier.credit import Floats, Ints
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import ZeroToOne
from verl_hier.host.specs import ScheduleSpec
from verl_hier.training.schedule import Phase, Schedule

EXTREME = "excl"
"""Class of the tasks that are always or never solved, where those are set apart."""


@dataclass(frozen=True)
class GDROOptions:
    """Options of `gdro`. Defaults are the released code's; its scripts have rate 0.65 and exploration 0.01."""

    rate: float = 0.1
    """How fast weights follow the scores (η)."""
    exploration: ZeroToOne = 0.15
    """Share of the weight that all classes have alike (γ)."""
    max_weight: float = 10.0
    """Largest weight of a class, before and after the weights are scaled to mean 1."""
    bins: int = 10
    """Classes of equal width over the rate at which a task is solved."""
    edges: tuple[float, ...] = ()
    """Bounds between the classes, instead of `bins`."""
    history: int = 0
    """Latest steps of a task that count in its rate; 0: all."""
    hysteresis: float = 0.0
    """How far beyond a bound the rate has to be before a task changes its class."""
    exclude_extremes: bool = False
    """Put the tasks whose rate is 0 or 1 into a class of their own."""
    score: Literal["sum", "mean", "ema"] = "sum"
    """Score of a class from its mean losses in the steps so far."""
    ema: ZeroToOne = 0.1
    """Weight of the newest step in `ema`."""
    by_share: bool = False
    """Divide the mean loss of a class by its share of the step's rows."""
    standardise: bool = False
    """Standardise the scores over all classes, and cut them at `z_cap`."""
    z_floor: float = 1e-3
    """Least standard deviation."""
    z_cap: float = 3.0
    """Largest standardised score."""
    focus: dict[str, float] = field(default_factory=dict)
    """Factor of the weight of a class, by its number."""
    focus_after: int = 0
    """Steps before the factors begin to apply."""
    focus_ramp: int = 0
    """Steps over which they grow from 1."""
    arms: tuple[int, ...] = ()
    """Numbers of episodes that a class may have; empty: all tasks have `actor_rollout_ref.rollout.n`."""
    mean_episodes: float | None = None
    """Episodes of a task on average, where there are arms; omitted: `actor_rollout_ref.rollout.n`."""
    dual_rate: float = 0.05
    """How fast the price of an episode follows the number of episodes."""

    def __post_init__(self) -> None:
        if list(self.edges) != sorted(set(self.edges)) or not all(0 < edge < 1 for edge in self.edges):
            raise ValueError(f"edges must rise between 0 and 1, got {list(self.edges)}")
        if self.bins < 2 or not 0 <= self.hysteresis < 0.5:
            raise ValueError("bins must be at least 2 and hysteresis within [0, 0.5)")
        if min(self.arms, default=1) < 1 or len(set(self.arms)) < len(self.arms):
            raise ValueError(f"arms must be different numbers of episodes, each at least 1, got {list(self.arms)}")
        if not all(number.isdecimal() for number in self.focus):
            raise ValueError("focus must map numbers of classes to factors")


@dataclass
class Statistics:
    """What GDRO remembers between steps; JSON-able.

    Attributes:
        seen, solved: number of steps of each task, and of those in which an episode solved it.
        recent: the latest outcomes of each task, where only these count.
        last: class number that each task had last.
        sums, counts, averages: of the mean losses of each class.
        updates: number of steps.
        arm_scores: score of each arm of each class.
        price: of an episode beyond the mean number (μ).
    """

    seen: dict[str, int] = field(default_factory=dict)
    solved: dict[str, int] = field(default_factory=dict)
    recent: dict[str, list[float]] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    averages: dict[str, float] = field(default_factory=dict)
    updates: int = 0
    arm_scores: dict[str, list[float]] = field(default_factory=dict)
    price: float = 0.0


class GroupWeights:
    """The method itself: classes of tasks, their weights, their numbers of episodes.

    Attributes:
        options: see there.
        state: what it remembers.
        mean_episodes: of a task, where there are arms (n̄).
    """

    def __init__(self, options: GDROOptions) -> None:
        self.options = options
        self.state = Statistics()
        self.mean_episodes = options.mean_episodes or 0.0

    def rate(self, task: str) -> float:
        """Share of the steps in which the task was solved; 0 before the first."""
        seen = self.state.seen.get(task, 0)
        return self.state.solved.get(task, 0) / seen if seen else 0.0

    def classify(self, tasks: Sequence[str]) -> list[str]:
        """The present class of each task: the number of its bin, or `excl`. Remembers it for the hysteresis."""
        return [self._class_of(task) for task in tasks]

    def _class_of(self, task: str) -> str:
        recent = self.state.recent.get(task)
        rate = sum(recent) / len(recent) if recent else self.rate(task)
        if self.options.exclude_extremes and not 0 < rate < 1:
            return EXTREME
        edges = self.options.edges
        bins = len(edges) + 1 if edges else self.options.bins
        number = sum(edge <= rate for edge in edges) if edges else min(bins - 1, math.floor(rate * bins))
        if self.options.hysteresis:
            number = self._with_inertia(task, rate, number, bins)
        return str(number)

    def _with_inertia(self, task: str, rate: float, number: int, bins: int) -> int:
        """The class that a task keeps until its rate is clearly beyond a bound."""
        last, edges = self.state.last.get(task, number), self.options.edges
        if number != last:
            # As released: without edges it is the lower bound of the new class, also on the way down.
            bound = edges[min(number, last)] if edges else number / bins
            margin = self.options.hysteresis
            if (number > last and rate < bound + margin) or (number < last and rate > bound - margin):
                number = last
        self.state.last[task] = number
        return number

    def weights(self, classes: Sequence[str]) -> list[float]:
        """The weight of each class among those that are named."""
        options, names = self.options, list(dict.fromkeys(classes))
        raw = np.exp(options.rate * np.array([self._score(name) for name in names]))
        total = raw.sum()
        share = raw / total if total > 0 else np.full(len(names), 1 / len(names))
        mixed = (1 - options.exploration) * share + options.exploration / len(names)
        capped = {
            name: min(float(weight), options.max_weight) * self._focus(name)
            for name, weight in zip(names, mixed, strict=True)
        }
        return [capped[name] for name in classes]

    def _score(self, name: str) -> float:
        options, state = self.options, self.state
        score = state.sums.get(name, 0.0)
        if options.score == "ema":
            score = state.averages.get(name, 0.0)
        elif options.score == "mean":
            score /= max(1, state.counts.get(name, 0))
        if not options.standardise:
            return score
        # As released: the statistics are of means even where the score is a sum.
        means = [state.sums[other] / max(1, state.counts[other]) for other in state.sums]
        every = list(state.averages.values()) if options.score == "ema" and state.averages else means or [0.0]
        z = (score - float(np.mean(every))) / max(options.z_floor, float(np.std(every)))
        return float(np.clip(z, -options.z_cap, options.z_cap))

    def _focus(self, name: str) -> float:
        options, steps = self.options, self.state.updates - self.options.focus_after
        if name not in options.focus or steps <= 0:
            return 1.0
        grown = min(1.0, steps / options.focus_ramp) if options.focus_ramp else 1.0
        return max(0.0, 1.0 + grown * (options.focus[name] - 1.0))

    def arm_chances(self, classes: Sequence[str]) -> dict[str, list[float]]:
        """The chance of each arm of each class."""
        chances = {}
        for name in dict.fromkeys(classes):
            raw = np.exp(self.options.rate * np.array(self.state.arm_scores.get(name, [0.0] * len(self.arms))))
            exploration = self.options.exploration
            chances[name] = list((1 - exploration) * raw / raw.sum() + exploration / len(raw))
        return chances

    @property
    def arms(self) -> list[int]:
        """Numbers of episodes, rising."""
        return sorted(self.options.arms)

    def choose(self, classes: Sequence[str], budget: int) -> dict[str, int]:
        """An arm for each class such that the episodes of all tasks come closest to `budget`; of equally close
        choices the one with the largest product of chances."""
        chances = self.arm_chances(classes)
        best: dict[int, tuple[float, dict[str, int]]] = {0: (0.0, {})}
        for name, chance in chances.items():
            count = list(classes).count(name)
            grown: dict[int, tuple[float, dict[str, int]]] = {}
            for spent, (cost, chosen) in best.items():
                for arm, share in zip(self.arms, chance, strict=True):
                    total, dear = spent + arm * count, cost - math.log(max(share, 1e-12))
                    if total not in grown or dear < grown[total][0]:
                        grown[total] = (dear, {**chosen, name: arm})
            best = grown
        spent = min(best, key=lambda total: (abs(total - budget), best[total][0]))
        return best[spent][1]

    def learn(self, classes: Sequence[str], losses: Sequence[float], arms: Mapping[str, int] | None = None) -> None:
        """Take the losses of a step into account.

        Args:
            classes: class of each row.
            losses: mean clipped loss of each row's tokens, without the weight of its class.
            arms: episodes that the tasks of each class had, where there are arms.
        """
        state = self.state
        state.updates += 1
        for name in dict.fromkeys(classes):
            rows = [loss for other, loss in zip(classes, losses, strict=True) if other == name]
            mean = float(np.mean(rows))
            if arms is not None and name in arms:
                scores = state.arm_scores.setdefault(name, [0.0] * len(self.arms))
                scores[self.arms.index(arms[name])] += mean - state.price * (arms[name] - self.mean_episodes)
            if self.options.by_share:
                mean /= len(rows) / len(classes)
            state.sums[name] = state.sums.get(name, 0.0) + mean
            state.counts[name] = state.counts.get(name, 0) + 1
            if self.options.score == "ema":
                before = state.averages.get(name, mean)
                state.averages[name] = (1 - self.options.ema) * before + self.options.ema * mean

    def raise_price(self, mean: float) -> None:
        """Move the price of an episode by the mean number of episodes that a task had."""
        self.state.price += self.options.dual_rate * (mean - self.mean_episodes)

    def note(self, tasks: Sequence[str], solved: Sequence[bool]) -> None:
        """Whether an episode of each task solved it."""
        state = self.state
        for task, won in zip(tasks, solved, strict=True):
            state.seen[task] = state.seen.get(task, 0) + 1
            state.solved[task] = state.solved.get(task, 0) + bool(won)
            if self.options.history:
                state.recent[task] = [*state.recent.get(task, []), float(won)][-self.options.history :]


class GDRO(Schedule):
    """All learn in every step; tasks weigh by their class, and have as many episodes as it should have."""

    reads_losses = True

    def __init__(self, options: GDROOptions) -> None:
        self._groups = GroupWeights(options)
        self._classes: dict[int, str] = {}
        self._weights: Floats = np.zeros(0)
        self._given: dict[str, int] = {}
        self._given_at = 0

    def phase(self, step: int) -> Phase:
        """See `Schedule.phase`."""
        return Phase("joint")

    def episodes(self, step: int, tasks: Sequence[int], n: int) -> list[int] | None:
        """See `Schedule.episodes`."""
        groups = self._groups
        if not groups.options.arms:
            return None
        groups.mean_episodes = groups.options.mean_episodes or float(n)
        classes = groups.classify([str(task) for task in tasks])
        if step != self._given_at:
            self._given, self._given_at = {}, step
        # Further tasks of a step (hier.refill) have what their class has been given already.
        new = [name for name in classes if name not in self._given]
        self._given |= groups.choose(new, round(groups.mean_episodes * len(new)))
        return [self._given[name] for name in classes]

    def table_ready(self, table: TurnTable, step: int) -> dict[str, float]:
        """See `Schedule.table_ready`; adds the column `class_weight`."""
        groups, options = self._groups, self._groups.options
        group = np.asarray(table["episodes.group"])
        first = np.unique(group, return_index=True)[1]
        tasks = [str(task) for task in np.asarray(table["episodes.task"])[first]]
        self._classes = dict(zip(group[first].tolist(), groups.classify(tasks), strict=True))
        self._weights = np.ones(int(group.max(initial=-1)) + 1)
        self._weights[group[first]] = groups.weights(list(self._classes.values()))
        mean = self._weights[group].mean() if group.size else 0.0
        if mean > 0:
            self._weights = np.minimum(self._weights / mean, options.max_weight)
        table.turns["class_weight"] = self._weights[np.asarray(table["group"])]
        success, returns = np.asarray(table["episodes.success"]), np.asarray(table["episodes.return"])
        won = np.where(np.isnan(success), returns > 0, success > 0)
        groups.note(tasks, [bool(won[group == number].any()) for number in group[first]])
        if self._given and tasks:
            groups.raise_price(group.size / len(tasks))
        return {
            "hier/gdro/classes": float(len(set(self._classes.values()))),
            "hier/gdro/weight_max": float(self._weights.max(initial=0.0)),
            "hier/gdro/price": groups.state.price,
        }

    def learned(self, group: Ints, losses: Floats, step: int) -> None:
        """See `Schedule.learned`."""
        classes = [self._classes[number] for number in group.tolist()]
        weight = self._weights[group]
        plain = np.divide(losses, weight, out=np.zeros(len(losses)), where=weight > 0)
        self._groups.learn(classes, plain.tolist(), self._given or None)

    def state_dict(self) -> dict[str, Any]:
        """See `Schedule.state_dict`."""
        return asdict(self._groups.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Schedule.load_state_dict`."""
        self._groups.state = Statistics(**state)


@hookimpl
def hier_schedules() -> ScheduleSpec:
    """The `gdro` schedule."""
    return ScheduleSpec(
        "gdro",
        GDRO,
        GDROOptions,
        summary="all learn; tasks weigh, and have episodes, by how often they are solved and what their loss is",
        source="arXiv 2601.19280; kishanpb/verl-gdro group_dro_grpo.py",
        provides=("class_weight",),
    )
