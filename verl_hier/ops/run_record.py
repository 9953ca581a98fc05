"""What ran, for whoever looks at a run later: its recipe, parts, versions and seeds."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_hier import __version__
from verl_hier.ops.resumed import data_files, fingerprint
from verl_hier.recipe.catalogue import find
from verl_hier.verl_facts.versions import SHOWN, installed

if TYPE_CHECKING:
    from omegaconf import DictConfig

PARTS = ("environment", "worker", "sampler", "estimator", "schedule")


def run_record(recipe: str, overrides: Sequence[str], config: DictConfig, metrics: Path) -> dict[str, Any]:
    """The content of `run.json`.

    Args:
        recipe: name or path of the recipe.
        overrides: Hydra overrides, as on the command line.
        config: the composed config.
        metrics: file of the run's metrics.

    Returns:
        `name`, `overrides`, `recipe` (the composed config, every interpolation resolved), `parts` (kind to name),
        `seeds`, `versions` (distribution to version, null where it is missing), `revision` (git's, of a source checkout
        of verl-hier; else null), `metrics` (a path), `recipe_file` (SHA-256 of a recipe file of the user's own, else
        empty) and `data` (line to path to SHA-256 of the files that the run is trained or measured on).
    """
    from omegaconf import OmegaConf

    content: Any = OmegaConf.to_container(config, resolve=True)
    hier = content["hier"]
    return {
        "name": recipe,
        "overrides": list(overrides),
        "recipe": content,
        "parts": {kind: hier[kind]["name"] for kind in PARTS},
        "seeds": {"hier.seed": hier["seed"], "data.seed": content["data"].get("seed")},
        "versions": {"verl-hier": __version__, **{name: installed(name) for name in SHOWN}},
        "revision": _revision(Path(__file__).parents[2]),
        "metrics": str(metrics),
        "recipe_file": fingerprint(find(recipe)),
        "data": data_files(content),
    }


def _revision(checkout: Path) -> str | None:
    """The commit that a source checkout is at; None for an installed package, or without git."""
    if not (checkout / ".git").exists():
        return None
    try:
        asked = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
