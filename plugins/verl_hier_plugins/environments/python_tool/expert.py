"""Scripted experts: one calls the tool and answers with what it printed, the other works the answer out in one turn."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from verl_hier.environments.expert import Expert
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.python_tool.arithmetic import spell, worked_last_digit
from verl_hier_plugins.environments.python_tool.environment import PythonToolEnvironment
from verl_hier_plugins.environments.python_tool.options import ARITHMETIC, GENERATED, LAST_DIGIT, PythonToolOptions
from verl_hier_plugins.environments.python_tool.tasks import entry_of

SCRIPTS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "basic_arithmetic": lambda known: f"print({known['expression'].replace('/', '//')})",
    "bitwise_arithmetic": lambda known: f"print(hex({known['problem']}))",
    "chain_sum": lambda known: f"print({known['expression']})",
    "count_bits": lambda known: f"print(bin({known['number']}).count('1'))",
    "gcd": lambda known: f"import math\nprint(math.gcd(*{known['numbers']}))",
    "lcm": lambda known: f"import math\nprint(math.lcm(*{known['numbers']}))",
    "products": lambda known: f"print({known['expression']})",
}
"""The families of reasoning-gym whose metadata contain the computation."""


def script_of(task: Mapping[str, Any], spelling: str) -> str:
    """The expert's script, in the spelling of the options.

    Raises:
        RecipeError: for a family without an expert.
    """
    family = task["family"]
    if family == ARITHMETIC:
        return spell(task["expression"]) if spelling == "words" else f"print({task['expression']})"
    if family == LAST_DIGIT and spelling == "symbols":
        return f"print(({task['expression']}) % 10)"
    if family not in SCRIPTS:
        raise RecipeError(
            f"hier.environment.families: there is no expert for {family!r} with the tool in {spelling}; those with one "
            f"are {', '.join((ARITHMETIC, *SCRIPTS))}."
        )
    return SCRIPTS[family](entry_of(task)["metadata"])


def solution_of(task: Mapping[str, Any], spelling: str) -> str:
    """What is written down on the way to the answer, and the answer in tags.

    Raises:
        RecipeError: for a family without an expert.
    """
    family = task["family"]
    if family not in GENERATED:
        raise RecipeError(
            f"hier.environment.families: there is no expert for {family!r} without the tool; those with one are "
            f"{', '.join(GENERATED)}."
        )
    work = worked_last_digit(task["expression"]) if family == LAST_DIGIT else ""
    write: Callable[[str], str] = spell if spelling == "words" else str
    return " ".join(part for part in ("compute", write(work), f"<answer>{write(task['answer'])}</answer>") if part)


def expert_of(environment: PythonToolEnvironment, options: PythonToolOptions, rng: random.Random, **how: Any) -> Expert:
    """The expert for the environment's task; `how` as in `verl_hier.environments.expert`."""
    return (ToolExpert if options.tool else ThinkingExpert)(environment, options.spelling, rng, **how)


def _guess(rng: random.Random, below: int, spelling: str) -> str:
    """A number from 0 to below `below`, as the task's numbers are written."""
    number = str(rng.randrange(below))
    return spell(number) if spelling == "words" else number


class ToolExpert:
    """Follows one environment; see `verl_hier.environments.expert.Expert`. Without the stage `compute` it guesses."""

    def __init__(
        self,
        environment: PythonToolEnvironment,
        spelling: str,
        rng: random.Random,
        skip_stage: float = 0.0,
        remember: bool = True,
    ) -> None:
        self._environment = environment
        self._script = script_of(environment.task, spelling)
        self._remember = remember
        computes = rng.random() >= skip_stage
        self._guess = _guess(rng, 100, spelling)
        self.subgoals: tuple[str, ...] = ("compute", "answer") if computes else ("answer",)

    def advise(self, subgoal: int) -> str | None:
        """The call until its output is known, then the answer."""
        if len(self.subgoals) == 1:
            return f"answer {self._guess}"
        output = self._output()
        if output is None:
            return f"python {self._script}"
        return None if self.subgoals[subgoal] == "compute" else f"answer {output}"

    def mistake(self, subgoal: int, rng: random.Random) -> str | None:
        """A script without its end, as long as there is no output; a wrong answer would end the episode."""
        if len(self.subgoals) == 1 or self._output() is not None:
            return None
        parts = self._script.split(" ")
        return f"python {' '.join(parts[: rng.randint(1, len(parts))])}"

    def _output(self) -> str | None:
        """The output of the script, if the agent's context contains it."""
        calls = self._environment.calls if self._remember else self._environment.calls[-1:]
        return next((output for body, output in calls if body == self._script), None)


class ThinkingExpert:
    """Answers in one turn, after the work; without the stage `compute` it guesses a digit."""

    def __init__(
        self,
        environment: PythonToolEnvironment,
        spelling: str,
        rng: random.Random,
        skip_stage: float = 0.0,
        remember: bool = True,
    ) -> None:
        computes = rng.random() >= skip_stage
        guess = _guess(rng, 10, spelling)
        self.subgoals: tuple[str, ...] = ("compute",) if computes else ("answer",)
        self._text = solution_of(environment.task, spelling) if computes else f"<answer>{guess}</answer>"

    def advise(self, subgoal: int) -> str | None:
        """The whole turn."""
        return self._text

    def mistake(self, subgoal: int, rng: random.Random) -> str | None:
        """None: a wrong answer would end the episode."""
        return None
