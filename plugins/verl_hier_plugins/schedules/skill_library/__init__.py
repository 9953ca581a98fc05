"""Libraries of skills that the `skills` worker reads and writes: docs/methods/arise.md and docs/methods/evolver.md."""

from __future__ import annotations

from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import ScheduleSpec
from verl_hier_plugins.schedules.skill_library.scored import ScoredSkills, ScoredSkillsOptions
from verl_hier_plugins.schedules.skill_library.tiers import SkillLibrary, SkillLibraryOptions


@hookimpl
def hier_schedules() -> list[ScheduleSpec]:
    return [
        ScheduleSpec(
            "skill_library",
            SkillLibrary,
            SkillLibraryOptions,
            summary="chosen roles learn; keeps a library of skills in two tiers that workers are shown and add to",
            source="Skylanding/ARISE verl/workers/arise/skill_library.py",
        ),
        ScheduleSpec(
            "scored_skills",
            ScoredSkills,
            ScoredSkillsOptions,
            summary="chosen roles learn; keeps skills that count once they have helped with another task, and forgets "
            "those that help too rarely",
            doc="methods/evolver.md",
            source="EvolveR, arXiv 2510.16079; Edaizi/EvolveR evolver/experience/experience_manager.py",
        ),
    ]
