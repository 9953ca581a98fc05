"""Adapters of the fixtures of group-relative methods: fixture fields to turn-table columns, one function a method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verl_hier.credit import group_ids, turn_keys
from verl_hier.credit.estimate import estimate
from verl_hier.testing.conformance.registry import credit_of, estimator, plugin_module
from verl_hier.testing.conformance.tables import make_table

Case = Mapping[str, Any]
Outputs = dict[str, Any]


def on_mask(values: ArrayLike, mask: ArrayLike) -> NDArray[np.float64]:
    """(B,) values on the (B, L) positions of a mask."""
    return np.asarray(values, np.float64)[:, None] * np.asarray(mask, np.float64)


def grpo(case: Case) -> Outputs:
    """One row an episode of one turn."""
    table = make_table({"group": case["index"], "reward": case["score"]})
    scale = "sample" if case["norm_by_std"] else "none"
    return {"adv": on_mask(credit_of("grpo", table, scale=scale, eps=case["epsilon"]), case["response_mask"])}


def mc_grpo(case: Case) -> Outputs:
    """Rewards of consecutive groups; credit and the rows that leave the loss."""
    rewards = np.asarray(case["rewards"], np.float64)
    table = make_table({"group": np.arange(len(rewards)) // case["group_size"], "reward": rewards})
    spec = estimator("mc_grpo")
    credit = estimate(spec, table, spec.options(no_deviation="divide"))
    return {"advantages": credit.values, "dropped_pivot": np.asarray(credit.weight) == 0}


def drmas(case: Case) -> Outputs:
    """Rows are agent calls that carry a score each."""
    score = np.asarray(case["score"], np.float64)
    table = make_table(
        {
            "group": case["uid"],
            "episode": case["traj_uid"],
            "agent": case["agent_id"],
            "reward": np.zeros(len(score)),
            "return": score,
        }
    )
    options = {"agent_wise": case["group_by_agent_id"], "eps": case["epsilon"], "norm_by_std": case["norm_by_std"]}
    return {f"{base}_adv": credit_of("dr_mas", table, baseline=base, **options) for base in ("grpo", "rloo")}


def at_grpo(case: Case) -> Outputs:
    """Rows are candidates; `sample_num` neighbouring environments hold one problem."""
    turns = {
        "group": np.asarray(case["env_idx"]) // case["sample_num"],
        "episode": case["env_idx"],
        "agent": case["agent_idx"],
        "reward": np.asarray(case["reward"], np.float64),
    }
    table = make_table(turns)
    table.turns["turn"] = np.asarray(case["turn_idx"])
    keys = turn_keys(table, ("group", "turn", "agent"))
    return {
        "kept_rows": np.arange(len(table)),
        "group": first_seen(keys),
        "grpo_adv": credit_of("at_grpo", table),
    }


def metaagentx(case: Case) -> Outputs:
    """Rows of designers (role 0) and executors; the design of an executor becomes the row of its designer."""
    role, reward = np.asarray(case["role"]), np.asarray(case["reward"], np.float64)
    design = group_ids(case["problem"], case["design"])
    designer = np.full(design.max() + 1, -1)
    designer[design[role == 0]] = np.flatnonzero(role == 0)
    plan = np.where(role == 0, -1, designer[design])
    turns = {"group": case["problem"], "level": role, "plan": plan, "return": reward}
    mode, executions = case["executor_group_mode"], case["execute_sample_num"]
    options = {"executor_group": mode, "executions": executions}
    table = make_table(turns)
    spec = estimator("metaagent_x")
    split = plugin_module("estimators.metaagent_x").by_design(table, spec.options(**options))
    columns = ("group", "level", "plan") if split else ("group", "level")
    return {"group": first_seen(turn_keys(table, columns)), "grpo_adv": credit_of("metaagent_x", table, **options)}


def coda_peco(case: Case) -> Outputs:
    """Rows of planners and executors with the score of their rollout."""
    table = make_table(
        {
            "group": case["question"],
            "episode": case["rollout"],
            "level": np.asarray(case["role"]) != "planner",
            "return": np.asarray(case["score"], np.float64),
        }
    )
    return {"adv": credit_of("coda_peco", table, eps=case["epsilon"])}


def first_seen(keys: ArrayLike) -> NDArray[np.int64]:
    """Group numbers in the order of their first row."""
    unique, first, inverse = np.unique(np.asarray(keys), return_index=True, return_inverse=True)
    rank = np.empty(len(unique), np.int64)
    rank[np.argsort(first)] = np.arange(len(unique))
    return rank[inverse]


ADAPTERS: dict[str, Callable[[Case], Outputs]] = {
    "grpo": grpo,
    "mc_grpo": mc_grpo,
    "drmas": drmas,
    "at_grpo": at_grpo,
    "metaagentx": metaagentx,
    "coda_peco": coda_peco,
}
