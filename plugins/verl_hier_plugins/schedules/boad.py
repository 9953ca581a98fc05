"""BOAD: which sub-agents a team has is a bandit's choice (arXiv 2512.23631), docs/methods/boad.md.

Source: iamxjy/BOAD-SWE-Agent, tool_gen/tools.py and tool_evolution_engine.py.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from verl_hier.credit import episode_sum
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count, CountOrZero, NonNegative
from verl_hier.host.specs import ScheduleSpec
from verl_hier.training.schedule import Phase, Schedule


@dataclass(frozen=True)
class BOADOptions:
    """Options of `boad`."""

    slots: tuple[str, ...] = ("executor",)
    """Roles of the team whose {brief} is chosen, each a place for one sub-agent."""
    briefs: Mapping[str, str] = field(default_factory=lambda: {"plain": ""})
    """Sub-agents that the archive begins with: a name, and what the role of its slot reads as {brief}."""
    candidates: Mapping[str, str] = field(default_factory=dict)
    """Sub-agents that are not in the archive yet; a slot that takes a new one takes the first of them that is left."""
    theta: NonNegative = 1.0
    """θ: a slot takes a new sub-agent with probability θ / (θ + size of the archive)."""
    every: Count = 1
    """Trainer steps of a round, for which the chosen sub-agents stay."""
    warm_up: CountOrZero = 0
    """Rounds before the first one that counts for the confidence bound; in them all known sub-agents score alike."""
    seed: int = 0
    """Seed of whether a slot takes a new one."""

    def __post_init__(self) -> None:
        if not self.slots or len(set(self.slots)) < len(self.slots):
            raise ValueError("slots must name at least one role, and each once")
        if both := set(self.briefs) & set(self.candidates):
            raise ValueError(f"{min(both)!r} is among briefs and among candidates; name a sub-agent once")
        if len(self.briefs) + len(self.candidates) < len(self.slots):
            raise ValueError("there are more slots than sub-agents; add briefs or candidates")


@dataclass
class SubAgent:
    """A sub-agent of the archive: its brief, the tasks for which a slot had it, and those in which it helped."""

    brief: str
    tasks: float = 0.0
    helpful: float = 0.0


def confidence_bound(agent: SubAgent, step: int) -> float:
    """UCB of a sub-agent: the share of tasks in which it helped, and a bonus for what was tried seldom.

    All are worth 1 at step 0; later one that was never tried is worth infinity.
    """
    if step <= 0:
        return 1.0
    if agent.tasks <= 0:
        return math.inf
    return agent.helpful / agent.tasks + math.sqrt(2 * math.log(step) / agent.tasks)


def new_share(size: int, theta: float) -> float:
    """Probability that a slot takes a new sub-agent, for an archive of this size; 1 for an empty one without θ."""
    return theta / (theta + size) if theta + size > 0 else 1.0


def choose(agents: Sequence[SubAgent], step: int, draws: Sequence[float], theta: float) -> tuple[int, list[int]]:
    """What the slots of a round take.

    Args:
        agents: the archive.
        step: rounds so far.
        draws: one number in [0, 1) for each slot.
        theta: see `BOADOptions`.

    Returns:
        how many slots take a new sub-agent, and the places in the archive that the others take: the highest bounds
        first, the earlier one of equals, and none that was never tried.
    """
    share = new_share(len(agents), theta)
    new = sum(draw < share for draw in draws)
    tried = [place for place, agent in enumerate(agents) if agent.tasks > 0]
    ranked = sorted(tried, key=lambda place: -confidence_bound(agents[place], step))
    return new, ranked[: len(draws) - new]


class BOAD(Schedule):
    """All learn in every step. The archive of sub-agents and what they were worth is in the checkpoint."""

    def __init__(self, options: BOADOptions) -> None:
        self._options = options
        self._archive = {name: SubAgent(brief) for name, brief in options.briefs.items()}
        self._left = dict(options.candidates)
        self._round = -1
        self._chosen: dict[str, str] = {}

    def phase(self, step: int) -> Phase:
        """See `Schedule.phase`."""
        return Phase("joint")

    def told(self, step: int, tasks: Sequence[int]) -> list[dict[str, Any]] | None:
        """See `Schedule.told`: `{"briefs": {role: brief}}`, the same for all tasks of a round."""
        number = (step - 1) // self._options.every
        if number > self._round:
            self._round = number
            self._chosen = dict(zip(self._options.slots, self._begin_round(number), strict=False))
        briefs = {role: self._archive[name].brief for role, name in self._chosen.items()}
        return [{"briefs": briefs} for _ in tasks]

    def _begin_round(self, number: int) -> list[str]:
        """Names of the sub-agents of a round, one for each slot: given ones that were never tried, as their bound is
        infinite, then the best ones, then any; and the new ones."""
        options, names = self._options, list(self._archive)
        rng = random.Random(f"{options.seed}-{number}")
        draws = [rng.random() for _ in options.slots]
        new, places = choose(list(self._archive.values()), max(number - options.warm_up, 0), draws, options.theta)
        best = [names[place] for place in places]
        untried = [name for name in names if self._archive[name].tasks <= 0]
        fresh = list(self._left)[:new]
        others = [name for name in (*names, *self._left) if name not in (*best, *untried, *fresh)]
        wanted = len(options.slots) - len(fresh)
        chosen = [*untried, *best, *others][:wanted] + fresh
        for name in chosen:
            if name in self._left:
                self._archive[name] = SubAgent(self._left.pop(name))
        return chosen

    def table_ready(self, table: TurnTable, step: int) -> dict[str, float]:
        """See `Schedule.table_ready`. A sub-agent of the round has helped in a task by the share of its episodes that
        succeeded and in which the sub-agent spoke."""
        success = np.nan_to_num(np.asarray(table["episodes.success"], np.float64))
        groups, place = np.unique(table["episodes.group"], return_inverse=True)
        for role, name in self._chosen.items():
            spoke = np.asarray(table["role"]) == table.code("role", role)
            helped = np.where(episode_sum(table, spoke) > 0, success, 0.0)
            agent = self._archive[name]
            agent.tasks += len(groups)
            agent.helpful += float((np.bincount(place, helped) / np.bincount(place)).sum())
        shares = [agent.helpful / agent.tasks for agent in self._archive.values() if agent.tasks]
        return {
            "hier/sub_agents/archive": float(len(self._archive)),
            "hier/sub_agents/untried": float(len(self._left)),
            "hier/sub_agents/best": max(shares, default=0.0),
        }

    def state_dict(self) -> dict[str, Any]:
        """See `Schedule.state_dict`."""
        archive = {name: asdict(agent) for name, agent in self._archive.items()}
        return {"archive": archive, "left": dict(self._left), "round": self._round, "chosen": dict(self._chosen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Schedule.load_state_dict`."""
        self._archive = {name: SubAgent(**agent) for name, agent in state["archive"].items()}
        self._left, self._chosen = dict(state["left"]), dict(state["chosen"])
        self._round = int(state["round"])


@hookimpl
def hier_schedules() -> ScheduleSpec:
    """The `boad` schedule."""
    return ScheduleSpec(
        "boad",
        BOAD,
        BOADOptions,
        summary="all learn; a bandit chooses the sub-agents of a team from an archive",
        source="BOAD, arXiv 2512.23631; iamxjy/BOAD-SWE-Agent tool_gen/tools.py",
        named_roles=lambda options: options.slots,
    )
