"""`verl-hier env --baselines`: which tasks are measured, and the file that keeps what was measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from verl_hier.environments.baselines import Baselines, Measured, measure
from verl_hier.environments.blocking import build
from verl_hier.errors import FileError, RecipeError
from verl_hier.graph.atomic_write import atomic_write
from verl_hier.graph.bounded_reading import read_json
from verl_hier.host.manager import PluginHost
from verl_hier.host.specs import EnvironmentSpec
from verl_hier.ops.live_episode import recipe_for
from verl_hier.recipe.composed import ComposedRecipe

RECIPE = "its recipe's tasks"
FEWEST = 20
"""Tasks with which a family can be measured."""
Source = tuple[EnvironmentSpec, Baselines]


def sources(
    environment: str | None, recipe: str | None, overrides: Sequence[str], plugins: Sequence[str]
) -> tuple[str, Source]:
    """What is measured: the variants that an environment names, or the tasks of a recipe.

    Args:
        environment: name of the environment; None for that of the recipe.
        recipe: name or file of a recipe, measured alone.
        overrides: Hydra overrides; with any, the environment's recipe is measured alone.
        plugins: plugins to load besides the built-in ones.

    Returns:
        The environment's name, its spec, and what is measured of it.

    Raises:
        RecipeError: when neither is given, or when the environment has no tasks of its own.
    """
    if environment is None and recipe is None:
        raise RecipeError("name an environment (`verl-hier environments` lists them), or a recipe with --recipe.")
    if recipe is None and not overrides:
        spec = PluginHost.load({"builtin": True, **dict.fromkeys(plugins, True)}).spec("environment", str(environment))
        assert isinstance(spec, EnvironmentSpec)
        if spec.baselines is not None:
            return spec.name, (spec, spec.baselines())
    if recipe is not None:
        chosen = ComposedRecipe.named(recipe, list(overrides))
    else:
        chosen = recipe_for(str(environment), None, overrides, plugins)
    part = chosen.parts.environment
    assert isinstance(part.spec, EnvironmentSpec)
    if part.spec.tasks is None:
        raise RecipeError(f"hier.environment.name: {part.spec.name} has no tasks of its own that could be measured.")
    known = part.spec.baselines() if part.spec.baselines is not None else Baselines({})
    return part.spec.name, (part.spec, Baselines({RECIPE: part.options}, known.forms, known.answers))


def measured(source: Source) -> Iterator[tuple[str, Measured]]:
    """The name of each variant, and what was measured of it."""
    spec, baselines = source
    for name, options in baselines.variants.items():
        world = build(spec, options)
        try:
            yield name, measure(world, _tasks(spec, options), baselines)
        finally:
            world.close()


def _tasks(spec: EnvironmentSpec, options: Any) -> list[dict[str, Any]]:
    """The tasks for training; fewer than the options say where a family has fewer."""
    assert spec.tasks is not None
    try:
        return spec.tasks(options, "train")
    except RecipeError:
        if getattr(options, "pool", 0) < FEWEST:
            raise
        return _tasks(spec, replace(options, pool=options.pool // 2))


def kept(file: Path | None) -> dict[str, Any]:
    """What a file already holds: `{environment: {variant: {tasks, chance, won, best}}}`.

    Raises:
        FileError: when it holds something else.
    """
    try:
        known = read_json(file) if file is not None and file.exists() else {}
    except FileError as error:
        raise FileError(f"--out: {error}") from error
    if not isinstance(known, dict) or not all(isinstance(each, dict) for each in known.values()):
        raise FileError(f"--out: {file} holds no measurements of this command; name another file.")
    return known


def write(file: Path, environment: str, variant: str, result: Measured) -> None:
    """Add a measurement to a file, see `kept`."""
    known = kept(file)
    known.setdefault(environment, {})[variant] = _rounded(asdict(result))
    with atomic_write(file) as beside:
        beside.write_text(json.dumps(known, indent=1, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return round(value, 3) if isinstance(value, float) else value
