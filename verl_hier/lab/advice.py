"""Which methods the stored runs of the lab speak for, by what makes a problem hard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from verl_hier.lab.methods import REFERENCES
from verl_hier.lab.study import Table
from verl_hier.lab.worlds import WORLDS

Horizon = Literal["short", "long"]
Reward = Literal["dense", "sparse", "delayed", "noisy"]
Agents = Literal["one", "planner", "team"]
EVIDENCE: dict[str, tuple[str, ...]] = {
    "short": ("early_end", "maze"),
    "long": ("horizon", "irrelevant"),
    "dense": ("irrelevant", "two_agents"),
    "sparse": ("maze", "horizon"),
    "delayed": ("delayed", "decisive"),
    "noisy": ("noisy_plans", "stochastic"),
    "one": (),
    "planner": ("two_clocks", "noisy_plans"),
    "team": ("two_agents",),
}
"""The worlds that stand for each answer."""


@dataclass(frozen=True)
class Advice:
    """A method, and what speaks for it.

    Attributes:
        method: its name.
        area: mean regret over the whole budget, over the worlds that stand for the problem.
        width: half width of its 95 % interval.
        learned: worlds of these in which it learns.
    """

    method: str
    area: float
    width: float
    learned: tuple[str, ...]


def worlds_for(horizon: Horizon, reward: Reward, agents: Agents) -> list[str]:
    """The worlds that stand for a problem."""
    return [name for name in WORLDS if name in {*EVIDENCE[horizon], *EVIDENCE[reward], *EVIDENCE[agents]}]


def advise(found: Table, worlds: Sequence[str], trees: Sequence[str], fork: bool) -> list[Advice]:
    """The methods with runs in all of these worlds, the one that learned fastest first; references are left out.

    Args:
        found: what the seeds of each method reached.
        worlds: of `worlds_for`.
        trees: methods that branch.
        fork: whether an episode of the problem can be forked at a reasonable price; without it, none that branches.
    """
    names = dict.fromkeys(name for name, _ in found if name not in REFERENCES and (fork or name not in trees))
    advice = []
    for name in names:
        each = {world: found[name, world] for world in worlds if (name, world) in found}
        if len(each) < len(worlds):
            continue
        area = sum(summary.area[0] for summary in each.values()) / len(worlds)
        width = sum(summary.area[1] ** 2 for summary in each.values()) ** 0.5 / len(worlds)
        learned = tuple(world for world, summary in each.items() if summary.verdict == "learns")
        advice.append(Advice(name, area, width, learned))
    return sorted(advice, key=lambda each: each.area)
