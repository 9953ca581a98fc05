"""What `verl-hier env python_tool --baselines` measures: each family at its lower difficulties."""

from collections.abc import Mapping
from typing import Any

from verl_hier.environments.baselines import TASKS, Baselines
from verl_hier_plugins.environments.python_tool.options import FAMILIES, PythonToolOptions
from verl_hier_plugins.environments.python_tool.tasks import entry_of

DIFFICULTIES = (0, 1, 2)
SLOW = ("zebra_puzzles 2",)
"""What takes minutes to generate."""


def baselines() -> Baselines:
    """Answers without a call of the tool."""
    return Baselines(
        {
            f"{family} {difficulty}": PythonToolOptions((family,), difficulty=difficulty, pool=TASKS)
            for family in FAMILIES
            for difficulty in DIFFICULTIES
            if f"{family} {difficulty}" not in SLOW
        },
        forms=("answer {}",),
        answers=_answers,
    )


def _answers(task: Mapping[str, Any]) -> list[str]:
    return [f"answer {task['answer'] if 'answer' in task else entry_of(task)['answer']}"]
