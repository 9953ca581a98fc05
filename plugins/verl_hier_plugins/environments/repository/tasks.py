"""Task pools of `repository`: a package, what is wrong in it, and what the agent is told."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from verl_hier.environments.splits import draw_tasks, split_of
from verl_hier_plugins.environments.repository.options import RepositoryOptions
from verl_hier_plugins.environments.repository.repositories import UNWRITTEN, Repository, bugs_of, repository_of
from verl_hier_plugins.environments.repository.spelling import spell
from verl_hier_plugins.environments.repository.units import UNITS, Unit

NAME = "repository"
PACKAGES = ("garden", "harbour", "kitchen", "library", "market", "museum", "orchard", "railway", "theatre", "workshop")
MODULES = ("core", "rules", "rates", "tools", "checks", "parts", "shapes", "steps")
MODULES_BY_LEVEL = (2, 3, 3, 4)
FUNCTIONS_BY_LEVEL = (2, 4, 5, 6)
UNWRITTEN_FROM, FAR_FROM, TWO_FROM = 1, 2, 3
"""From which level on functions may have no code, bugs may show in another module only, and two things are wrong."""


def tasks(options: RepositoryOptions, split: str) -> list[dict[str, Any]]:
    """The tasks of a split, in a fixed order: `{instruction, data_source, id, level}` and what `repository_of` reads.

    No function (with its numbers) is wrong in tasks of two splits, whatever is wrong with it.
    """
    size = options.pool if split == "train" else options.validation

    def make(draw: int, number: int) -> tuple[str, dict[str, Any]] | None:
        level = options.levels[number % len(options.levels)]
        rng = random.Random(f"repository-{options.seed}-{draw}")
        told = _drawn(level, rng, split)
        if told is None:
            return None
        found = repository_of(told)
        if found is None:
            return None
        # `draw_tasks` looks at one function only; `_drawn` has looked at all.
        fingerprint = _fingerprint(told, told["changes"][0][0])
        text = instruction(found, told, options)
        return fingerprint, {"instruction": text, "data_source": NAME, "level": level, **told}

    return draw_tasks(make, split, size, NAME)


def instruction(made: Repository, told: Mapping[str, Any], options: RepositoryOptions) -> str:
    """The task sentence for the policy."""
    case = made.failing[0]
    if options.spelling == "words":
        return f"{case.module} : {spell(case.call)} is {spell(case.right)} not {spell(case.got)}"
    test = f"`assert {case.asserted}` in tests/test_{case.module}.py"
    if len(told["changes"]) > 1:
        fault = "Some tests of the package `{}` fail"
    elif told["changes"][0][1] == UNWRITTEN:
        fault = "A function of the package `{}` has no code yet, so that " + test + " fails"
    else:
        fault = "The package `{}` has a bug: " + test + " fails"
    return f"{fault.format(made.package)}. Mend the package, then submit it: hidden tests decide."


def _drawn(level: int, rng: random.Random, split: str) -> dict[str, Any] | None:
    """Functions, modules and changes; None where one of the functions that are changed belongs to another split."""
    known = [unit for unit in UNITS.values() if unit.level <= level]
    far = level >= FAR_FROM and level < TWO_FROM and rng.random() < 0.5
    chosen = _chosen(known, FUNCTIONS_BY_LEVEL[level], rng, far)
    values = {name: UNITS[name].draw(rng) for name in chosen}
    changed = _changed(chosen, far, 2 if level >= TWO_FROM else 1, rng)
    told: dict[str, Any] = {"values": values, "far": far, "changes": []}
    for name in changed:
        told["changes"].append([name, 0])
        if split_of(_fingerprint(told, name)) != split:
            return None
    for change in told["changes"]:
        bugs = len(bugs_of(change[0], values[change[0]]))
        empty = level >= UNWRITTEN_FROM and not far and rng.random() < 0.3
        change[1] = UNWRITTEN if empty else rng.randrange(bugs)
    modules = rng.sample(MODULES, MODULES_BY_LEVEL[level])
    told["package"] = rng.choice(PACKAGES)
    # Those that call others share the last module, so that no module imports itself through another.
    calling = [name for name in chosen if UNITS[name].calls]
    others, homes = [name for name in chosen if name not in calling], modules[bool(calling) :]
    told["modules"] = {module: others[number :: len(homes)] for number, module in enumerate(homes)}
    if calling:
        told["modules"][modules[0]] = calling
    return told


def _chosen(known: Sequence[Unit], size: int, rng: random.Random, far: bool) -> list[str]:
    """Names of functions of a package, those that others call in front of these."""
    chosen: list[str] = []
    if far:
        caller = rng.choice([unit for unit in known if unit.calls])
        chosen += [*caller.calls, caller.name]
    while len(chosen) < size:
        unit = rng.choice(known)
        chosen += [name for name in (*unit.calls, unit.name) if name not in chosen]
    return chosen


def _changed(chosen: Sequence[str], far: bool, number: int, rng: random.Random) -> list[str]:
    """The functions in which something will be wrong; none of several calls another of them."""
    if far:
        caller = next(name for name in chosen if UNITS[name].calls)
        return [rng.choice(UNITS[caller].calls)]
    found: list[str] = []
    for name in rng.sample(chosen, len(chosen)):
        related = any(name in UNITS[other].calls or other in UNITS[name].calls for other in found)
        if len(found) < number and not related:
            found.append(name)
    return found


def _fingerprint(told: Mapping[str, Any], name: str) -> str:
    return f"{name} {json.dumps(told['values'][name], sort_keys=True)}"
