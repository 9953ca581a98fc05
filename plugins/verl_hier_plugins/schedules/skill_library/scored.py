"""Skills that are kept by how often they have helped with other tasks; docs/methods/evolver.md.

Source: EvolveR, arXiv 2510.16079; Edaizi/EvolveR at e1b640e, evolver/experience/experience_manager.py: the score after
a step (lines 669-723), what is merged (970-1015 and 1142-1158), and evolver/experience/milvusdb/principle_client.py,
line 310: what is deleted. That a skill has to help with another task before it counts is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from verl_hier.credit import Bools
from verl_hier.graph.turn_table import TurnTable
from verl_hier.host.constraints import Count, CountOrZero, ZeroToOne
from verl_hier.training.schedule import Phase, Schedule
from verl_hier_plugins.schedules.skill_library.entries import (
    Skill,
    for_task,
    key_of,
    one_line,
    read_in,
    solved_in,
    written_in,
)
from verl_hier_plugins.workers.proposer_solver_judge.guards import shared, words_of

OPERATIONS = ("written", "merged", "added", "deleted")
"""What is counted in a step."""


@dataclass(frozen=True)
class ScoredSkillsOptions:
    """Options of `scored_skills`."""

    skills: tuple[str, ...] = ()
    """Skills that the library begins with; they count from the beginning."""
    entries: Count = 1000
    """Skills that the library holds; what is too much goes, first what does not count yet, then the lowest score."""
    told: Count = 64
    """Skills that a task is told to choose from, those with the highest scores first."""
    trial: CountOrZero = 16
    """How many of these may be skills that do not count yet; they are tried in training, the newest first."""
    proofs: CountOrZero = 1
    """Solved episodes of other tasks that have to have read a skill before it counts; 0: all count at once."""
    least_score: ZeroToOne = 0.3
    """Score below which a skill is deleted: (successes + 1) / (uses + 2)."""
    interval: Count = 10
    """Steps from one deletion to the next."""
    alike: ZeroToOne = 0.85
    """Share of the words of both from which on a new skill is one that is there already, for which it then counts."""
    evaluations: bool = True
    """Whether evaluations are told the skills that count."""
    warm_up: CountOrZero = 0
    """First steps, in which skills are written and none is shown."""
    right: float = 0.5
    """Least return of an episode that counts as right when the environment does not report success."""
    roles: tuple[str, ...] = ()
    """Roles that learn; empty: all."""


@dataclass
class ScoredSkill(Skill):
    """A skill whose `uses` and `successes` are the episodes that have read it or have written the same, and those of
    them that were solved. `proofs` are the solved ones that have read it, and `again` the numbers of the further tasks
    that have written the same."""

    successes: int = 0
    proofs: int = 0
    again: list[int] = field(default_factory=list)

    @property
    def score(self) -> float:
        """How often it has helped, smoothed by one success and one failure."""
        return (self.successes + 1) / (self.uses + 2)

    def note(self, solved: bool) -> None:
        """Count an episode."""
        self.uses += 1
        self.successes += int(solved)


class ScoredSkills(Schedule):
    """The chosen roles learn in every step. After it skills are scored, merged or added, and at times deleted."""

    def __init__(self, options: ScoredSkillsOptions) -> None:
        self._options = options
        self._skills: dict[str, ScoredSkill] = {}
        for text in map(one_line, options.skills):
            self._skills.setdefault(key_of(text), ScoredSkill(text))
        self._count = dict.fromkeys(OPERATIONS, 0)

    def phase(self, step: int) -> Phase:
        """See `Schedule.phase`."""
        name = "warm_up" if step <= self._options.warm_up else "skills"
        return Phase(name, roles=frozenset(self._options.roles) or None)

    def counts(self, skill: ScoredSkill) -> bool:
        """Whether a skill has been given, or has helped with other tasks often enough."""
        return skill.step == 0 or skill.proofs >= self._options.proofs

    def told(self, step: int, tasks: Sequence[int]) -> list[dict[str, Any]] | None:
        """See `Schedule.told`: `{"skills": […]}`, those that count before those that are tried; none of the task's
        own."""
        if step <= self._options.warm_up:
            return [{} for _ in tasks]
        known = self._best()
        tried = [skill for skill in reversed(self._skills.values()) if not self.counts(skill)]
        return [{"skills": self._chosen(known, tried, task)} for task in tasks]

    def told_in_evaluation(self, tasks: Sequence[int]) -> list[dict[str, Any]] | None:
        """See `Schedule.told_in_evaluation`: the skills that count."""
        if not self._options.evaluations:
            return None
        best = [skill.text for skill in self._best()[: self._options.told]]
        return [{"skills": best} for _ in tasks]

    def _best(self) -> list[ScoredSkill]:
        """The skills that count, the highest score first."""
        return sorted(filter(self.counts, self._skills.values()), key=lambda skill: -skill.score)

    def _chosen(self, known: Sequence[ScoredSkill], tried: Sequence[ScoredSkill], task: int) -> list[str]:
        trial = [skill.text for skill in for_task(tried, task)][: self._options.trial]
        sure = [skill.text for skill in for_task(known, task)]
        return [*sure[: max(self._options.told - len(trial), 0)], *trial][: self._options.told]

    def table_ready(self, table: TurnTable, step: int) -> dict[str, float]:
        """See `Schedule.table_ready`."""
        options = self._options
        self._count = dict.fromkeys(OPERATIONS, 0)
        read, solved = read_in(table), solved_in(table, options.right)
        for texts, right in zip(read, solved.tolist(), strict=True):
            for skill in filter(None, (self._skills.get(key_of(text)) for text in texts)):
                skill.note(right)
                skill.proofs += int(right)
        self._add(table, step)
        if step % options.interval == 0:
            self._drop(key for key, skill in self._skills.items() if skill.score < options.least_score)
        worst = sorted(self._skills, key=lambda key: (self.counts(self._skills[key]), self._skills[key].score))
        self._drop(worst[: max(len(worst) - options.entries, 0)])
        return self._metrics(read, solved)

    def _add(self, table: TurnTable, step: int) -> None:
        """What was written counts for the skill that it is most alike to, or is added; of a task's own, the first."""
        words = {key: set(words_of(skill.text)) for key, skill in self._skills.items()}
        seen = set[tuple[str, int]]()
        for new in written_in(table, step, self._options.right):
            self._count["written"] += 1
            mine, key = set(words_of(new.skill.text)), key_of(new.skill.text)
            if key not in words:
                key = self._alike(mine, words) or key
            if key not in words:
                self._skills[key], words[key] = ScoredSkill(**asdict(new.skill)), mine
                self._count["added"] += 1
            elif (key, new.group) not in seen:
                self._merge(self._skills[key], new.skill)
            seen.add((key, new.group))

    def _alike(self, mine: set[str], words: Mapping[str, set[str]]) -> str | None:
        """The skill that has most words in common with these, where those are enough."""
        best = max(words, key=lambda key: shared(mine, words[key]), default=None)
        return best if best is not None and shared(mine, words[best]) >= self._options.alike else None

    def _merge(self, skill: ScoredSkill, new: Skill) -> None:
        skill.note(bool(new.solved))
        if new.task != skill.task and new.task not in skill.again:
            skill.again.append(new.task)
        self._count["merged"] += 1

    def _drop(self, keys: Iterable[str]) -> None:
        for key in list(keys):
            del self._skills[key]
            self._count["deleted"] += 1

    def _metrics(self, read: Sequence[Sequence[str]], solved: Bools) -> dict[str, float]:
        skills = list(self._skills.values())
        aided = np.asarray([bool(texts) for texts in read], bool)
        known = {f"hier/skills/{name}": float(count) for name, count in self._count.items()} | {
            "hier/skills/kept": float(len(skills)),
            "hier/skills/counting": float(sum(map(self.counts, skills))),
            "hier/skills/score": float(np.mean([skill.score for skill in skills] or [0.0])),
            "hier/skills/used": float(aided.mean()) if len(aided) else 0.0,
        }
        if aided.any():
            known["hier/skills/solved_with"] = float(solved[aided].mean())
        if not aided.all():
            known["hier/skills/solved_without"] = float(solved[~aided].mean())
        return known

    def state_dict(self) -> dict[str, Any]:
        """See `Schedule.state_dict`."""
        return {"skills": [asdict(skill) for skill in self._skills.values()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Schedule.load_state_dict`."""
        self._skills = {key_of(skill["text"]): ScoredSkill(**skill) for skill in state["skills"]}
