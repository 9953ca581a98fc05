"""Recorded rollouts of released samplers, played to ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl_hier.testing.conformance.registry import part
from verl_hier.testing.conformance.rounds import replay

_OPTIONS = ("initial_rollouts", "beam_size", "branch_probability", "entropy_weight")


def arpo_rollout(case: Mapping[str, Any]) -> Mapping[str, Any]:
    """Outputs of a case of `arpo_rollout.json`."""
    return replay(case, lambda: part("sampler", "arpo", **{name: case[name] for name in _OPTIONS}))


def aepo_rollout(case: Mapping[str, Any]) -> Mapping[str, Any]:
    """Outputs of a case of `aepo_rollout.json`; the tasks of a batch share their rounds, as in the released code."""
    options = {name: case[name] for name in (*_OPTIONS, "dynamic")} | {"reset": "released"}
    rounds: set[int] = set()
    return replay(case, lambda: part("sampler", "aepo", rounds, **options))


ADAPTERS = {"arpo_rollout": arpo_rollout, "aepo_rollout": aepo_rollout}
