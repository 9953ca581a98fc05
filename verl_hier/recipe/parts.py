"""The five parts that a recipe names, with their options checked and built."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_options
from verl_hier.host.part import Part
from verl_hier.host.specs import KINDS, Kind
from verl_hier.recipe.schema import HierConfig


@dataclass(frozen=True)
class Parts:
    """The five parts of a recipe."""

    environment: Part
    worker: Part
    sampler: Part
    estimator: Part
    schedule: Part

    def items(self) -> Iterable[tuple[Kind, Part]]:
        """(kind, part) in the order of the vocabulary."""
        return ((kind, getattr(self, kind)) for kind in KINDS)


def resolve(config: HierConfig, host: PluginHost | None = None) -> Parts:
    """The five parts that a recipe names, with their options built.

    Raises:
        PluginError: when a listed plugin cannot be loaded.
        RecipeError: when a name or an option is unknown or does not fit.
    """
    host = host or PluginHost.load(config.plugins)
    parts = {}
    for kind in KINDS:
        block = config.block(kind)
        spec = host.spec(kind, block["name"])
        parts[kind] = Part(spec, build_options(spec, block))
    return Parts(**parts)
