"""Commands of other packages, as the page on plugins describes them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures import rollout_graphs
from verl_hier.graph import write_step

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
POINTS = re.search(r'\[project\.entry-points\."(verl_hier\.commands)"\]\n(\w+) = "(\S+)"', PAGE)
MODULE = re.search(r"```python\n# (my_commands\.py)\n(.*?)```", PAGE, re.DOTALL)


def package(folder: Path, name: str, points: str, **modules: str) -> Path:
    """A package as pip would leave it."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[verl_hier.commands]\n{points}\n")
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text)
    return folder


def verl_hier(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "verl_hier.cli.main", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_the_command_of_the_page_is_listed_and_runs(tmp_path: Path) -> None:
    assert POINTS and MODULE
    place = package(tmp_path / "site", "my-commands", f"{POINTS[2]} = {POINTS[3]}", my_commands=MODULE[2])
    listed = verl_hier(place, "--help")
    assert listed.returncode == 0 and re.search(r"longest +From my-commands 1\.0\.", listed.stdout), listed.stderr
    write_step(tmp_path / "graphs", 1, [rollout_graphs.forked()])
    ran = verl_hier(place, "longest", str(tmp_path / "graphs"))
    graph = rollout_graphs.forked()
    assert ran.stdout.strip() == str(max(graph.turns(episode.id) for episode in graph.episodes)), ran.stderr
    assert "Say how many turns the longest episode" in verl_hier(place, "longest", "--help").stdout


def test_a_command_of_ours_reads_no_others(tmp_path: Path) -> None:
    place = package(tmp_path, "broken", "view = nowhere:at_all")
    (place / "broken-1.0.dist-info" / "entry_points.txt").write_text("no section\n")
    assert verl_hier(place, "recipes", "--names").returncode == 0


@pytest.mark.parametrize(
    ("points", "called", "sentence"),
    [
        (
            "check = m:f",
            "--help",
            "the command 'check' of mine 1.0 (m:f) is also one of verl-hier; rename its ",
        ),
        ("mine = m:f", "mine", "the command 'mine' of mine 1.0 (m:f) failed to load: ZeroDivisionError: "),
        ("mine = gone:f", "mine", "the command 'mine' of mine 1.0 (gone:f) failed to load: ModuleNotFoundError: "),
    ],
)
def test_a_command_that_cannot_be_is_one_sentence(tmp_path: Path, points: str, called: str, sentence: str) -> None:
    place = package(tmp_path, "mine", points, m="1 / 0\n")
    done = verl_hier(place, called)
    assert done.returncode and "Traceback" not in done.stderr and sentence in done.stderr, done.stderr


def test_two_packages_with_one_command(tmp_path: Path) -> None:
    place = package(tmp_path, "mine", "same = m:f", m="")
    package(tmp_path, "yours", "same = y:f", y="")
    done = verl_hier(place, "--help")
    assert re.search(r"the command 'same' of (mine|yours) 1\.0 \(\w:f\) is also one of (mine|yours) 1\.0;", done.stderr)
