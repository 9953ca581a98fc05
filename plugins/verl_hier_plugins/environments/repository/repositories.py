"""A small Python package with something wrong in it, its tests, and the hidden cases that decide whether it is mended.

A task says which functions the package has and what is wrong; all else follows from that. The functions come from
`units`, so they run in this process; nothing that a policy writes does.
"""

from __future__ import annotations

import ast
import itertools
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from verl_hier_plugins.environments.repository.mutations import mutants, unwritten
from verl_hier_plugins.environments.repository.units import UNITS
from verl_hier_plugins.environments.repository.workspace import Workspace

UNWRITTEN = -1
"""In place of the number of a mutation: the function has no code yet."""
SEEN_WRONG, SEEN_RIGHT = 2, 2
"""Tests of a function in the workspace at most: on inputs for which it is wrong, and for which it is right."""
HIDDEN_WRONG, HIDDEN_RIGHT = 8, 6
FEWEST_WRONG = 3
"""Hidden cases at least for which a function that is wrong has a wrong result; so many the tests do not show."""
_CANDIDATES = 60


@dataclass(frozen=True)
class Case:
    """A call of a function of the package.

    Attributes:
        module, function: where it is.
        arguments: lists, numbers and texts.
        right: the result of the reference as JSON.
        got: that of the package as the task has it; an exception by its name.
    """

    module: str
    function: str
    arguments: tuple[Any, ...]
    right: str
    got: str

    @property
    def wrong(self) -> bool:
        """Whether the package of the task has another result."""
        return self.right != self.got

    @property
    def call(self) -> str:
        """As Python writes it."""
        return f"{self.function}({', '.join(map(repr, self.arguments))})"

    @property
    def asserted(self) -> str:
        """What a test says of it."""
        value = json.loads(self.right)
        return f"{self.call} {'is' if isinstance(value, bool) else '=='} {value!r}"


@dataclass(frozen=True)
class Repository:
    """What a task is made of.

    Attributes:
        package: its name.
        broken: the workspace that an episode begins with: the package, and the tests that an agent sees.
        reference: the same with the package as it should be.
        failing: the tests in the workspace that fail at first.
        hidden: the cases that decide.
        targets: the functions in which something is wrong, each with its module.
    """

    package: str
    broken: Workspace
    reference: Workspace
    failing: tuple[Case, ...]
    hidden: tuple[Case, ...]
    targets: tuple[tuple[str, str], ...]


def repository_of(task: Mapping[str, Any]) -> Repository | None:
    """The repository of a task; None where what is wrong shows in too few cases or in none of the tests.

    Args:
        task: has `package`, `modules` (names of functions by module), `values` (numbers by function), `changes`
            (function and number of its mutation, or `UNWRITTEN`) and `far` (whether no test of the wrong function shows
            it).
    """
    names = ("package", "modules", "values", "changes", "far")
    return _made(json.dumps({name: task[name] for name in names}, sort_keys=True))


def bugs_of(name: str, values: Mapping[str, int]) -> tuple[ast.FunctionDef, ...]:
    """The bugs that a function with its numbers can have, in the order in which tasks number them."""
    return _bugs(name, tuple(sorted(values.items())))


@lru_cache(1024)
def _bugs(name: str, values: tuple[tuple[str, int], ...]) -> tuple[ast.FunctionDef, ...]:
    return tuple(mutants(UNITS[name].tree(dict(values))))


@lru_cache(512)
def _made(told: str) -> Repository | None:
    task = json.loads(told)
    trees = {name: UNITS[name].tree(values) for name, values in task["values"].items()}
    wrong = dict(trees)
    for name, number in task["changes"]:
        wrong[name] = unwritten(trees[name]) if number == UNWRITTEN else bugs_of(name, task["values"][name])[number]
    rng = random.Random(told)
    changed, right, got = {name for name, _ in task["changes"]}, _functions(trees), _functions(wrong)
    seen: dict[str, list[Case]] = {}
    hidden: list[Case] = []
    for module, functions in sorted(task["modules"].items()):
        seen[module] = []
        for name in functions:
            cases = _cases(module, name, task["values"], rng, right[name], got[name])
            shown, kept = _divided(cases, name in changed, task["far"] and name in changed)
            if name in changed:
                if not _decides(kept):
                    return None
                bugs = [_functions({name: mutant}, right)[name] for mutant in bugs_of(name, task["values"][name])]
                kept += _telling(bugs, kept, [case for case in cases if case not in shown])
            seen[module] += shown
            hidden += kept
    failing = tuple(case for cases in seen.values() for case in cases if case.wrong)
    if not failing or (not task["far"] and not changed <= {case.function for case in failing}):
        return None
    package = task["package"]
    tests = {f"tests/test_{module}.py": _tests(package, module, cases) for module, cases in seen.items()}
    sources = [
        {
            f"{package}/__init__.py": "",
            **{f"{package}/{m}.py": _source(m, task["modules"], each) for m in task["modules"]},
        }
        for each in (wrong, trees)
    ]
    targets = tuple((name, _home(task["modules"], name)) for name, _ in task["changes"])
    broken, reference = (Workspace({**each, **tests}) for each in sources)
    return Repository(package, broken, reference, failing, tuple(hidden), targets)


