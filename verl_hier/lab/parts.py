"""The product's samplers and schedules in the lab: with which options, and behind which estimator of their recipes.

An action is one token here, so segments of text are one token long; a task has eight episodes, or nearly so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_FIRST = ("planner", "pioneer")
"""Roles that act first, in the worlds that have them."""


@dataclass(frozen=True)
class SamplerSetting:
    """A sampler in the lab.

    Attributes:
        estimator: what its recipe credits with.
        n: `actor_rollout_ref.rollout.n`.
        options: its own.
        credit: options of that estimator which its recipe needs.
    """

    estimator: str
    n: int = 8
    options: Mapping[str, Any] = field(default_factory=dict)
    credit: Mapping[str, Any] = field(default_factory=dict)


SAMPLERS: dict[str, SamplerSetting] = {
    "adaptive_n": SamplerSetting("grpo"),
    "aepo": SamplerSetting("aepo", options={"initial_rollouts": 4}),
    "anchored": SamplerSetting("gigpo"),
    "arpo": SamplerSetting("arpo", options={"initial_rollouts": 4}),
    "at2po": SamplerSetting("at2po", options={"chains": 4, "rounds": 2, "turns": 2}),
    "best_of_turn": SamplerSetting("at_grpo", 4, credit={"score": "candidate_reward"}),
    "branpo": SamplerSetting("branpo"),
    "c3": SamplerSetting("c3"),
    "ccpo": SamplerSetting("ccpo", options={"without": _FIRST}, credit={"roles": _FIRST}),
    "designs": SamplerSetting("metaagent_x", options={"executions": 2}),
    "grpo_roc": SamplerSetting("grpo"),
    "independent": SamplerSetting("grpo"),
    # Paths of few tokens: they are compared sooner, and the numbers of actions are no signs of mathematics.
    "latr": SamplerSetting("grpo", options={"lookahead": (2, 4), "keep_signs": False}, credit={"shared": "repeat"}),
    "magrpo": SamplerSetting("magrpo", 4),
    "mars2": SamplerSetting("mars2"),
    "nested": SamplerSetting("himac"),
    "overprovision": SamplerSetting("grpo"),
    "portool": SamplerSetting("portool"),
    "prune": SamplerSetting("grpo"),
    "rollback": SamplerSetting("grpo"),
    "sharp": SamplerSetting("sharp"),
    "t2po": SamplerSetting("gigpo"),
    "tree_grpo": SamplerSetting("tree_grpo", 6),
    "treepo": SamplerSetting("treepo", options={"segment_tokens": 1}),
    "treeps_rag": SamplerSetting("treeps_rag"),
    "treerl": SamplerSetting("treerl", options={"trees": 2, "tokens": 3, "branches": 1}),
    "treerpo": SamplerSetting("treerpo", options={"children": 2, "segment_tokens": 1}),
}
SCHEDULES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "agents": ("grpo", {"period": 5}),
    "alternating": ("himac@nested", {}),
    "bottom_up": ("coda_peco", {"steps": (25,)}),
    "ccpo_history": ("ccpo@ccpo", {"roles": _FIRST}),
    "epo": ("epo", {}),
    "joint": ("grpo", {}),
    "rae": ("rae", {}),
    "stagewise": ("metaagent_x@designs", {}),
}
"""Schedule to the method that it is shown with, and its options."""
SCHEDULED_CREDIT: dict[tuple[str, str], Mapping[str, Any]] = {("ccpo", "ccpo_history"): {"reward": "history"}}
"""Options of an estimator that a schedule asks for."""
SCHEDULED_WORLDS = ("two_clocks", "noisy_plans")
"""Worlds with the roles and levels that schedules choose among."""
SAMPLED_WORLDS = ("maze", "two_clocks", "two_agents", "early_end")
"""Worlds in which samplers are compared; their coroutines take too long for all of them."""
SAMPLED_TURNS, SAMPLED_TASKS, SAMPLED_RATE = 10_000, 4, 0.1
"""Turns of a run there, tasks of a batch, and learning rate: less than in the arrays, in larger steps."""
LONGER_TURNS = 25_000
"""Turns of those that have not learned there because the budget was too small for them."""


def sampled() -> list[str]:
    """The method of each sampler, as the command line says it."""
    return [f"{setting.estimator}@{name}" for name, setting in SAMPLERS.items()]


def scheduled() -> list[str]:
    """The method of each schedule, as the command line says it."""
    return [f"{method}+{name}" for name, (method, _) in SCHEDULES.items()]
