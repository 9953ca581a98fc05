"""What was composed and checked, as a file that verl's main runs as it is.

verl's Hydra would look for a recipe by its name among all folders that it knows, and would compose it once more. It is
given a complete config instead, in a folder that holds nothing else, under a name that nobody else has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_hier.errors import RecipeError
from verl_hier.graph.atomic_write import atomic_write
from verl_hier.recipe.catalogue import Recipe
from verl_hier.recipe.compose import MAIN
from verl_hier.recipe.overrides import key_of

NAME = "verl_hier_composed"
"""The name of the file, without its `.yaml`."""


def hand_over(config: Any, recipe: Recipe, overrides: Sequence[str], folder: Path) -> list[str]:
    """Write a composed config, and make sure that verl's Hydra composes the same from the file.

    Args:
        config: the composed config, an OmegaConf `DictConfig`; every override has been applied to it.
        recipe: the recipe, for what it says to Hydra itself (`hydra:`), which a composed config no longer holds.
        overrides: Hydra overrides; those of Hydra's own settings are passed on.
        folder: where the file goes; other YAML files there are deleted.

    Returns:
        Arguments for `python -m` that run the config with verl's own entry point.

    Raises:
        RecipeError: when the file cannot say what was composed.
    """
    from omegaconf import OmegaConf

    folder.mkdir(parents=True, exist_ok=True)
    for earlier in folder.glob("*.yaml"):
        earlier.unlink()
    text = OmegaConf.to_yaml(config, resolve=False)
    try:
        with atomic_write(folder / f"{NAME}.yaml") as beside:
            beside.write_text(_hydra_lines(recipe) + text, encoding="utf-8")
    except UnicodeEncodeError as error:
        raise RecipeError(f"the recipe holds text that is not UTF-8: {error.object[error.start :][:40]!r}.") from error
    if OmegaConf.to_yaml(_composed_by_hydra(folder), resolve=False) != text:
        raise RecipeError(
            f"what verl would read from {folder / NAME}.yaml differs from what was checked; please report this with "
            "your recipe."
        )
    settings = [override for override in overrides if key_of(override).startswith(("hydra.", "hydra/"))]
    return [MAIN, "--config-path", str(folder.resolve()), "--config-name", NAME, *settings]


def _hydra_lines(recipe: Recipe) -> str:
    """What a recipe says to Hydra itself, as YAML; the folders to search are left out, since nothing is searched."""
    from omegaconf import OmegaConf

    content = recipe.content if isinstance(recipe.content, Mapping) else {}
    settings, defaults = content.get("hydra"), content.get("defaults")
    said: dict[str, Any] = {}
    chosen = [
        dict(entry)
        for entry in (defaults if isinstance(defaults, list) else ())
        if isinstance(entry, Mapping) and any("hydra/" in str(key) for key in entry)
    ]
    if chosen:
        said["defaults"] = [*chosen, "_self_"]
    if isinstance(settings, Mapping):
        kept = {key: value for key, value in settings.items() if key != "searchpath"}
        said |= {"hydra": kept} if kept else {}
    return OmegaConf.to_yaml(OmegaConf.create(said)) if said else ""


def _composed_by_hydra(folder: Path) -> Any:
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    from verl_hier.recipe.hydra_cache import hydra_cache

    GlobalHydra.instance().clear()
    with hydra_cache(), initialize_config_dir(str(folder.resolve()), version_base=None):
        return compose(NAME)
