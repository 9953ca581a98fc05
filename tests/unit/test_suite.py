"""Few runs of the real trainer at a time, however the tests are started."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.fixtures import long_tests
from tests.fixtures.kept_models import MAKERS, kept_models
from tests.fixtures.trainer import ROOT, SIDE_BY_SIDE, trainer_slot


def test_a_trainer_too_many_fails_at_once(tmp_path: Path) -> None:
    another = f"""
from pathlib import Path
from tests.fixtures.trainer import trainer_slot
with trainer_slot(Path({str(tmp_path)!r})):
    print("runs")
"""

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", another], cwd=ROOT, capture_output=True, text=True)

    with trainer_slot(tmp_path):
        assert run().stdout == "runs\n"
        with trainer_slot(tmp_path):
            assert "2 other runs of the trainer are under way" in run().stderr
            with pytest.raises(RuntimeError, match="-n 2 at most"), trainer_slot(tmp_path):
                pass
    assert run().stdout == "runs\n"


def test_the_script_gives_each_process_one_trainer_without_relying_on_marks() -> None:
    """pytest 9.2 does not hand marks that a hook adds to pytest-xdist, so `xdist_group` serialises nothing."""
    script = (ROOT / "scripts/test").read_text()
    pytests = re.findall(r"^check .* (pytest .*)$", script, re.MULTILINE)
    assert len(pytests) == 2
    parallel, trainer = pytests
    assert " -n 3 " in parallel and "tests/unit tests/contract" in parallel
    assert "tests/e2e" in trainer and f" -n {SIDE_BY_SIDE} --dist loadfile" in trainer
    assert "loadgroup" not in script
    sources = [file for file in (ROOT / "tests").rglob("*.py") if file != Path(__file__)]
    assert not [file for file in sources if "xdist_group" in file.read_text()]


OUTSIDE = r"""\.\./|/ "shared"|shared/conformance|open\("/tmp"""
WRITES_SUCH_PATHS = (
    *("hostile_commands.py", "hostile_files.py", "test_hostile_files.py"),
    *("test_cheats_in_games.py", "test_keeper.py", "test_browser.py", "test_server.py", "test_shop.py"),
    "test_mcp.py",
)
"""They put such paths into files and links, to see them refused or followed no further."""


@pytest.mark.parametrize("file", sorted((ROOT / "tests").rglob("*.py")), ids=lambda file: str(file.relative_to(ROOT)))
def test_no_test_looks_outside_of_the_checkout(file: Path) -> None:
    """What tests read is tracked, so that a bare clone runs all of them."""
    if file == Path(__file__):
        return
    source = file.read_text()
    upwards = [int(n) for n in re.findall(r"__file__\)(?:\.resolve\(\))?\.parents\[(\d+)\]", source)]
    assert all(n < len(file.relative_to(ROOT).parts) for n in upwards), "a path above the checkout"
    outside = r"""/ "shared"|shared/conformance|open\("/tmp""" if file.name in WRITES_SUCH_PATHS else OUTSIDE
    assert not re.findall(outside, source)
    assert not re.findall(r"skip\w*\([^\n]*(?:is_dir|is_file|exists)\(", source), "a skip because of a missing file"


def test_long_tests_that_passed_on_this_commit_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def commit(text: str) -> None:
        (tmp_path / "code.py").write_text(text)
        long_tests.git("add", "code.py")
        long_tests.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", text)

    def left(keyword: str = "") -> list[str]:
        items = [SimpleNamespace(nodeid=name) for name in ("one", "two")]
        hook = SimpleNamespace(pytest_deselected=lambda items: None)
        long_tests.pytest_collection_modifyitems(
            SimpleNamespace(option=SimpleNamespace(keyword=keyword), hook=hook), items
        )
        return [item.nodeid for item in items]

    def passes(name: str, **changes: object) -> None:
        report = SimpleNamespace(nodeid=name, when="call", passed=True, duration=7.2)
        long_tests.pytest_runtest_logreport(SimpleNamespace(**{**vars(report), **changes}))

    (tmp_path / "tests").mkdir()
    monkeypatch.setattr(long_tests, "ROOT", tmp_path)
    monkeypatch.setattr(long_tests, "RECORDS", tmp_path / "tests" / "long.json")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    long_tests.git("init")
    commit("a")
    passes("one")
    passes("two", passed=False)
    assert left() == ["two"] and left(keyword="one") == ["one", "two"]
    assert long_tests.read()["one"]["seconds"] == 7
    long_tests.git("add", "tests")
    commit("a")
    assert left() == ["two"], "a commit of the records changes nothing"
    commit("b")
    assert left() == ["one", "two"]
    (tmp_path / "code.py").write_text("changed")
    with pytest.warns(pytest.PytestWarning, match="not recorded"):
        assert left() == ["one", "two"]
    passes("two")
    assert "two" not in long_tests.read()
    (tmp_path / "code.py").write_text("b")
    with monkeypatch.context() as process:
        process.setenv("PYTEST_XDIST_WORKER", "gw1")
        passes("two")
    assert "two" not in long_tests.read(), "pytest-xdist's first process writes for all"
    passes("two")
    assert "two" in long_tests.read()


def test_models_are_kept_until_something_changes_that_makes_them(tmp_path: Path) -> None:
    def folder(name: str, text: str) -> Path:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        return kept_models(tmp_path)

    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    first = folder(".gitignore", "__pycache__/\nruns/\n")
    assert first.parent == tmp_path / "runs" / "cold_starts"
    assert folder("docs/page.md", "a") == folder("verl_hier/__pycache__/code.pyc", "a") == first
    found = [first, *(folder(f"{name}/code.py", text) for name in MAKERS for text in "ab")]
    assert len(set(found)) == len(found)
    assert folder(f"{MAKERS[-1]}/code.py", "a") == found[-2]
