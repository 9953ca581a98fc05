"""What every library of skills has: skills with where they come from, and what a step has read and written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from verl_hier.credit import Bools
from verl_hier.graph.turn_table import TurnTable
from verl_hier.text import without_halves
from verl_hier_plugins.workers.proposer_solver_judge.guards import words_of


@dataclass
class Skill:
    """A skill and where it comes from: the step that wrote it (0: it was given), the number of the task that left it
    (-1: not known), which is not shown it, the episode of that task and the role that wrote it, and whether the task
    was solved there. `uses` counts what has read it."""

    text: str
    step: int = 0
    uses: int = 0
    task: int = -1
    episode: int = -1
    role: str = ""
    solved: bool | None = None


Known = TypeVar("Known", bound=Skill)


@dataclass(frozen=True)
class Written:
    """A skill that a turn has written down, and all that is known of the turn."""

    skill: Skill
    turn: int
    group: int


def key_of(text: str) -> str:
    """What two skills share that are one."""
    return " ".join(words_of(text)) or text


def one_line(text: str) -> str:
    """A skill as turns name it: of whole characters, and without line breaks, which stand between the skills of a
    turn."""
    return " ".join(without_halves(text).split())


def for_task(skills: Iterable[Known], task: int) -> Iterator[Known]:
    """The skills that other tasks have left."""
    return (skill for skill in skills if skill.task != task)


def read_in(table: TurnTable) -> list[list[str]]:
    """(E,) the texts of the skills that each episode was shown, each once, in the order of its turns."""
    found: list[dict[str, None]] = [{} for _ in range(len(table["episodes.return"]))]
    shown = table.texts.get("skill")
    if shown is not None:
        for episode, turn in zip(table.step_episode.tolist(), table.step_turn.tolist(), strict=True):
            if shown[turn] is not None:
                found[episode] |= dict.fromkeys(str(shown[turn]).split("\n"))
    return [list(texts) for texts in found]


def written_in(table: TurnTable, step: int, right: float) -> Iterator[Written]:
    """What the turns of a step have written down, in the order of the table.

    Args:
        table: of the step.
        step: of the trainer.
        right: see `solved_in`.
    """
    texts = table.texts.get("new_skill")
    if texts is None:
        return
    groups, owners, roles = table["group"], table["episode"], table["role"]
    tasks, solved, places = table["episodes.task"], solved_in(table, right), _places(table)
    for turn in np.flatnonzero([text is not None for text in texts]).tolist():
        owner = int(owners[turn])
        skill = Skill(
            str(texts[turn]),
            step,
            task=int(tasks[owner]),
            episode=places[owner],
            role=table.names["role"][int(roles[turn])],
            solved=bool(solved[owner]),
        )
        yield Written(skill, turn, int(groups[turn]))


def solved_in(table: TurnTable, right: float) -> Bools:
    """(E,) whether each episode has solved its task; by its return, of at least `right`, where the environment does not
    say."""
    success = np.asarray(table["episodes.success"], float)
    return np.where(np.isnan(success), table["episodes.return"] >= right, success > 0)


def _places(table: TurnTable) -> list[int]:
    """(E,) number of each episode among those of its task."""
    before: dict[int, int] = {}
    places = []
    for group in table["episodes.group"].tolist():
        places.append(before.get(group, 0))
        before[group] = places[-1] + 1
    return places
