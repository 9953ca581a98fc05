"""Recorded rollouts of the released AEPO, played to the sampler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl_hier_plugins.aepo.sampler import AEPO, BalancedOptions
from verl_hier_plugins.arpo.replay import NAMES

from verl_hier.conformance.rounds import replay


def aepo_rollout(case: Mapping[str, Any]) -> Mapping[str, Any]:
    """Outputs of a case of `aepo_rollout.json`."""
    options = BalancedOptions(**{name: case[name] for name in (*NAMES, "dynamic")}, reset="released")
    rounds: set[int] = set()
    return replay(case, lambda: AEPO(options, rounds))


REPLAYS = {"aepo_rollout": aepo_rollout}
