"""The five parts that a recipe names, with their options checked and built."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from verl_hier.errors import RecipeError
from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_options
from verl_hier.host.part import Part
from verl_hier.host.specs import KINDS, Kind, WorkerSpec
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
    parts: dict[str, Part] = {}
    for kind in KINDS:
        block = config.block(kind)
        spec = host.spec(kind, block["name"])
        if isinstance(spec, WorkerSpec):
            _require_options_of_its_own(parts["environment"], spec, block)
        parts[kind] = Part(spec, build_options(spec, block))
    return Parts(**parts)


def _require_options_of_its_own(environment: Part, worker: WorkerSpec, block: Mapping[str, Any]) -> None:
    """Refuse options of a method's worker where the environment is one for another worker, which took its place.

    Raises:
        RecipeError: naming what the worker reads of the environment, and the override that leaves the options out.
    """
    needs = [name for name in environment.spec.read_info if name in worker.needs_info]
    others = sorted({*block} - {"name", *(field.name for field in dataclasses.fields(worker.options))})
    if needs and others:
        raise RecipeError(
            f"hier.worker.{others[0]}: environment {environment.spec.name!r} needs a worker that reads its "
            f"{', '.join(needs)}, which is {worker.name!r}, and that has no option {others[0]!r}; where the method can "
            f"do without its own worker, replace the block: 'hier.worker={{name: {worker.name}}}'."
        )
