"""A library of skills in two tiers, written by the `skills` worker, in the checkpoint; docs/methods/arise.md.

Source: Skylanding/ARISE verl/workers/arise/skill_library.py, whose five operations keep their order here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from verl_hier.credit import Floats
from verl_hier.graph.turn_table import TurnTable
from verl_hier.host.constraints import Count, CountOrZero, NonNegative, ZeroToOne
from verl_hier.training.schedule import Phase, Schedule
from verl_hier_plugins.estimators.arise import ARISEOptions, episode_rewards, skill_value, utility
from verl_hier_plugins.schedules.skill_library.entries import (
    Skill,
    for_task,
    key_of,
    one_line,
    read_in,
    solved_in,
    written_in,
)

OPERATIONS = ("written", "duplicate", "unverified", "updated", "added", "evicted", "loaded", "deleted")
"""What is counted in a step: skills that were written, two reasons why one is not added, and the five operations."""


@dataclass(frozen=True)
class SkillLibraryOptions:
    """Options of `skill_library`."""

    skills: tuple[str, ...] = ()
    """Skills that the library begins with."""
    cache: Count = 10
    """Skills that are shown to choose from."""
    reservoir: CountOrZero = 100
    """Further skills, which come back when they are worth more than one of those."""
    decay: ZeroToOne = 0.9
    """Weight of what a skill was worth before a step in which it was used."""
    delete_share: ZeroToOne = 0.1
    """Share of the reservoir, from the least worth, from which a skill is deleted that was never used."""
    warm_up: CountOrZero = 500
    """First steps, in which skills are written and none is shown."""
    skill_reward: NonNegative = 1.0
    """What a solved episode with a skill earns on top, as in the estimator; a part of what the skill was worth."""
    right: float = 0.5
    """Least return of an episode that counts as right when the environment does not report success."""
    roles: tuple[str, ...] = ()
    """Roles that learn, the solver alone in ARISE, whose skills are written without a gradient; empty: all."""


@dataclass
class UsefulSkill(Skill):
    """A skill, and what it is worth; `uses` counts the tasks in which it was used."""

    utility: float = 0.0


class SkillLibrary(Schedule):
    """The chosen roles learn in every step. The library changes after it: UPDATE, ADD, EVICT, LOAD, DELETE."""

    def __init__(self, options: SkillLibraryOptions) -> None:
        self._options = options
        self._cache: dict[str, UsefulSkill] = {}
        self._reservoir: dict[str, UsefulSkill] = {}
        for text in map(one_line, options.skills):
            self._cache.setdefault(key_of(text), UsefulSkill(text))
        self._count = dict.fromkeys(OPERATIONS, 0)
        self._evict()

    def phase(self, step: int) -> Phase:
        """See `Schedule.phase`."""
        name = "warm_up" if step <= self._options.warm_up else "skills"
        return Phase(name, roles=frozenset(self._options.roles) or None)

    def told(self, step: int, tasks: Sequence[int]) -> list[dict[str, Any]] | None:
        """See `Schedule.told`: `{"skills": […]}`, those of the cache that other tasks have left, the one that is worth
        most first."""
        if step <= self._options.warm_up:
            return [{} for _ in tasks]
        best = sorted(self._cache.values(), key=lambda skill: -skill.utility)
        return [{"skills": [skill.text for skill in for_task(best, task)]} for task in tasks]

    def table_ready(self, table: TurnTable, step: int) -> dict[str, float]:
        """See `Schedule.table_ready`. Tasks are taken in the order of the table."""
        self._count = dict.fromkeys(OPERATIONS, 0)
        options = self._options
        chosen, total = [next(iter(texts), None) for texts in read_in(table)], table["episodes.return"]
        if "skill_used" in table:
            total = episode_rewards(table, ARISEOptions(options.skill_reward, options.right))
        self._update(table, chosen, total)
        self._add(table, chosen, step)
        self._evict()
        self._load()
        self._delete()
        return {f"hier/skills/{name}": float(count) for name, count in self._count.items()} | {
            "hier/skills/cache": float(len(self._cache)),
            "hier/skills/reservoir": float(len(self._reservoir)),
            "hier/skills/utility": float(np.mean([skill.utility for skill in self._cache.values()] or [0.0])),
            "hier/skills/used": float(np.mean([float(text is not None) for text in chosen] or [0.0])),
        }

    def _update(self, table: TurnTable, chosen: Sequence[str | None], total: Floats) -> None:
        """UPDATE: once for each task in which a skill was used, by the mean of its episodes."""
        earned: dict[tuple[int, str], list[float]] = {}
        for text, group, reward in zip(chosen, table["episodes.group"].tolist(), total.tolist(), strict=True):
            if text is not None:
                earned.setdefault((group, key_of(text)), []).append(reward)
        for (_, key), rewards in earned.items():
            skill = self._cache.get(key) or self._reservoir.get(key)
            if skill is not None:
                skill.utility = utility(skill.utility, sum(rewards) / len(rewards), self._options.decay)
                skill.uses += 1
                self._count["updated"] += 1

    def _add(self, table: TurnTable, chosen: Sequence[str | None], step: int) -> None:
        """ADD: the first new skill of each task that was verified, whatever that has shown."""
        added = set[int]()
        for new in written_in(table, step, self._options.right):
            key, verified = key_of(new.skill.text), int(table["verified"][new.turn])
            self._count["written"] += 1
            if key in self._cache or key in self._reservoir:
                self._count["duplicate"] += 1
            elif verified < 0:
                self._count["unverified"] += 1
            elif new.group not in added:
                added.add(new.group)
                value = skill_value(self._unaided(table, chosen, new.group), verified)
                self._cache[key] = UsefulSkill(**asdict(new.skill), utility=value)
                self._count["added"] += 1

    def _unaided(self, table: TurnTable, chosen: Sequence[str | None], group: int) -> list[int]:
        """Outcomes of the episodes of a task without a skill; of all of them where each had one."""
        right = solved_in(table, self._options.right)
        mine = np.flatnonzero(table["episodes.group"] == group).tolist()
        alone = [episode for episode in mine if chosen[episode] is None]
        return [int(right[episode]) for episode in alone or mine]

    def _evict(self) -> None:
        """EVICT: the skills that are worth least leave a full cache for the reservoir."""
        while len(self._cache) > self._options.cache:
            key = min(self._cache, key=lambda name: self._cache[name].utility)
            self._reservoir[key] = self._cache.pop(key)
            self._count["evicted"] += 1

    def _load(self) -> None:
        """LOAD: the best skill of the reservoir changes places with the worst of the cache where it is worth more."""
        if not self._reservoir or not self._cache:
            return
        best = max(self._reservoir, key=lambda name: self._reservoir[name].utility)
        worst = min(self._cache, key=lambda name: self._cache[name].utility)
        if self._reservoir[best].utility > self._cache[worst].utility:
            self._cache[best], self._reservoir[worst] = self._reservoir.pop(best), self._cache.pop(worst)
            self._count["loaded"] += 1

    def _delete(self) -> None:
        """DELETE: what was never used and is among the least worth, and what is too much, leave the reservoir."""
        found = sorted(self._reservoir, key=lambda name: self._reservoir[name].utility)
        if not found:
            return
        limit = self._reservoir[found[max(int(len(found) * self._options.delete_share) - 1, 0)]].utility
        stale = [key for key in found if self._reservoir[key].utility < limit and not self._reservoir[key].uses]
        left = [key for key in found if key not in stale]
        for key in [*stale, *left[: max(len(left) - self._options.reservoir, 0)]]:
            del self._reservoir[key]
            self._count["deleted"] += 1

    def state_dict(self) -> dict[str, Any]:
        """See `Schedule.state_dict`."""
        tiers = {"cache": self._cache, "reservoir": self._reservoir}
        return {name: [asdict(skill) for skill in tier.values()] for name, tier in tiers.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Schedule.load_state_dict`."""
        self._cache, self._reservoir = (
            {key_of(skill["text"]): UsefulSkill(**skill) for skill in state[name]} for name in ("cache", "reservoir")
        )
