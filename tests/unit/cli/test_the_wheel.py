"""The built wheel by itself: recipes, page and example, in an environment without a checkout, a compiler or Java."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import urllib.request
import venv
import zipfile
from pathlib import Path

import pytest

from tests.unit.host.test_layering import UPPER

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what git tracks, so that nothing of this folder leaks into it."""
    home = tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True, text=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file() and not name.startswith(("tests/", "page/", "docs/")):
            (home / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, home / "source" / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(home)]
    subprocess.run([*command, str(home / "source")], check=True)
    (built,) = home.glob("verl_hier-*.whl")
    return built


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, str]]:
    """`verl-hier` of a new environment that has the wheel, and the dependencies of this one without this checkout.

    The path has no program but those of the environment: neither a compiler nor Java nor git.
    """
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    # The .pth files in a folder that a .pth file names are not read, and so the editable installation is not either.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    variables = {"PATH": str(home / "bin"), "HOME": str(home), "LANG": "C.UTF-8"}
    python = str(home / "bin/python")
    said = subprocess.run([python, "-c", "import verl_hier; print(verl_hier.__file__)"], env=variables, cwd=home,
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert Path(said.stdout.strip()).is_relative_to(site), said.stdout
    return [python, "-c", "from verl_hier.cli.main import main; main()"], variables


def test_the_example_is_there_in_ten_seconds_of_a_core(
    command: tuple[list[str], dict[str, str]], tmp_path: Path
) -> None:
    words, variables = command
    before = os.times()
    server = subprocess.Popen(
        [*words, "view", "--example"], env=variables, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split()[0]
        text = urllib.request.urlopen(address, timeout=10).read().decode()
    finally:
        server.terminate()
        server.wait()
    after = os.times()
    # Of the processor, since other processes may leave this one to wait.
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    assert "<script>" in text and seconds < 10, seconds


def test_a_recipe_is_checked(command: tuple[list[str], dict[str, str]], tmp_path: Path) -> None:
    words, variables = command
    done = subprocess.run([*words, "check", "himac_shop"], env=variables, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("himac_shop can run:"), done.stderr


@pytest.fixture(scope="module")
def core(
    command: tuple[list[str], dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[str], dict[str, str]]:
    """The same command in an environment whose package has the lower floor alone."""
    words, variables = command
    home = tmp_path_factory.mktemp("core")
    shutil.copytree(variables["HOME"], home, dirs_exist_ok=True, symlinks=True)
    (package,) = home.glob("lib/python*/site-packages/verl_hier")
    for room in UPPER:
        shutil.rmtree(package / room)
    return [str(home / "bin/python"), *words[1:]], {**variables, "PATH": str(home / "bin"), "HOME": str(home)}


@pytest.mark.parametrize("recipe", ["himac_alfworld", "tree_grpo_search", "grpo_math"])
def test_the_lower_floor_alone_checks_recipes_for_gpus(
    core: tuple[list[str], dict[str, str]], tmp_path: Path, recipe: str
) -> None:
    words, variables = core
    asked = [*words, "check", recipe, "size=node"]
    done = subprocess.run(asked, env=variables, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith(f"{recipe} can run:"), done.stderr


def test_new_writes_a_package(command: tuple[list[str], dict[str, str]], tmp_path: Path) -> None:
    words, variables = command
    made = subprocess.run(
        [*words, "new", "estimator", "mine"], env=variables, cwd=tmp_path, capture_output=True, text=True
    )
    assert made.returncode == 0 and (tmp_path / "mine/pyproject.toml").is_file(), made.stderr
