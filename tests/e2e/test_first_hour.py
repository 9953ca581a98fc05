"""The first hour: the pages are followed word for word in a fresh environment, outside of the checkout.

A wheel is built and installed, every file of the pages is written, every command is run, and the other Python blocks of
a page run at its end. Commands that make a model, train or measure are shortened; nothing else is changed.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.fixtures.code_blocks import Block, blocks
from tests.fixtures.trainer import trainer_slot

ROOT = Path(__file__).parents[2]
PAGES = ("write_an_estimator", "write_a_worker", "write_a_sampler", "your_own_task")
SHORT = {
    "coldstart": ("hier.coldstart.steps=60", "hier.coldstart.episodes=64"),
    "train": ("trainer.total_training_steps=3", "trainer.test_freq=3", "data.val_max_samples=4"),
    "eval": ("--tasks", "4"),
}
"""What is added to a command, or set in place of what it says."""
STEP_S = 900
"""A command that takes longer hangs."""


class Newcomer:
    """A person with a virtual environment of their own, in an empty folder.

    Args:
        home: gets the wheel, the environment and the folder.
    """

    def __init__(self, home: Path) -> None:
        self.folder = home / "work"
        self.folder.mkdir()
        self._environment = home / "environment"
        venv.create(self._environment, with_pip=True)
        self._see_what_is_installed()
        self._variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
            "PATH": f"{self._environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "VIRTUAL_ENV": str(self._environment),
            "PIP_NO_BUILD_ISOLATION": "0",  # pip reads it as the value of `build_isolation`
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        # The environment of the tests has a newer one than a fresh environment; otherwise it is fetched.
        self.run("pip uninstall --quiet --yes setuptools && pip install --quiet 'setuptools>=77'")
        self._variables["PIP_NO_INDEX"] = "1"
        wheel = self._wheel(home)
        self.run(f"pip install --quiet --no-deps --force-reinstall {shlex.quote(str(wheel))}")

    def follow(self, page: Path) -> None:
        """Do what a page says, from its first block to its last."""
        shown = []
        for block in blocks(page):
            if "not run" in block.comments:
                continue
            if block.file:
                self._write(block)
            elif block.language == "bash":
                for command in block.commands:
                    self.run(shlex.join(shortened(command)))
            elif block.language == "python":
                shown.append(block.text)
        if shown:
            script = self.folder / f"{page.stem}_blocks.py"
            script.write_text("\n".join(shown))
            self.run(f"python {script.name}")

    def run(self, command: str) -> str:
        """Run a command in the folder, to its end and without an error; returns what it prints."""
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=self.folder,
            env=self._variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=STEP_S,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-6000:]}"
        return done.stdout

    def _write(self, block: Block) -> None:
        file = self.folder / str(block.file)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.text)

    def _see_what_is_installed(self) -> None:
        """Let the environment import the installed packages, so that nothing has to be fetched; ours comes first."""
        (site,) = self._environment.glob("lib/python*/site-packages")
        installed = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        (site / "installed.pth").write_text("\n".join(installed) + "\n")
        command = self._environment / "bin" / "pytest"
        command.write_text(f'#!/bin/sh\nexec "{self._environment / "bin" / "python"}" -m pytest "$@"\n')
        command.chmod(0o755)

    def _wheel(self, home: Path) -> Path:
        """A wheel of what git knows of the checkout, without what earlier builds have left in it."""
        source = home / "source"
        known = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, known.split("\0")):
            if (ROOT / name).is_file():
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, source / name)
        self.run(f"pip wheel --quiet --no-deps --wheel-dir {shlex.quote(str(home))} {shlex.quote(str(source))}")
        shutil.rmtree(source)
        (wheel,) = home.glob("verl_hier-*.whl")
        return wheel


def shortened(command: Sequence[str]) -> list[str]:
    """A command of the page with less work: fewer demonstrations, steps and tasks."""
    if command[0] != "verl-hier" or command[1] not in SHORT:
        return list(command)
    # A run that is resumed goes on for a step.
    added = ["trainer.total_training_steps=4"] if "--resume" in command else SHORT[command[1]]
    keys = {word.partition("=")[0] for word in added}
    return [*(word for word in command if word.partition("=")[0] not in keys), *added]


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Newcomer]:
    with trainer_slot():
        yield Newcomer(tmp_path)


@pytest.mark.long
def test_the_first_hour(newcomer: Newcomer) -> None:
    where = newcomer.run("python -c 'import verl_hier; print(verl_hier.__file__)'")
    assert str(ROOT) not in where and "site-packages" in where
    for page in PAGES:
        newcomer.follow(ROOT / "docs" / f"{page}.md")
    for recipe in ("lights", "lights_mine"):
        run = newcomer.folder / "runs" / recipe / "first"
        steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert steps == [4], "the run went on from its third step"
        assert list((run / "model").glob("*.safetensors"))
        code = f"from transformers import AutoModelForCausalLM as M; M.from_pretrained({str(run / 'model')!r})"
        newcomer.run(f"python -c {shlex.quote(code)}")
    listed = newcomer.run("verl-hier plugins")
    assert all(name in listed for name in ("my_gap", "careful", "lights"))
