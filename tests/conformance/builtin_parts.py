"""Built-in parts and modules by name, for the adapters of recorded cases and for tests."""

from __future__ import annotations

import importlib
from typing import Any

from verl_hier.host.manager import DEFAULT_ENABLED, PluginHost
from verl_hier.host.specs import Kind, PolicyLossSpec, ValueHeadSpec

PACKAGE = "verl_hier_plugins"


def plugin_module(path: str) -> Any:
    """A module of a built-in plugin, for instance `estimators.gigpo`."""
    return importlib.import_module(f"{PACKAGE}.{path}")


def policy_loss(name: str) -> PolicyLossSpec:
    """One built-in policy loss."""
    return PluginHost.load(DEFAULT_ENABLED).specs("policy_loss")[name]


def value_head(name: str) -> ValueHeadSpec:
    """One built-in head of a critic."""
    return PluginHost.load(DEFAULT_ENABLED).specs("value_head")[name]


def part(kind: Kind, name: str, *more: Any, **options: Any) -> Any:
    """A built-in worker, sampler or other part with options given by name; its factory gets `more` after them."""
    spec: Any = PluginHost.load(DEFAULT_ENABLED).specs(kind)[name]
    return spec.factory(spec.options(**options), *more)
