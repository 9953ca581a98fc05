"""The engine that computes what rows share once; docs/tree_engine.md."""

from __future__ import annotations

from verl_hier.hookspecs import hookimpl
from verl_hier.host.lazy import lazy
from verl_hier.host.specs import EngineSpec


@hookimpl
def hier_engines() -> EngineSpec:
    return EngineSpec("tree", lazy("verl_hier.engines.refusals:refuse_config"))
