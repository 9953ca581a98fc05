"""The built-in parts by name, for the adapters of recorded cases."""

from __future__ import annotations

import importlib
from typing import Any, cast

import numpy as np

from verl_hier.credit import Credit, Floats
from verl_hier.credit.estimate import estimate
from verl_hier.errors import PluginError, did_you_mean
from verl_hier.graph.turn_table import TurnTable
from verl_hier.host.manager import DEFAULT_ENABLED, PluginHost
from verl_hier.host.specs import EstimatorSpec, Kind, PolicyLossSpec

PACKAGE = "verl_hier_plugins"


def plugin_module(path: str) -> Any:
    """A module of a built-in plugin, for instance `estimators.gigpo`."""
    return importlib.import_module(f"{PACKAGE}.{path}")


def builtin_estimators() -> dict[str, EstimatorSpec]:
    """Every built-in estimator that computes credit itself, sorted by name; `native` ones leave that to verl."""
    specs = cast("dict[str, EstimatorSpec]", _builtin("estimator"))
    return {name: spec for name, spec in sorted(specs.items()) if not spec.native}


def estimator(name: str) -> EstimatorSpec:
    """One built-in estimator.

    Raises:
        PluginError: when no built-in plugin registers the name.
    """
    known = builtin_estimators()
    if name not in known:
        raise PluginError(f"there is no estimator {name!r}{did_you_mean(name, known)}. Known: {', '.join(known)}.")
    return known[name]


def policy_loss(name: str) -> PolicyLossSpec:
    """One built-in policy loss.

    Raises:
        PluginError: when no built-in plugin registers the name.
    """
    known = PluginHost.load(DEFAULT_ENABLED).policy_losses()
    if name not in known:
        raise PluginError(f"there is no policy loss {name!r}{did_you_mean(name, known)}. Known: {', '.join(known)}.")
    return known[name]


def part(kind: Kind, name: str, *more: Any, **options: Any) -> Any:
    """A built-in worker, sampler or other part with options given by name over its defaults; its factory gets `more`
    after them."""
    spec = _builtin(kind)[name]
    return spec.factory(spec.options(**options), *more)


def full_credit(name: str, table: TurnTable, **options: Any) -> Credit:
    """Credit of a built-in estimator on a table, with options given by name over its defaults."""
    spec = estimator(name)
    return estimate(spec, table, spec.options(**options))


def credit_of(name: str, table: TurnTable, **options: Any) -> Floats:
    """The values of `full_credit`."""
    return np.asarray(full_credit(name, table, **options).values, np.float64)


def _builtin(kind: Kind) -> dict[str, Any]:
    return PluginHost.load(DEFAULT_ENABLED).specs(kind)
