"""Panels: which methods are compared on which tasks, from which start and for how many tokens.

A panel is a YAML file; those that are shipped lie in `panels/` of the recipes. See docs/bench.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from verl_hier.errors import RecipeError, did_you_mean
from verl_hier.host.constraints import Count, Positive
from verl_hier.host.options import build_dataclass
from verl_hier.recipe.pairs import folder, joined
from verl_hier.recipe.yaml_files import read_yaml

Words = tuple[str, ...]


@dataclass(frozen=True)
class ColdStart:
    """The small model that all methods of a task start from: it learns the formats of all of them at once.

    Attributes:
        recipes: whose demonstrations it is shown.
        overrides: of all of them.
    """

    recipes: Words
    overrides: Words = ()


@dataclass(frozen=True)
class Task:
    """Methods on one task.

    Attributes:
        title: what tables call it.
        methods: name in tables to a recipe, or to a list of a recipe and the overrides that are the method's own. A
            recipe may be two words, `tree_grpo minigrid`, as on the command line.
        tokens: generated tokens of a run, measurements left out.
        baseline: the method that the others are compared with.
        cold_start: which of the panel's the runs start from; null where the recipes name a model that there is.
        test_every: steps from one measurement to the next.
        held_out: tasks of a measurement.
        overrides: what the task changes in all recipes.
        temperature: of the answers, in training and in measurements.
        rates: learning rates that each method tries with a seed of its own, for a third of the tokens; its runs have
            the better one. None: all methods have that of their recipes.
    """

    title: str
    methods: Mapping[str, str | tuple[str, ...]]
    tokens: Count
    baseline: str = "grpo"
    cold_start: str | None = None
    test_every: Count = 4
    held_out: Count = 128
    overrides: Words = ()
    temperature: Positive = 1.0
    rates: tuple[Positive, ...] = ()

    def recipe(self, method: str) -> tuple[str, Words]:
        """Name of the recipe of a method, and its own overrides."""
        said = self.methods[method]
        first, *own = (said,) if isinstance(said, str) else said
        method, *environment = first.split()
        recipe, rest = joined(method, [*environment, *own])
        assert recipe is not None
        return recipe, tuple(rest)


@dataclass(frozen=True)
class Panel:
    """Tasks with their methods.

    Attributes:
        name: of its file.
        summary: what it is for.
        tasks, cold_starts: by name.
        groups: names for several tasks.
    """

    name: str
    summary: str
    tasks: Mapping[str, Task]
    cold_starts: Mapping[str, ColdStart] = field(default_factory=dict)
    groups: Mapping[str, Words] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, task in self.tasks.items():
            line = f"tasks.{name}"
            if task.cold_start is not None and task.cold_start not in self.cold_starts:
                raise ValueError(f"{line}.cold_start: {task.cold_start!r} is none of `cold_starts`")
            if task.baseline not in task.methods:
                raise ValueError(f"{line}.baseline: {task.baseline!r} is none of its methods")
        for group, names in self.groups.items():
            for name in names:
                if name not in self.tasks:
                    raise ValueError(f"groups.{group}: {name!r} is no task")

    @classmethod
    def find(cls, reference: str) -> Panel:
        """A shipped panel by its name, or one of a user's own by the path of its file.

        Raises:
            RecipeError: when there is none, or a line of it is wrong; the sentence names the line.
        """
        shipped = {path.stem: path for path in sorted((folder() / "panels").glob("*.yaml"))}
        path = shipped.get(reference) or Path(reference)
        if not path.is_file():
            near = did_you_mean(reference, shipped)
            raise RecipeError(f"there is no panel {reference!r}{near}; shipped are {', '.join(shipped)}.")
        content = read_yaml(path)[1]
        if not isinstance(content, Mapping):
            raise RecipeError(f"{path} is no panel: it needs `summary` and `tasks`.")
        found: Panel = build_dataclass(cls, {"name": path.stem, **content}, str(path), "a panel")
        return found

    def chosen(self, names: Sequence[str]) -> list[str]:
        """The tasks of these names, which may be those of groups; all tasks for none.

        Raises:
            RecipeError: for a name that is neither.
        """
        for name in names:
            if name not in self.tasks and name not in self.groups:
                near = did_you_mean(name, [*self.tasks, *self.groups])
                raise RecipeError(f"--tasks: the panel {self.name} has no task {name!r}{near}.")
        every = [each for name in names for each in self.groups.get(name, (name,))]
        return list(dict.fromkeys(every)) or [*self.tasks]
