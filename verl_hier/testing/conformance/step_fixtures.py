"""Adapters of the fixtures of step-level group methods: rows are turns with an anchor state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from verl_hier.credit import group_ids, rewards_to_go
from verl_hier.graph.turn_table import TurnTable
from verl_hier.testing.conformance.group_fixtures import first_seen, on_mask
from verl_hier.testing.conformance.registry import credit_of, plugin_module
from verl_hier.testing.conformance.tables import make_table

Case = Mapping[str, Any]
Outputs = dict[str, Any]


def step_table(case: Case) -> TurnTable:
    """Turns of GiGPO-style rows."""
    return make_table(
        {
            "group": case["index"],
            "episode": case["traj_index"],
            "turn": case["step_idx"],
            "reward": np.asarray(case["step_reward"], np.float64),
            "return": np.asarray(case["episode_return"], np.float64),
            "anchor": np.asarray(case["anchor_obs"], str),
        }
    )


def gigpo(case: Case) -> Outputs:
    """The plugin's total, and its two levels apart by omega 0 and the difference."""
    table = step_table(case)
    similarity = case["similarity_thresh"] if case["enable_similarity"] else None
    options = {"gamma": case["gamma"], "norm": case["mode"], "eps": case["epsilon"], "similarity": similarity}
    total = credit_of("gigpo", table, omega=case["step_advantage_w"], **options)
    anchor = table["anchor"]
    if similarity is not None:
        anchor = plugin_module("estimators.gigpo").similar_anchors(table["group"], anchor, table.anchors, similarity)
    lengths = np.asarray(case["response_len"])
    mask = np.arange(lengths.max()) < lengths[:, None]
    return {
        "discounted_returns": rewards_to_go(table, case["gamma"]),
        "step_group": first_seen(group_ids(table["group"], anchor)),
        "episode_adv": credit_of("gigpo", table, omega=0.0, **options),
        "adv_row": total,
        "adv_full": on_mask(total, mask),
    }


def hgpo(case: Case) -> Outputs:
    """Rows as GiGPO's."""
    table = step_table(case)
    options = {
        "history": case["history_length"],
        "alpha": case["length_weight_alpha"],
        "gamma": case["gamma"],
        "norm": case["mode"],
        "base_group": case["base_group"],
        "eps": case["epsilon"],
    }
    returns = rewards_to_go(table, case["gamma"])
    return {"discounted_returns": returns, "adv_row": credit_of("hgpo", table, **options)}


ADAPTERS: dict[str, Callable[[Case], Outputs]] = {
    "gigpo": gigpo,
    "hgpo": hgpo,
}
