"""What commands import decides how long they take to start, whatever the machine is doing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures import rollout_graphs
from verl_hier.graph import write_step

HEAVY = ("torch", "ray", "verl", "tensordict", "transformers", "pandas", "datasets")
CONFIG = ("hydra", "omegaconf", "numpy", "pyarrow", "asyncio")
RUN = """
import sys
from verl_hier.cli.main import app
try:
    app(args={arguments!r}, prog_name="verl-hier")
except SystemExit as end:
    assert not end.code, end.code
loaded = set(sys.modules) & set({modules!r})
assert not loaded, loaded
others = [name for name in sys.modules if not name.startswith("verl_hier_plugins.")]
assert len(others) < {most}, len(others)
"""
"""Each built-in part may add its own module; everything else has to stay as it is."""


@pytest.mark.parametrize(
    ("arguments", "modules", "most"),
    [
        # Under 0.3 s.
        (["--help"], (*HEAVY, *CONFIG), 330),
        (["train", "--help"], (*HEAVY, *CONFIG), 330),
        # Under 1 s.
        (["recipes"], HEAVY, 500),
        (["recipes", "alfworld"], HEAVY, 500),
        (["plugins"], HEAVY, 550),
        (["estimators"], HEAVY, 550),
        (["estimators", "gae"], HEAVY, 550),
        (["workers"], HEAVY, 550),
        (["environments", "search"], HEAVY, 550),
        # Under 4 s.
        (["check", "himac_alfworld"], HEAVY, 830),
        (["check", "grpo_alfworld", "size=node"], HEAVY, 830),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_imports_no_more_than_it_needs(arguments: list[str], modules: tuple[str, ...], most: int) -> None:
    code = RUN.format(arguments=arguments, modules=modules, most=most)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]


def test_estimators_are_compared_without_pandas(tmp_path: Path) -> None:
    """pyarrow would import it for its first array; who needs it later still finds it."""
    write_step(tmp_path, 1, [rollout_graphs.flat()])
    arguments = ["credit", str(tmp_path), "--compare", "himac,grpo"]
    code = RUN.format(arguments=arguments, modules=HEAVY, most=560) + "\nimport pandas"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "himac" in done.stdout, done.stderr[-500:]
