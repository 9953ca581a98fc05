"""Recorded rollouts of the released ARPO, played to the sampler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl_hier_plugins.arpo.chains import ChainOptions
from verl_hier_plugins.arpo.sampler import ARPO

from verl_hier.conformance.rounds import replay

NAMES = ("initial_rollouts", "beam_size", "branch_probability", "entropy_weight")


def arpo_rollout(case: Mapping[str, Any]) -> Mapping[str, Any]:
    """Outputs of a case of `arpo_rollout.json`."""
    options = ChainOptions(**{name: case[name] for name in NAMES})
    return replay(case, lambda: ARPO(options))


REPLAYS = {"arpo_rollout": arpo_rollout}
