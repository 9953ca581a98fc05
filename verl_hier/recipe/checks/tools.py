"""Tools of verl: files, classes and schemas of a tool_config_path, and what verl has no more."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_hier.errors import FileError, RecipeError
from verl_hier.graph.bounded_reading import read_text
from verl_hier.recipe.checks.rule import rule, value
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.yaml_files import LARGEST, read_yaml

LINE = "actor_rollout_ref.rollout.multi_turn"


@rule
def check_tool_settings(recipe: ComposedRecipe) -> None:
    """Refuse an environment of verl's tools without a tool, and settings of verl 0.7 that verl has no more."""
    spec, settings = recipe.parts.environment.spec, value(recipe.config, LINE) or {}
    if settings.get("interaction_config_path"):
        raise RecipeError(
            f"{LINE}.interaction_config_path: verl has no interactions since 0.8; make the other side a tool, or an "
            "environment of yours."
        )
    if spec.in_worker and not (settings.get("tool_config_path") or settings.get("function_tool_path")):
        raise RecipeError(
            f"{LINE}: hier.environment.name: {spec.name} has no tool; name the file of yours in `tool_config_path` or "
            "`function_tool_path`."
        )


@rule
def check_tool_config(recipe: ComposedRecipe) -> None:
    """Refuse a tool that cannot be made: a class that is not there, one of verl 0.7 that is gone, or no schema."""
    path = value(recipe.config, f"{LINE}.tool_config_path")
    if not path:
        return
    try:
        _, read = read_yaml(Path(str(path)).expanduser())
    except FileError as error:
        raise RecipeError(f"{LINE}.tool_config_path: {error}") from error
    tools = read.get("tools") if isinstance(read, Mapping) else None
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise RecipeError(f"{LINE}.tool_config_path: {path} has no list `tools`.")
    for tool in tools:
        _check_tool(tool, str(path))


@rule
def check_function_tools(recipe: ComposedRecipe) -> None:
    """Refuse a file of function tools that is not there, or has none."""
    path = value(recipe.config, f"{LINE}.function_tool_path")
    if not path:
        return
    try:
        source = read_text(Path(str(path)).expanduser(), LARGEST)
    except FileError as error:
        raise RecipeError(f"{LINE}.function_tool_path: {error}") from error
    if "function_tool" not in source:
        raise RecipeError(f"{LINE}.function_tool_path: {path} has no function with `@function_tool`.")


def _check_tool(tool: Mapping[str, Any], path: str) -> None:
    line, name = f"{LINE}.tool_config_path: {path}", str(tool.get("class_name", ""))
    config = tool.get("config")
    kind = config.get("type") if isinstance(config, Mapping) else None
    if kind == "mcp":
        raise RecipeError(
            f"{line}: {name} has `type: mcp`, which verl has no more since 0.8; hier.environment.name: mcp calls the "
            "tools of the server."
        )
    if kind != "native":
        raise RecipeError(f"{line}: {name or 'a tool'} needs `config: {{type: native}}`, got {kind!r}.")
    module, _, class_name = name.rpartition(".")
    file = module_file(module) if module else None
    if file is None and module.startswith("verl."):
        raise RecipeError(
            f"{line}: {name} is gone: verl has no tools of its own since 0.8, only the classes to write some; copy its "
            "file from verl 0.7 into your project, with absolute imports, and name it there."
        )
    if file is None:
        raise RecipeError(f"{line}: there is no module {module!r} for the class {name!r}; is its folder on PYTHONPATH?")
    source = file.read_text(errors="replace") if file.suffix == ".py" else ""
    if source and class_name not in source:
        raise RecipeError(f"{line}: {file} has no class {class_name!r}.")
    if source and not tool.get("tool_schema") and "get_openai_tool_schema" not in source:
        raise RecipeError(
            f"{line}: the tool {name} has no schema; write `tool_schema` beside its `class_name`, or a method "
            "`get_openai_tool_schema`."
        )


def module_file(module: str) -> Path | None:
    """The file of a module, found without importing it or the packages that it is in; None when there is none."""
    top, *inner = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return None
    if not inner:
        return Path(spec.origin) if spec.origin else None
    for folder in spec.submodule_search_locations or ():
        place = Path(folder, *inner)
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                return file
    known = sys.modules.get(module)
    return Path(known.__file__) if known is not None and known.__file__ else None
