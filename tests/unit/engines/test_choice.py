"""`engine: tree` reaches verl's registry by one recipe line, and nothing of it is imported without that line."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from verl_hier.recipe.compose import compose, overridden
from verl_hier.recipe.engine import ENGINE_VARIABLE, TREE, wants_tree

SHOW = (
    "import sys, verl, verl.workers.engine.fsdp.transformer_impl, verl.trainer.ppo.v1;"
    "from verl.workers.engine.base import EngineRegistry;"
    "print(EngineRegistry.get_engine_cls('language_model', 'fsdp2').__name__);"
    "print(any(name == 'verl_hier.engines.fsdp' for name in sys.modules))"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("vendor", "engine", "imported"),
    [("", "CpuFsdp2EngineWithLMHead", "False"), (TREE, "CpuTreeEngine", "True")],
)
def test_a_process_of_a_run(vendor: str, engine: str, imported: str) -> None:
    environment = {**os.environ, "VERL_PLATFORM": "cpu", ENGINE_VARIABLE: vendor}
    ended = subprocess.run(
        [sys.executable, "-c", SHOW], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert ended.stdout.split()[-2:] == [engine, imported]


def test_the_recipe_line() -> None:
    assert not wants_tree(compose("himac_alfworld"))
    assert wants_tree(compose("himac_alfworld", ["engine=tree"]))
    assert wants_tree(compose("himac_alfworld", ["size=node", "engine=tree"]))
    assert overridden(["engine=tree"]) == ["hier/engine=tree"]
    assert not wants_tree({"ray_kwargs": {"ray_init": {"runtime_env": None}}})
