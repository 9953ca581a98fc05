"""Shipped recipes with one thing in them broken: the check refuses each in a sentence that names the line."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf, open_dict

from verl_hier.errors import HierError
from verl_hier.recipe.check import check_recipe
from verl_hier.recipe.compose import compose, overridden

MUTATIONS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "mutations.yaml").read_text())
TOGETHER = 25
"""Broken recipes of one test: a change of a check fails one of a second or two."""


def line_of(mutation: dict[str, Any]) -> str:
    """What the refusal has to name: by default the line of the last override."""
    return mutation.get("names") or mutation["overrides"][-1].lstrip("+~").partition("=")[0]


def refusal(mutation: dict[str, Any], config: Any) -> str:
    """The sentence, after it was looked at; empty when the recipe passes."""
    try:
        check_recipe(config(mutation["recipe"], tuple(mutation["overrides"])))
    except HierError as error:
        sentence = str(error)
        assert line_of(mutation) in sentence, f"{mutation} is refused without its line: {sentence}"
        assert "\n" not in sentence and "Traceback" not in sentence, sentence
        return sentence
    return ""


def require_refused(mutations: Sequence[dict[str, Any]], config: Any) -> None:
    passed = [mutation for mutation in mutations if not refusal(mutation, config)]
    assert not passed, "\n".join(map(str, passed))


@pytest.mark.parametrize("first", range(0, len(MUTATIONS), TOGETHER))
def test_every_broken_recipe_is_refused(first: int) -> None:
    """From recipes that are composed once in a process and then changed."""
    require_refused(MUTATIONS[first : first + TOGETHER], changed)


SEPARATE = ("trainer.v1.trainer_mode=hier_separate_async", "trainer.v1.separate_async.parameter_sync_step=2")
ROLLOUT = "actor_rollout_ref.rollout"


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("actor_rollout_ref.actor.optim.optimizer_impl=null",),
        ("actor_rollout_ref.actor.optim.lr_warmup_steps=null",),
        ("actor_rollout_ref.actor.optim.lr_warmup_steps=0",),
        ("ray_kwargs.ray_init.num_gpus=null",),
        ("trainer.log_val_generations=0",),
        (*SEPARATE, f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.checkpoint_engine.backend=gloo"),
    ],
)
def test_what_a_line_may_hold_passes(overrides: tuple[str, ...]) -> None:
    check_recipe(changed("himac_alfworld", overrides), offline=True)


def test_there_are_many_ways_to_break_a_recipe() -> None:
    assert len(MUTATIONS) >= 300


@pytest.mark.slow
def test_broken_recipes_are_refused_when_hydra_composes_them() -> None:
    """Every sixth of them, because composing is most of the time."""
    require_refused(MUTATIONS[::6], compose)


def changed(recipe: str, overrides: tuple[str, ...]) -> Any:
    """What `compose` gives, in a tenth of its time where no override makes Hydra complain."""
    groups = tuple(text for text in overrides if text.startswith(("size=", "model=", "server=")))
    config = pickle.loads(composed(recipe, groups))
    missing = object()
    with open_dict(config):
        for override in OverridesParser.create().parse_overrides(overridden([*overrides[len(groups) :]])):
            key = override.key_or_group
            if override.is_delete():
                above, _, name = key.rpartition(".")
                OmegaConf.select(config, above).pop(name)
            elif (
                override.is_add()
                or override.is_force_add()
                or OmegaConf.select(config, key, default=missing) is not missing
            ):
                OmegaConf.update(config, key, override.value(), force_add=True)
            else:
                return compose(recipe, overrides)
    return config


@cache
def composed(recipe: str, groups: tuple[str, ...]) -> bytes:
    """A recipe, pickled because reading it again is quicker than copying it."""
    return pickle.dumps(compose(recipe, groups))
