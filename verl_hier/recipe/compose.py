"""What a recipe composes to.

A recipe is a primary Hydra config that starts from verl's own `ppo_trainer`. A shipped one is composed here exactly as
`python -m verl.trainer.main_ppo --config-name RECIPE` would, but without importing verl, which takes seconds. What a
run trains on is what was composed here; see `recipe.handover`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from verl_hier.errors import RecipeError, did_you_mean
from verl_hier.host.specs import KINDS
from verl_hier.installed import package_folder
from verl_hier.recipe.catalogue import Recipe, find, translated
from verl_hier.recipe.hydra_cache import hydra_cache
from verl_hier.recipe.hydra_words import missing_name, sentence
from verl_hier.recipe.overrides import require_grammar
from verl_hier.recipe.user_recipes import require_base, require_list, require_part_blocks, unknown_name

MAIN = "verl.trainer.main_ppo"
PRIMARY = "verl_hier_recipe_file"
"""The name under which Hydra reads a recipe file of a user's own; see `recipe.hydra_source`."""
_ROLLOUT = ("actor_rollout_ref", "actor_rollout_ref.actor", "actor_rollout_ref.model", "actor_rollout_ref.rollout")
BLOCKS = {*_ROLLOUT, "actor_rollout_ref.rollout.val_kwargs", "algorithm", "critic", "data", "trainer", "trainer.v1"}
"""Blocks without which nothing can be said of a recipe; others may be null."""
_UNKNOWN_KEY = re.compile(r"Could not override '([\w.]+)'")
PART_OVERRIDE = re.compile(rf"(hier\.(?:{'|'.join(KINDS)}))=\{{")
_HIER_OVERRIDE = re.compile(r"hier\.[\w.]+=")


def compose(reference: str, overrides: Sequence[str] = ()) -> Any:
    """The whole verl config of a recipe as an OmegaConf `DictConfig`.

    Raises:
        RecipeError: when a group, an override or an interpolation is wrong; the sentence is Hydra's, shortened.
    """
    from hydra import compose as hydra_compose
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from verl_hier.recipe.search_path import register

    recipe = find(reference)
    recipe.require_offered(overrides)
    require_part_blocks(overrides)
    if not recipe.shipped:
        require_list(recipe)
    register()
    given = overridden(overrides)
    GlobalHydra.instance().clear()
    # A file of ours composes, or its bug shows a traceback; a user's can make Hydra stumble over anything.
    stumbles = (HydraException, OmegaConfBaseException, YAMLError, ValueError) if recipe.shipped else (Exception,)
    try:
        with hydra_cache(), _found_by_hydra(recipe) as name:
            composed = hydra_compose(name, overrides=given)
    except stumbles as error:
        unknown = _UNKNOWN_KEY.search(str(error))
        if unknown and overrides:
            raise RecipeError(_unknown_key(unknown[1], compose(reference))) from error
        require_grammar(given)
        if isinstance(error, RecursionError):
            raise RecipeError(
                f"recipe {reference!r} does not compose: a file in its defaults names itself, or a file that leads "
                "back to it, in its own defaults; give the file another name than the one that it begins from."
            ) from error
        if not recipe.shipped and (missing := missing_name(error)):
            raise unknown_name(recipe, missing, verl_config_folder()) from error
        said = sentence(error).replace(f"{PRIMARY}.yaml", recipe.path.name).replace(PRIMARY, recipe.path.name)
        raise RecipeError(f"recipe {reference!r} does not compose: {said}") from error
    if not recipe.shipped:
        require_base(recipe, composed)
        require_blocks(composed)
    return composed


@contextmanager
def _found_by_hydra(recipe: Recipe) -> Iterator[str]:
    """Within it, Hydra composes the recipe by the name that is yielded."""
    from hydra import initialize_config_dir

    if recipe.shipped:
        with initialize_config_dir(str(verl_config_folder()), version_base=None):
            yield recipe.name
    else:
        from verl_hier.recipe.hydra_source import composes_file

        with composes_file(recipe.path):
            yield PRIMARY


