"""What the check says of verl's tools before a run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fixtures.verl_tool_recipe import write_tools
from verl_hier.errors import RecipeError
from verl_hier.recipe.checks.tools import check_function_tools, check_tool_config, check_tool_settings, module_file
from verl_hier_plugins.environments.verl_tools import SPEC


def recipe(**settings: Any) -> Any:
    config = {"actor_rollout_ref": {"rollout": {"multi_turn": settings}}}
    return SimpleNamespace(config=config, parts=SimpleNamespace(environment=SimpleNamespace(spec=SPEC)))


def refused(check: Any, **settings: Any) -> str:
    with pytest.raises(RecipeError) as caught:
        check(recipe(**settings))
    return str(caught.value)


def test_tools_of_a_user_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    there = recipe(**write_tools(tmp_path))
    for check in (check_tool_settings, check_tool_config, check_function_tools):
        check(there)
    for line, file in write_tools(tmp_path).items():
        check_tool_settings(recipe(**{line: file}))
    assert "user_tools" not in sys.modules, "the check imports nothing"


@pytest.mark.parametrize(
    ("tool", "sentence"),
    [
        (
            "class_name: verl.tools.gsm8k_tool.Gsm8kTool\n    config: {type: native}",
            "is gone: verl has no tools of its own",
        ),
        (
            "class_name: verl.tools.mcp_base_tool.MCPBaseTool\n    config: {type: mcp}",
            "hier.environment.name: mcp calls",
        ),
        ("class_name: nowhere.at_all.Tool\n    config: {type: native}", "there is no module 'nowhere.at_all'"),
        ("class_name: json.decoder.Tool\n    config: {type: native}", "has no class 'Tool'"),
        ("class_name: json.decoder.JSONDecoder\n    config: {type: native}", "has no schema; write `tool_schema`"),
        ("class_name: json.decoder.JSONDecoder", "needs `config: {type: native}`, got None"),
        ("class_name: json.decoder.JSONDecoder\n    config: [native]", "needs `config: {type: native}`, got None"),
    ],
)
def test_a_tool_that_cannot_be_made(tmp_path: Path, tool: str, sentence: str) -> None:
    (tmp_path / "tools.yaml").write_text(f"tools:\n  - {tool}\n")
    said = refused(check_tool_config, tool_config_path=f"{tmp_path}/tools.yaml")
    assert sentence in said and said.startswith("actor_rollout_ref.rollout.multi_turn.tool_config_path: ")


def test_files_and_settings_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "list.yaml").write_text("- 1\n")
    missing = f"{tmp_path}/missing"
    assert "there is no file" in refused(check_tool_config, tool_config_path=missing)
    assert "has no list `tools`" in refused(check_tool_config, tool_config_path=f"{tmp_path}/list.yaml")
    assert "there is no file" in refused(check_function_tools, function_tool_path=missing)
    assert "no function with" in refused(check_function_tools, function_tool_path=f"{tmp_path}/empty.py")
    (tmp_path / "deep.yaml").write_text("a: " + "[" * 5000 + "]" * 5000)
    assert "nested too deeply" in refused(check_tool_config, tool_config_path=f"{tmp_path}/deep.yaml")
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refused(check_tool_config, tool_config_path=f"{tmp_path}/pipe")
    assert "not a regular file" in refused(check_function_tools, function_tool_path=f"{tmp_path}/pipe")
    assert "has no tool; name" in refused(check_tool_settings)
    assert "no interactions since 0.8" in refused(check_tool_settings, interaction_config_path="x.yaml")


def test_modules_are_found_without_importing_them() -> None:
    assert module_file("verl.tools.base_tool") and module_file("json.decoder") and module_file("verl.tools")
    assert module_file("verl.tools.search_tool") is None and module_file("no_such_package") is None
