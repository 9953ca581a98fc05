"""The texts of skills: what a turn has written down, and what may not stand in one."""

from __future__ import annotations

from collections.abc import Iterable

from verl_hier_plugins.workers.proposer_solver_judge.guards import words_of
from verl_hier_plugins.workers.react import parse_action
from verl_hier_plugins.workers.skills.options import SkillsOptions


def skill_of(text: str, options: SkillsOptions, answers: Iterable[str] = ()) -> str | None:
    """The skill that a turn has written down; None without one, or with one that is too long or tells an answer.

    Args:
        text: of the turn.
        options: of the worker.
        answers: of the task from which it was written.
    """
    found = parse_action(text, options.skill_tag)
    if not found or len(found) > options.longest:
        return None
    tags = (f"<{tag}".casefold() for tag in (options.answer_tag, options.search_tag))
    if any(tag in found.casefold() for tag in tags) or any(tells(found, answer) for answer in answers):
        return None
    return " ".join(found.split()) or None


def tells(skill: str, answer: str) -> bool:
    """Whether the words of an answer stand in a skill one behind the other; of one without words, its characters."""
    wanted = words_of(answer)
    if not wanted:
        return bool(answer.strip()) and answer.strip() in skill
    return f" {' '.join(wanted)} " in f" {' '.join(words_of(skill))} "