def require_blocks(config: Any) -> None:
    """Refuse a composed config that has something else where verl has a block, so that its blocks can be read.

    Raises:
        RecipeError: naming the line.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        plain = OmegaConf.to_container(config, resolve=False)
    except (OmegaConfBaseException, ValueError) as error:
        raise RecipeError(f"the recipe cannot be read: {sentence(error)}") from error
    if not isinstance(plain, dict):
        raise RecipeError("the recipe is no mapping of keys to values.")
    _require_blocks(plain, stock(), "")


def _require_blocks(given: Mapping[Any, Any], known: Mapping[str, Any], above: str) -> None:
    for key, inner in known.items():
        found, line = given.get(key), f"{above}{key}"
        if not isinstance(inner, Mapping) or (isinstance(found, str) and found.startswith("${")):
            continue
        if isinstance(found, Mapping):
            _require_blocks(found, inner, f"{line}.")
        elif found is not None or line in BLOCKS:
            raise RecipeError(f"{line}: expected a block, as verl has it, got {found!r:.60}.")


def overridden(overrides: Sequence[str]) -> list[str]:
    """The overrides of our command line as Hydra's own, which differ in three things.

    - `size=`, `model=`, `server=`, `paper=` and `engine=` stand for `hier/size=` and so on.
    - An option below `hier.` may be set whether or not the recipe mentions it. Hydra wants `+` for a key that no file
      has; our own schema checks every key there, so `++` loses nothing.
    - `hier.worker={name: …}` replaces the part instead of mixing the old one's options into the new one's.
    """
    given: list[str] = []
    for text in map(translated, overrides):
        part = PART_OVERRIDE.match(text)
        if part:
            given += [f"~{part[1]}", f"+{text}"]
        else:
            given.append(f"++{text}" if _HIER_OVERRIDE.match(text) else text)
    return given


@cache
def stock(engine: str = "dp") -> Mapping[str, Any]:
    """verl's own configuration, its values unresolved: which keys there are, and of which kind their values are.

    Args:
        engine: verl's `model_engine`, which decides about the blocks of actor, reference and critic.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    GlobalHydra.instance().clear()
    with hydra_cache(), initialize_config_dir(str(verl_config_folder()), version_base=None):
        composed = hydra_compose("ppo_trainer", overrides=[f"model_engine={engine}"])
    plain = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(plain, dict)
    return {str(key): block for key, block in plain.items()}


def stock_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """verl's own configuration for the engine that a composed recipe names.

    Raises:
        RecipeError: when verl has no such engine.
    """
    engine = config.get("model_engine") or "dp"
    known = sorted(file.stem for file in (verl_config_folder() / "model_engine").glob("*.yaml"))
    if engine not in known:
        raise RecipeError(f"model_engine: there is no {engine!r:.60}; verl has {', '.join(known)}.")
    return stock(engine)


def command(reference: str, overrides: Sequence[str] = ()) -> list[str]:
    """Arguments for `python -m` that run a shipped recipe with verl's own entry point.

    Raises:
        RecipeError: for a file of a user's own, which Hydra finds by its name only where nobody else has the name; see
            `recipe.handover`.
    """
    recipe = find(reference)
    if not recipe.shipped:
        raise RecipeError(f"{reference} is no shipped recipe, which verl's Hydra finds by its name.")
    return [MAIN, "--config-name", recipe.name, *overridden(overrides)]


def verl_config_folder() -> Path:
    """`verl/trainer/config`, found without importing verl."""
    return package_folder("verl") / "trainer" / "config"


def _unknown_key(key: str, config: Any) -> str:
    """A sentence for an override of a key that verl's config does not have."""
    from omegaconf import DictConfig

    place, known = config, key.split(".")
    for depth, part in enumerate(known):
        if not isinstance(place, DictConfig) or part not in place:
            siblings = [str(name) for name in place] if isinstance(place, DictConfig) else []
            return (
                f"the override {key}: {'.'.join(known[:depth]) or 'the config'} has no key "
                f"{part!r}{did_you_mean(part, siblings)}; put + before the override if it is meant to be new."
            )
        place = place[part]
    return f"the override {key} does not fit the recipe."
