"""Composing with what was read and merged before gives what Hydra composes from nothing."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from verl_hier.errors import RecipeError
from verl_hier.recipe import compose as composing
from verl_hier.recipe.compose import compose

CASES = [
    ("himac_alfworld", []),
    ("himac_alfworld", ["size=node", "trainer.nnodes=3"]),
    ("himac_alfworld", ["size=node", "trainer.nnodes=5", "+trainer.ours=1"]),
    ("himac_alfworld", ["size=node", "model_engine=megatron"]),
    ("quickstart", ["hier.worker={name: flat}"]),
    ("himac_alfworld", ["size=node", "trainer.nnodes=3"]),
]


def plain(recipe: str, overrides: list[str]) -> Any:
    return OmegaConf.to_container(compose(recipe, overrides), resolve=False)


@pytest.mark.slow
def test_equal_to_what_hydra_composes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cached = [plain(*case) for case in CASES]
    monkeypatch.setattr(composing, "hydra_cache", nullcontext)
    for case, found in zip(CASES, cached, strict=True):
        assert found == plain(*case), case


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    lines = "defaults: [quickstart, _self_]\ntrainer: {total_training_steps: %d}\n"
    for number in (3, 4):
        recipe.write_text(lines % number)
        os.utime(recipe, ns=(number, number))
        assert compose(str(recipe)).trainer.total_training_steps == number


def test_what_hydra_refuses_is_refused_again() -> None:
    for _ in range(2):
        with pytest.raises(RecipeError, match="no_such_key"):
            compose("quickstart", ["trainer.no_such_key=1"])