def _functions(trees: Mapping[str, ast.FunctionDef], others: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Functions that may call each other, and `others`."""
    names: dict[str, Any] = {**(others or {})}
    module = ast.fix_missing_locations(ast.Module(list(trees.values()), []))
    exec(compile(module, "<units>", "exec"), names)
    return {name: names[name] for name in trees}


def _cases(
    module: str, name: str, values: Mapping[str, Mapping[str, int]], rng: random.Random, right: Any, got: Any
) -> list[Case]:
    """Cases of a function in a random order."""
    unit = UNITS[name]
    numbers = [number for each in (name, *unit.calls) for number in values[each].values()]
    inputs = list(itertools.product(*(_inputs(kind, numbers, rng) for kind in unit.arguments.split())))
    rng.shuffle(inputs)
    return [Case(module, name, each, _result(right, each), _result(got, each)) for each in inputs[:_CANDIDATES]]


def _divided(cases: Sequence[Case], changed: bool, far: bool) -> tuple[list[Case], list[Case]]:
    """The cases of a function that are tests in the workspace, and those that are hidden."""
    wrong, fine = [each for each in cases if each.wrong], [each for each in cases if not each.wrong]
    number = 0 if far else max(0, min(SEEN_WRONG, len(wrong) - FEWEST_WRONG * changed))
    shown = [*wrong[:number], *fine[:SEEN_RIGHT]]
    some = 1 if changed else 2  # of functions that are right, half as many
    return shown, [
        *wrong[number : number + HIDDEN_WRONG // some],
        *fine[SEEN_RIGHT : SEEN_RIGHT + HIDDEN_RIGHT // some],
    ]


def _decides(hidden: Sequence[Case]) -> bool:
    """Whether hidden cases tell a function that is right from one that is not, and from one that knows no more than the
    tests or always gives the same."""
    return sum(case.wrong for case in hidden) >= FEWEST_WRONG and len({case.right for case in hidden}) > 1


def _telling(bugs: Iterable[Any], hidden: Sequence[Case], others: Sequence[Case]) -> list[Case]:
    """Further cases, so that each bug that a function could have shows in a hidden case, where one shows it at all."""
    added: list[Case] = []
    for bug in bugs:
        if all(_result(bug, case.arguments) == case.right for case in (*hidden, *added)):
            added += itertools.islice((case for case in others if _result(bug, case.arguments) != case.right), 1)
    return added


def _inputs(kind: str, numbers: Sequence[int], rng: random.Random) -> list[Any]:
    near = list(dict.fromkeys(number + step for number in numbers for step in (0, -1, 1, 2)))
    if kind in ("n", "m"):
        return list(dict.fromkeys([*near, *rng.sample(range(-20, 90), 20), 0, 1]))
    if kind == "xs":
        pool = [*range(-4, 14), *near]
        return [[], *([rng.choice(pool) for _ in range(rng.randint(1, 6))] for _ in range(40))]
    return ["", *("".join(rng.choice("aabcdeeioxyz") for _ in range(rng.randint(1, 12))) for _ in range(40))]


def _result(function: Any, arguments: Sequence[Any]) -> str:
    try:
        return json.dumps(function(*(list(each) if isinstance(each, list) else each for each in arguments)))
    except Exception as error:
        return type(error).__name__


def _home(modules: Mapping[str, Sequence[str]], name: str) -> str:
    return next(module for module, functions in modules.items() if name in functions)


def _source(module: str, modules: Mapping[str, Sequence[str]], trees: Mapping[str, ast.FunctionDef]) -> str:
    """The text of a module of the package."""
    called = sorted({name for function in modules[module] for name in UNITS[function].calls} - set(modules[module]))
    imports = [f"from .{_home(modules, name)} import {name}" for name in called]
    functions = [ast.unparse(trees[name]) for name in modules[module]]
    return "\n\n\n".join(["\n".join(imports), *functions] if imports else functions) + "\n"


def _tests(package: str, module: str, cases: Sequence[Case]) -> str:
    """The text of the tests of a module."""
    counts: dict[str, int] = {}
    texts = []
    for case in cases:
        counts[case.function] = counts.get(case.function, 0) + 1
        texts.append(f"def test_{case.function}_{counts[case.function]}():\n    assert {case.asserted}")
    return "\n\n\n".join([f"from {package}.{module} import {', '.join(sorted(counts))}", *texts]) + "\n"
