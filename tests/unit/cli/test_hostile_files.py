"""Files of a stranger through every command that reads one: a sentence, no traceback, no hang, nothing false read."""

from __future__ import annotations

import random

import pytest

from tests.fixtures import hostile_commands, hostile_files

CHANGED = {"credit": 30, "import --from chat": 15, "import --from verl": 15, "check": 15}
"""Files that are changed at random; 4 for the other commands. `scripts/fuzz.py files` makes more of all."""
LONG = ("credit --out", "export", "replay", "env python_tool", "env search")
"""Commands that read as others do, and take long to begin."""
QUICK = ("compare", "sft", "conformance")
"""Commands that `scripts/test` tries; `--all` tries the others that are not long."""
TARGETS = (
    *("credit", "credit --out", "export", "replay", "import --from chat", "import --from verl", "check", "eval", "sft"),
    "compare",
    *("conformance", "lab run", "env python_tool", "env search"),
)


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    return hostile_commands.targets(tmp_path_factory.mktemp("models"))


def test_every_target_is_tried(targets):
    assert set(targets) == set(TARGETS)


def tier(name):
    return pytest.mark.long if name in LONG else () if name in QUICK else pytest.mark.slow


@pytest.mark.parametrize("name", [pytest.param(name, marks=tier(name)) for name in TARGETS])
def test_hostile_files(name, targets, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    target, problems = targets[name], []
    for file in target.files(tmp_path, random.Random(name), CHANGED.get(name, 4)):
        found = hostile_files.problem(target.arguments(file, tmp_path)) or target.judge(file)
        if found:
            problems.append(f"{file.name}: {found}")
    assert not problems, "\n".join(problems)
    assert not (tmp_path / "pwned").exists()
