"""Files of a stranger through every command that reads one: a sentence, no traceback, no hang, nothing false read."""

from __future__ import annotations

import random

import pytest

from tests.fixtures import hostile_commands

CHANGED = {"credit": 12, "import --from chat": 8, "import --from verl": 8, "check": 6}
"""Files that are changed at random; 4 for the other commands. `scripts/fuzz.py files` makes more of all."""
QUICK = ("compare", "sft", "conformance")
"""Commands that `scripts/test` tries."""
SLOW = ("credit", "import --from chat", "import --from verl", "check", "eval", "lab run")
"""Commands that `--all` tries as well."""
LONG = (
    *("credit --out", "credit --recipe", "export", "export --to atif", "convert"),
    *("export --to sft", "export --to pairs", "export --to states", "credit --blame", "view --text", "view --html"),
    *("view a run", "report of a run", "replay a run", "compare runs", "eval a run", "train --resume"),
    *("train", "eval expert", "demos", "distill", "replay", "tools of a recipe", "env --baselines"),
    *("env python_tool", "env search", "env mcp", "env gateway", "env openenv"),
    *("items of shop", "attributes of shop", "instructions of shop"),
)
"""Commands that read as others do, and take long to begin."""


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    return hostile_commands.targets(tmp_path_factory.mktemp("models"))


def test_every_target_is_tried(targets):
    assert sorted(targets) == sorted((*QUICK, *SLOW, *LONG))


TIERS = (
    *QUICK,
    *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW),
    *(pytest.param(name, marks=pytest.mark.long) for name in LONG),
)


@pytest.mark.parametrize("name", TIERS)
def test_hostile_files(name, targets, tmp_path):
    target, problems = targets[name], []
    for file in target.files(tmp_path, random.Random(name), CHANGED.get(name, 4)):
        found = target.problem(file, tmp_path)
        if found:
            problems.append(f"{file.name}: {found}")
    assert not problems, "\n".join(problems)
    assert not (tmp_path / "pwned").exists()
