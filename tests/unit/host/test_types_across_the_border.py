"""mypy follows calls between the core and the plugins: with the project's configuration a wrong one is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# A plugin that calls the core, and a user of a plugin: each with a sound call, and with one of a wrong type.
PLUGIN = """
from verl_hier.credit import group_ids, singletons
from verl_hier.graph.turn_table import TurnTable

def alone(table: TurnTable) -> int:
    return int(singletons(group_ids(table[{column}])).sum())
"""
USER = """
from verl_hier_plugins.estimators.arise import utility

value: float = utility(0.5, {value})
"""


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What one run of mypy says of each planted file."""
    folder = tmp_path_factory.mktemp("planted")
    planted = {
        "sound_plugin": PLUGIN.format(column='"group"'),
        "wrong_plugin": PLUGIN.format(column="7"),
        "sound_user": USER.format(value="1.0"),
        "wrong_user": USER.format(value='"one"'),
    }
    for name, text in planted.items():
        (folder / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--hide-error-context"]
    # What the check of the whole project has left makes this one ten times faster.
    if (ROOT / ".mypy_cache").is_dir():
        shutil.copytree(ROOT / ".mypy_cache", folder / "cache")
    cache = ["--cache-dir", str(folder / "cache")]
    run = subprocess.run(
        [*command, *cache, *(str(folder / f"{name}.py") for name in planted)],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": os.pathsep.join((str(ROOT), str(ROOT / "plugins")))},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    lines = run.stdout.splitlines()
    return {name: [line for line in lines if f"{name}.py" in line and "error:" in line] for name in planted}


@pytest.mark.parametrize("side", ["plugin", "user"])
@pytest.mark.slow
def test_a_sound_call_passes(complaints: dict[str, list[str]], side: str) -> None:
    assert complaints[f"sound_{side}"] == []


@pytest.mark.parametrize("side", ["plugin", "user"])
@pytest.mark.slow
def test_a_wrong_call_across_the_border_is_refused(complaints: dict[str, list[str]], side: str) -> None:
    (refusal,) = complaints[f"wrong_{side}"]
    assert "incompatible type" in refusal or "Invalid index type" in refusal


def test_third_parties_get_the_types() -> None:
    assert (ROOT / "verl_hier" / "py.typed").is_file()
    assert (ROOT / "plugins" / "verl_hier_plugins" / "py.typed").is_file()
    configuration = (ROOT / "pyproject.toml").read_text()
    skipped = [line for line in configuration.splitlines() if line.startswith("module = ")]
    assert skipped and not any("verl_hier" in line for line in skipped)
