"""What policies of one line win: an environment that a constant answer wins teaches a policy to give that answer.

`measure` plays the same tasks with each of them and with uniformly random actions. `EnvironmentSpec.baselines` says
which tasks of an environment are measured one by one, and what an answer looks like there.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_hier.environments.base import Environment, StepResult, last_word
from verl_hier.environments.expert import OffersExpert
from verl_hier.errors import RecipeError

TASKS = 100
"""Tasks that are played of each variant."""
CANDIDATES, ANSWERS, SOLUTIONS = 12, 3, 5
"""How many possible actions, right answers and solutions of other tasks are tried as constants."""
LONGEST, LISTED = 60, 10
"""Turns of an episode at most, and actions in a list of right answers."""
MARGIN = 0.1
"""How much more than chance a policy of one line may win."""
EMPTY, ECHO, NUMBER, RANDOM = "empty", "echo", "first number", "random"
CONSTANT, LIST = "constant", "constant list"

Task = Mapping[str, Any]
Say = Callable[[Task, StepResult, int], str]
"""The action of a policy: from the task, from what it has just read, and from the number of its turn."""


@dataclass(frozen=True)
class Baselines:
    """How an environment is measured.

    Attributes:
        variants: the options to measure one by one, such as one for each family and difficulty, by name.
        forms: how a text is said as an action: `answer {}`. Of several, each policy has the one that wins most.
        answers: `answers(task)`, actions each of which wins the task in its first turn. None where no single action
            does; constants are then found among the actions that are possible at the start, and among the solutions of
            other tasks by the environment's expert.
    """

    variants: Mapping[str, Any]
    forms: tuple[str, ...] = ("{}",)
    answers: Callable[[Task], Collection[str]] | None = None


@dataclass(frozen=True)
class Measured:
    """What was won of one variant.

    Attributes:
        tasks: number of tasks.
        chance: share that is won by random possible actions, or that one of all different right answers wins on
            average, whichever is more.
        won: share of the tasks that each policy won.
        best: the constant action and the constant list that won most.
    """

    tasks: int
    chance: float
    won: dict[str, float] = field(default_factory=dict)
    best: dict[str, str] = field(default_factory=dict)

    @property
    def excess(self) -> float:
        """How much more than chance the best policy won."""
        return max(self.won.values(), default=0.0) - self.chance


def measure(world: Environment, tasks: Sequence[Task], baselines: Baselines, most: int = TASKS) -> Measured:
    """Play tasks with every policy of one line.

    Args:
        world: is reset for each episode.
        tasks: the constants are those that are right for most of them.
        baselines: how the environment is measured; its variants are not read.
        most: how many of the tasks are played, at equal distances.
    """
    most = min(most, len(tasks))
    played = [tasks[number * len(tasks) // most] for number in range(most)]
    possible: list[str] = []
    if baselines.answers is not None:
        answers = [tuple(baselines.answers(task)) for task in tasks]
        counts = Counter(answer for found in answers for answer in dict.fromkeys(found))
        constants, lists = _frequent(counts, ANSWERS), [covering(answers)]
        possible = sorted(counts)
    else:
        counts = Counter(action for task in played for action in world.reset(task, 0).admissible)
        constants, lists = _frequent(counts, CANDIDATES), list(map(list, dict.fromkeys(_solutions(world, played))))
    tally = _Tally(world, played)
    tally.add(EMPTY, "", _list([""]))
    for form in baselines.forms:
        tally.add(ECHO, form, _echo(form))
        tally.add(NUMBER, form, _first_number(form))
    for action in constants:
        tally.add(CONSTANT, action, _list([action]), 1 if possible else LONGEST)
    for listed in lists:
        tally.add(LIST, "; ".join(listed), _list(listed))
    rng = random.Random(0)
    tally.add(RANDOM, "", lambda task, read, turn: rng.choice(read.admissible or possible or [""]))
    tally.play()
    won = {policy: max(counts.values()) / len(played) for policy, counts in tally.won.items()}
    best = {policy: max(tally.won[policy], key=tally.won[policy].__getitem__) for policy in won if won[policy]}
    chance = max(won[RANDOM], 1 / len(possible) if possible else 0.0)
    return Measured(len(played), chance, won, {name: best[name] for name in (CONSTANT, LIST) if name in best})


def covering(answers: Iterable[Collection[str]], most: int = LISTED) -> list[str]:
    """A list of answers that wins many tasks: each is the most frequent right one of the tasks that are left."""
    left, found = [set(each) for each in answers], list[str]()
    while left and len(found) < most:
        counts = Counter(answer for each in left for answer in each)
        if not counts:
            break
        found.append(min(counts, key=lambda answer: (-counts[answer], answer)))
        left = [each for each in left if found[-1] not in each]
    return found or [""]


def _frequent(counts: Counter[str], most: int) -> list[str]:
    return sorted(counts, key=lambda action: (-counts[action], action))[:most]


def _solutions(world: Environment, tasks: Sequence[Task]) -> Iterable[tuple[str, ...]]:
    """What an expert does in some of the tasks."""
    for task in tasks[:SOLUTIONS]:
        read, said = world.reset(task, 0), list[str]()
        won = last_word(None, read)
        if not isinstance(world, OffersExpert):
            return
        try:
            expert = world.expert(random.Random(0))
        except RecipeError:  # such as for a game that has none
            return
        for subgoal in range(len(expert.subgoals)):
            while not _over(read) and len(said) < LONGEST and (action := expert.advise(subgoal)) is not None:
                said.append(action)
                read = world.step(action)
                won = last_word(won, read)
        if won:
            yield tuple(said)


class _Tally:
    """Plays policies, and keeps for each of them how many tasks each of its forms won."""

    def __init__(self, world: Environment, tasks: Sequence[Task]) -> None:
        self._world = world
        self._tasks = tasks
        self._policies: list[tuple[str, str, Say, int]] = []
        self.won: dict[str, dict[str, int]] = {}

    def add(self, policy: str, form: str, say: Say, turns: int = LONGEST) -> None:
        """Add a policy, in one of its forms."""
        self._policies.append((policy, form, say, turns))

    def play(self) -> None:
        """Play all policies, one task after the other: an environment keeps what it knows of the latest tasks."""
        for task in self._tasks:
            for policy, form, say, turns in self._policies:
                shares = self.won.setdefault(policy, {})
                shares[form] = shares.get(form, 0) + self._episode(task, say, turns)

    def _episode(self, task: Task, say: Say, turns: int) -> bool:
        read, before = self._world.reset(task, 0), ""
        won = last_word(None, read)
        for turn in range(turns):
            if _over(read):
                break
            said, state = say(task, read, turn), read.anchor
            read = self._world.step(said)
            won = last_word(won, read)
            if said == before and state is not None and read.anchor == state:
                break  # the same action in the same state changes nothing any more
            before = said
        return bool(won)


def _echo(form: str) -> Say:
    return lambda task, read, turn: form.format(read.text if turn else task.get("instruction", ""))


def _first_number(form: str) -> Say:
    def say(task: Task, read: StepResult, turn: int) -> str:
        found = re.search(r"-?\d+", str(task.get("instruction", "")))
        return form.format(found.group() if found else "")

    return say


def _list(actions: Sequence[str]) -> Say:
    return lambda task, read, turn: actions[turn % len(actions)]


def _over(read: StepResult) -> bool:
    return read.done or read.truncated
