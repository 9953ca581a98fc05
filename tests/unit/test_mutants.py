"""What tries the tests: changes are made where the code runs, and are caught, survive or end at a limit of time."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fixtures import mutant_runs
from tests.fixtures.mutant_runs import adopt_code, verdict_of, wait_for
from tests.fixtures.mutations import TUNED, mutants_of, mutants_of_room, sample

ROOT = Path(__file__).parents[2]
MODULE = """\
from __future__ import annotations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os as system

LIMIT = 3


def small(value: int | None, more: float = 0.5) -> bool:
    if isinstance(value, int | float) and not more:  # not here
        return value + 1 < LIMIT or "é" in f"{value - 1}"
    return [each for each in (value,) if each] == [-more].astype(float, copy=False)

class Taker(Protocol):
    def take(self, most: int = 3) -> bool:
        '''What somebody else writes; not here.'''
        ...
"""


def test_each_place_that_runs_is_changed_and_no_other() -> None:
    changes = [(each.old.strip(), each.new or "nothing", each.at_import) for each in mutants_of("a.py", MODULE)]
    assert sorted(changes) == sorted(
        [
            *[("3", "4", True), ("0.5", "1.5", True)],
            *[("and", "or", False), ("not", "nothing", False), ("or", "and", False), ("in", "not in", False)],
            *[("+", "-", False), ("1", "2", False), ("<", "<=", False), ("==", "!=", False), ("-", "nothing", False)],
            ("each", "(not each)", False),
        ]
    )
    for mutant in mutants_of("a.py", MODULE):
        changed = mutant.apply(MODULE)
        compile(changed, "a.py", "exec")
        (place,) = [
            n for n, (a, b) in enumerate(zip(MODULE.split("\n"), changed.split("\n"), strict=True), 1) if a != b
        ]
        assert place in mutant.lines


def test_what_was_tuned_or_is_not_told_is_left_alone() -> None:
    source = "BLOCK = 4096\nOTHER = 1\nzip(a, b, strict=True)\nzip(a, strict=False)\nrun(timeout=60, daemon=x + 1)\n"
    changes = {each.key.split(": ", 1)[1] for each in mutants_of("verl_hier/training/ledger.py", source)}
    assert changes == {
        "OTHER = 1 [1 -> 2]",
        "zip(a, strict=False) [False -> True]",
        *("run(timeout=60, daemon=x + 1) [+ -> -]", "run(timeout=60, daemon=x + 1) [1 -> 2]"),
    }
    assert "BLOCK = 4096 [4096 -> 4097]" in {each.key.split(": ", 1)[1] for each in mutants_of("a.py", source)}


@pytest.mark.parametrize("path", TUNED)
def test_tuned_constants_are_there(path: str) -> None:
    assigned = [
        node for node in ast.parse((ROOT / "verl_hier" / path).read_text()).body if isinstance(node, ast.Assign)
    ]
    names = {each.id for node in assigned for each in ast.walk(node) if isinstance(each, ast.Name)}
    assert {*TUNED[path].split()} <= names


def test_keys_tell_changes_apart_and_do_not_move_with_lines() -> None:
    twice = "def f(a):\n    return a + 1 + 1\n"
    keys = [each.key for each in mutants_of("a.py", twice)]
    assert len({*keys}) == len(keys) == 4
    assert keys == [each.key for each in mutants_of("a.py", "\n\nx = None\n" + twice)]
    assert keys[0] != mutants_of("b.py", twice)[0].key


def test_a_sample_keeps_what_another_modules_change_does_not_touch() -> None:
    mutants = mutants_of("a.py", "x = 1\n" * 3 + MODULE)
    few = sample(mutants, 5, seed=1)
    assert few == sample([*mutants[2:], *mutants[:2]], 5, seed=1) != sample(mutants, 5, seed=2)
    left = [each for each in mutants if each is not few[0]]
    assert sample(left, 4, seed=1) == few[1:]


@pytest.mark.parametrize(("code", "verdict"), [("time.sleep(60)", "timed out"), ("time.sleep(0.1)", "survived")])
def test_a_process_that_waits_for_nothing_is_ended_before_its_time(monkeypatch, code: str, verdict: str) -> None:
    monkeypatch.setattr(mutant_runs, "STANDSTILL", 3)
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-c", f"import time; {code}"], start_new_session=True)
    assert verdict_of(wait_for(process.pid, 600), "")["status"] == verdict
    assert time.monotonic() - began < 50


def test_functions_that_live_take_the_changed_code(tmp_path: Path) -> None:
    file = tmp_path / "living.py"
    file.write_text("def outer(n):\n    def inner(x):\n        return x + n\n    return inner\nkept = outer(1)\n")
    spec = importlib.util.spec_from_file_location("living", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.kept(5) == 6 and module.outer(2)(5) == 7
    adopt_code(str(file), file.read_text().replace("+", "-"))
    assert module.kept(5) == 4 and module.outer(2)(5) == 3


def test_verdicts() -> None:
    assert verdict_of(0, "") == {"status": "survived"}
    assert verdict_of(0, "a::b") == {"status": "caught", "by": "a::b"}
    assert verdict_of(256, "")["status"] == verdict_of(11, "")["status"] == "caught"
    assert verdict_of(None, "")["status"] == verdict_of(24, "")["status"] == "timed out"


def test_a_change_that_is_said_to_be_equivalent_exists_and_has_a_reason() -> None:
    reasons = json.loads((ROOT / "tests/equivalent_mutants.json").read_text(encoding="utf-8"))
    rooms = {key.split("/")[1] for key in reasons}
    known = {mutant.key for room in rooms for mutant in mutants_of_room(ROOT, room)}
    assert not reasons.keys() - known, "the code has changed: take the entry out"
    assert all(len(reason.split()) > 3 for reason in reasons.values())


@pytest.mark.long
def test_a_few_changes_are_tried() -> None:
    command = [sys.executable, "scripts/mutants.py", "--rooms", "graph", "credit", "--count", "6", "--seed", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (total,) = [line.split() for line in done.stdout.splitlines() if line.startswith("   ") and len(line.split()) == 5]
    assert sum(map(int, total)) == 6 and total[-1] == "0", "every change has a verdict"
