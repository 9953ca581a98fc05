"""The built-in estimators by name, read from the plugin folders' own hooks."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_hier.credit.estimate import estimate
from verl_hier.errors import PluginError
from verl_hier.specs import EstimatorSpec, PolicyLossSpec, nearest
from verl_hier.trajectory.table import TurnTable

PACKAGE = "verl_hier_plugins"


def plugin_folders(module_file: str = "estimator.py") -> Iterator[str]:
    """Names of the built-in plugin folders that hold a file, an estimator by default; nothing is imported."""
    package = importlib.import_module(PACKAGE)
    for module in pkgutil.iter_modules(package.__path__):
        if module.ispkg and any((Path(root) / module.name / module_file).is_file() for root in package.__path__):
            yield module.name


def plugin_module(path: str) -> Any:
    """A module of a built-in plugin, for instance `gigpo.anchors`."""
    return importlib.import_module(f"{PACKAGE}.{path}")


def builtin_estimators() -> dict[str, EstimatorSpec]:
    """Every estimator that a built-in plugin registers, sorted by name."""
    found: dict[str, EstimatorSpec] = {}
    for folder in plugin_folders():
        module = importlib.import_module(f"{PACKAGE}.{folder}")
        hook = getattr(module, "hier_estimators", None)
        if hook is not None:
            found.update({spec.name: spec for spec in hook()})
    return dict(sorted(found.items()))


def estimator(name: str) -> EstimatorSpec:
    """One built-in estimator.

    Raises:
        PluginError: when no built-in plugin registers the name.
    """
    if name in set(plugin_folders()):
        hook = getattr(importlib.import_module(f"{PACKAGE}.{name}"), "hier_estimators", None)
        for spec in hook() if hook is not None else ():
            if spec.name == name:
                return spec
    known = builtin_estimators()
    if name not in known:
        raise PluginError(f"there is no estimator {name!r}{nearest(name, known)}. Known: {', '.join(known)}.")
    return known[name]


def sampler_replay(fixture: str) -> Callable[[Mapping[str, Any]], Mapping[str, Any]] | None:
    """The function that replays a scripted sampler fixture, or None while no plugin brings one.

    A sampler's folder brings it as `replay.py` with `REPLAYS = {fixture name: function(input) -> outputs}`.
    """
    for folder in plugin_folders("replay.py"):
        replays: Mapping[str, Any] = plugin_module(f"{folder}.replay").REPLAYS
        if fixture in replays:
            found: Callable[[Mapping[str, Any]], Mapping[str, Any]] = replays[fixture]
            return found
    return None


def policy_loss(name: str) -> PolicyLossSpec:
    """One built-in policy loss.

    Raises:
        PluginError: when the plugin folder of that name registers none.
    """
    hook = getattr(importlib.import_module(f"{PACKAGE}.{name}"), "hier_policy_losses", None)
    for spec in hook() if hook is not None else ():
        return spec
    raise PluginError(f"there is no policy loss of plugin {name!r}.")


def credit_of(name: str, table: TurnTable, **options: Any) -> NDArray[np.float64]:
    """Values of a built-in estimator on a table, with options given by name over its defaults."""
    spec = estimator(name)
    return np.asarray(estimate(spec, table, spec.options(**options)).values, np.float64)
