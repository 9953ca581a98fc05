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
MAY_PASS = 5


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
    assert len(passed) <= MAY_PASS, "\n".join(map(str, passed))


@pytest.mark.slow
def test_every_broken_recipe_is_refused() -> None:
    """In one process, from recipes that are composed once and then changed."""
    assert len(MUTATIONS) >= 150
    require_refused(MUTATIONS, changed)


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
