"""Built-in estimators by name, and the credit that they give."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from verl_hier.credit import Credit, Floats
from verl_hier.credit.estimate import estimate
from verl_hier.errors import PluginError, did_you_mean
from verl_hier.graph.turn_table import TurnTable
from verl_hier.host.manager import DEFAULT_ENABLED, PluginHost
from verl_hier.host.specs import EstimatorSpec


def builtin_estimators() -> dict[str, EstimatorSpec]:
    """Every built-in estimator that computes credit itself, sorted by name; `native` ones leave that to verl."""
    specs = cast("dict[str, EstimatorSpec]", PluginHost.load(DEFAULT_ENABLED).specs("estimator"))
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


def full_credit(name: str, table: TurnTable, **options: Any) -> Credit:
    """Credit of a built-in estimator on a table, with options given by name over its defaults."""
    spec = estimator(name)
    return estimate(spec, table, spec.options(**options))


def credit_of(name: str, table: TurnTable, **options: Any) -> Floats:
    """The values of `full_credit`."""
    return np.asarray(full_credit(name, table, **options).values, np.float64)
