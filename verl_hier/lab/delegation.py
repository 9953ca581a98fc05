"""What each practice of credit for delegation costs: bias and noise of its gradient, and what a lead learns by it.

The worlds have a lead that answers, or spawns a helper first, as often as three times, so that the number of
conversations is a choice of the policy. The practices are those of the estimator `sub_agents`:
docs/methods/sub_agents.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_hier.host.manager import PluginHost
from verl_hier.lab.bias import TWO_SIDED, Measured, compare, gradients, start
from verl_hier.lab.learn import Setting, learn
from verl_hier.lab.methods import REFERENCES, Method, method
from verl_hier.lab.study import interval
from verl_hier.lab.update import Loss, WeightBy
from verl_hier.lab.world import World
from verl_hier.lab.worlds import Sketch

Array = NDArray[Any]
Pair = tuple[float, float]
MOST, WORK = 3, 4
"""Helpers of an episode at most, and turns of each."""


def delegation(
    name: str, difficulty: str, alone: float, helped: float, paid: float = 0.0, shortens: bool = False
) -> World:
    """A lead that answers in one of two ways, or spawns a helper, which finds something more often by right work.

    Args:
        name: of the world.
        difficulty: in a sentence.
        alone: chance that the better answer is right before something was found; that of the other one is a third.
        helped: the same afterwards.
        paid: what the first find is worth to the helper itself.
        shortens: whether the lead shortens its context, and so begins a new row, behind each report.
    """
    sketch = Sketch(3)
    for spawned in range(MOST + 1):
        contexts = spawned if shortens else 0
        for found in range(min(spawned, 1) + 1):
            lead, chance = ("lead", spawned, found), helped if found else alone
            sketch.agent(lead, 0, "lead", contexts=contexts)
            for answer, right in enumerate((chance, chance / 3)):
                sketch.act(lead, answer, {("right", spawned): right, ("wrong", spawned): 1 - right})
            if spawned < MOST:
                sketch.act(lead, 2, ("helper", spawned, found, 0, 1))
                sketch.spawn(lead, 2)
                _help(sketch, spawned, found, paid)
        for end in ("right", "wrong"):  # both take a turn, so that a right episode is no longer than a wrong one
            sketch.agent((end, spawned), 0, "lead", contexts=contexts)
            sketch.act((end, spawned), 0, ("end", end), reward=float(end == "right"))
    sketch.goal(("end", "right"))
    return sketch.world(name, difficulty, 2 + MOST * (WORK + 1))


def _help(sketch: Sketch, spawned: int, found: int, paid: float) -> None:
    """The turns of a helper, each of which has one right action of two."""
    for turn in range(WORK):
        for fits in range(2) if turn else (1,):
            state = ("helper", spawned, found, turn, fits)
            sketch.agent(state, 1, "helper", f"helper {spawned + 1}")
            for action in range(2):
                right = int(fits and action == turn % 2)
                if turn < WORK - 1:
                    sketch.act(state, action, ("helper", spawned, found, turn + 1, right))
                    continue
                chance = 1.0 if found else 0.9 if right else 0.2
                reports = {("lead", spawned + 1, 1): chance, ("lead", spawned + 1, 0): 1 - chance}
                earned = 0.0 if found else paid * chance
                sketch.act(state, action, {to: part for to, part in reports.items() if part}, reward=earned)


DELEGATED: dict[str, World] = {
    world.name: world
    for world in (
        delegation("useful", "alone half of the tasks are solved, with a find nine of ten", 0.5, 0.9),
        delegation("needed", "alone one task of ten is solved, with a find nine", 0.1, 0.9),
        delegation("useless", "a find changes nothing", 0.6, 0.6),
        delegation("paid", "as `useful`, and a find is worth something to the helper itself", 0.5, 0.9, paid=0.2),
        delegation(
            "shortened", "as `useful`, and the lead begins a new row behind each report", 0.5, 0.9, shortens=True
        ),
    )
}
"""The worlds by name."""
PRACTICES: dict[str, dict[str, str]] = {
    "by_role": {},
    "by_role, no scale": {"practice": "by_role", "scale": "none"},
    **{name: {"practice": name} for name in ("inherit", "broadcast", "split", "longest", "own")},
}
"""Options of `sub_agents`, by the name of what they make."""
WEIGHTS: tuple[WeightBy, ...] = ("token", "row", "episode")
"""What has equal weight in the loss: nothing, each row as in other trainers, or each episode as here."""


@dataclass(frozen=True)
class Cost:
    """What a practice makes of a world.

    Attributes:
        practice: one of `PRACTICES`, or a reference.
        weight_by: of the loss.
        measured: its gradient against the exact one.
        pull: cosine between its mean gradient and that of the number of helpers, with half of the 95 % interval.
        solved: probability of a right answer, as learned by several seeds, with half of the 95 % interval.
        spawned: helpers of an episode of these policies.
    """

    practice: str
    weight_by: WeightBy
    measured: Measured
    pull: Pair
    solved: Pair
    spawned: Pair

    def to_dict(self) -> dict[str, Any]:
        """For JSON, rounded."""
        made = self.measured
        numbers = {"bias": made.interval, "noise": (made.noise,), "scale": (made.scale,), "pull": self.pull}
        numbers |= {"solved": self.solved, "spawned": self.spawned}
        rounded = {name: [round(value, 4) for value in values] for name, values in numbers.items()}
        return {"practice": self.practice, "weight_by": self.weight_by, **rounded}


HEAD = ("practice", "weights", "bias", "noise", "pull to spawn", "solved", "spawned")


def exact(world: World) -> tuple[str, ...]:
    """The row under `HEAD` of the exact gradient."""
    return "the exact gradient", "", "0", "", f"{pull(world, start(world)):+.2f}", "", ""


def shown(cost: Mapping[str, Any]) -> tuple[str, ...]:
    """A row under `HEAD`, of `Cost.to_dict`."""
    low, high = cost["bias"]
    (noise,), solved, spawned = cost["noise"], cost["solved"], cost["spawned"]
    return (
        *(cost["practice"], cost["weight_by"], f"{max(low, 0):.2f} to {high:.2f}", f"{noise:.3g}"),
        "{:+.2f} ± {:.2f}".format(*cost["pull"]),
        f"{100 * solved[0]:.1f} ± {100 * solved[1]:.1f} %",
        f"{spawned[0]:.2f} ± {spawned[1]:.2f}",
    )


def conversation(world: World) -> str:
    """What the estimator counts there: rows where an agent writes several of them, else agents, which is the same."""
    return "row" if world.context.max() + 1 > len(world.agents) else "agent"


def way(world: World, practice: str, weight_by: WeightBy, host: PluginHost | None = None) -> Method:
    """One of `PRACTICES`, or a reference, with the weights of the loss."""
    if practice in REFERENCES:
        made = method(practice, host)
    else:
        made = method("sub_agents", host, {**PRACTICES[practice], "conversation": conversation(world)})
    return replace(made, loss=Loss(weight_by=weight_by))


def towards(found: Array, direction: Array) -> Pair:
    """Cosine between the mean of (B, K) gradients and a (K,) direction, with half of the 95 % interval that the
    batches leave along the direction."""
    along = found @ direction / np.linalg.norm(direction)
    length = float(np.linalg.norm(found.mean(axis=0)))
    return float(along.mean()) / length, TWO_SIDED * float(along.std(ddof=1)) / math.sqrt(len(found)) / length


def pull(world: World, logits: Array) -> float:
    """The cosine between the exact gradient and that of the number of spawned helpers."""
    exact, more = world.gradient(logits).ravel(), world.counting.gradient(logits).ravel()
    return float(exact @ more / np.linalg.norm(exact) / np.linalg.norm(more))


def gradient_of(world: World, made: Method, batches: int, seed: int = 0) -> tuple[Measured | None, Pair]:
    """A method's gradient against the exact one, and its pull to spawn more, at the policy of `bias.measure`."""
    logits = start(world, seed)
    found, turns, silent = gradients(world, made, logits, batches, made.loss.weight_by, seed)
    measured = compare(found, world.gradient(logits).ravel(), turns, silent)
    return measured, towards(found, world.counting.gradient(logits).ravel())


def compared(world: World, host: PluginHost, batches: int, seeds: int, setting: Setting) -> Iterator[Cost]:
    """A critic that errs nowhere, and every practice with all weights of the loss."""
    for practice, weight_by in (("exact_critic", "token"), *product(PRACTICES, WEIGHTS)):
        made = way(world, practice, weight_by, host)
        measured, pulls = gradient_of(world, made, batches)
        assert measured is not None
        curves = [learn(world, made, seed, setting) for seed in range(seeds)]
        ends = (interval([getattr(curve, name)[-1] for curve in curves]) for name in ("solved", "spawned"))
        yield Cost(practice, weight_by, measured, pulls, *ends)
