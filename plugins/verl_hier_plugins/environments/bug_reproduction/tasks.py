"""Task pools of `bug_reproduction`: a function, one of its bugs, and the bug report."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from verl_hier.environments.splits import Balance, draw_tasks, split_of
from verl_hier_plugins.environments.bug_reproduction.cases import cases, right_tests
from verl_hier_plugins.environments.bug_reproduction.checks import spell
from verl_hier_plugins.environments.bug_reproduction.options import BugReproductionOptions
from verl_hier_plugins.environments.bug_reproduction.templates import TEMPLATES

NAME = "bug_reproduction"
CONDITION_UP_TO = 1
EFFECT_UP_TO = 2
MORE = 0.015
"""How much more than by chance a test may be right: six constant tests would win six times as much."""


def tasks(options: BugReproductionOptions, split: str) -> list[dict[str, Any]]:
    """The tasks of a split, in a fixed order: `{instruction, data_source, id, function, values, bug, level}`.

    No function (template and numbers) occurs in two splits, whichever of its bugs a task has.
    """
    size = options.pool if split == "train" else options.validation
    balances = [Balance(MORE) for _ in options.levels]
    known = [[each for each in TEMPLATES.values() if each.level <= level] for level in options.levels]

    def make(draw: int, number: int) -> tuple[str, dict[str, Any]] | None:
        turn = number % len(options.levels)
        level = options.levels[turn]
        rng = random.Random(f"bug-{options.seed}-{draw}")
        template = rng.choice(known[turn])
        values = {name: rng.randint(*template.ranges[name]) for name in sorted(template.ranges)}
        bug = rng.randrange(len(template.bugs))
        fingerprint = f"{template.name} {sorted(values.items())}"
        if split_of(fingerprint) != split:
            # `draw_tasks` checks this as well, but here it saves the search for cases.
            return None
        if len({case.shows for case in cases(template.name, values, bug)}) < 2:
            # With these numbers the bug shows always or never.
            return None
        task = {"function": template.name, "values": values, "bug": bug, "level": level}
        if not balances[turn].admits(right_tests(template.name, values, bug), number):
            return None
        return fingerprint, {"instruction": instruction(task, options), "data_source": NAME, **task}

    return draw_tasks(make, split, size, NAME)


def instruction(task: Mapping[str, Any], options: BugReproductionOptions) -> str:
    """The task sentence for the policy."""
    template = TEMPLATES[task["function"]]
    values = task["values"]
    does = template.does.format(**values)
    report = _report(task)
    arguments = template.arguments.split()
    if options.spelling == "words":
        return f"f of {' and '.join(arguments)} : {spell(does.replace(',', ''))} | bug : {spell(report)}"
    text = f"f({', '.join(arguments)}) should return {does.replace(' ,', ',')}. Bug report: {report}."
    if options.show_code:
        text += f"\nThe buggy function:\n{template.source(values, task['bug'])}"
    return text


def _report(task: Mapping[str, Any]) -> str:
    template = TEMPLATES[task["function"]]
    if task["level"] <= CONDITION_UP_TO:
        when = template.bugs[task["bug"]].when.format(**task["values"])
        return f"the result is wrong when {when}"
    return f"the result is sometimes {_effect(task)}" if task["level"] <= EFFECT_UP_TO else "f has a bug"


def _effect(task: Mapping[str, Any]) -> str:
    """The effect of the bug on the results of all inputs."""
    shown = [case for case in cases(task["function"], task["values"], task["bug"]) if case.shows]
    pairs = [(case.correct, case.buggy) for case in shown]
    if all(isinstance(value, bool) for pair in pairs for value in pair):
        kinds = {f"{wrong} instead of {right}".lower() for right, wrong in pairs}
    elif all(isinstance(value, int) for pair in pairs for value in pair):
        kinds = {"too big" if wrong > right else "too small" for right, wrong in pairs}
    else:
        kinds = set()
    return kinds.pop() if len(kinds) == 1 else "wrong"
