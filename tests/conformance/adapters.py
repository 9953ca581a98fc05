"""Adapters of recorded cases: one function a method turns a case into the input of our part and its result back.

Here are methods whose rows are turns or episodes, the policy losses, the reward tables and the samplers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from tests.conformance import (
    branch_fixtures,
    column_fixtures,
    critic_fixtures,
    fork_fixtures,
    state_fixtures,
    team_fixtures,
    tree_fixtures,
)
from tests.conformance.builtin_parts import part, plugin_module
from tests.conformance.layout import ActorConfig, Case, Outputs, first_seen, on_mask
from tests.conformance.rounds import replay
from verl_hier.credit import group_ids, rewards_to_go, turn_keys
from verl_hier.credit.tables import make_table
from verl_hier.graph.turn_table import TurnTable
from verl_hier.testing.builtin import credit_of, estimator, full_credit


def grpo(case: Case) -> Outputs:
    """One row an episode of one turn."""
    table = make_table({"group": case["index"], "reward": case["score"]})
    scale = "sample" if case["norm_by_std"] else "none"
    return {"adv": on_mask(credit_of("grpo", table, scale=scale, eps=case["epsilon"]), case["response_mask"])}


def mc_grpo(case: Case) -> Outputs:
    """Rewards of consecutive groups; credit and the rows that leave the loss."""
    rewards = np.asarray(case["rewards"], np.float64)
    table = make_table({"group": np.arange(len(rewards)) // case["group_size"], "reward": rewards})
    credit = full_credit("mc_grpo", table, no_deviation="divide")
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
    alone = case.get("rollout_mode") == "no_tree"
    columns = ("episode",) if alone else ("group", "turn", "agent")
    credit = full_credit("at_grpo", table, group_by=columns, keep="last_turn" if alone else "all")
    kept = np.flatnonzero(np.ones(len(table)) if credit.weight is None else credit.weight)
    keys = turn_keys(table, columns)[kept]
    return {"kept_rows": kept, "group": first_seen(keys), "grpo_adv": np.asarray(credit.values)[kept]}


def metaagentx(case: Case) -> Outputs:
    """Rows of designers (role 0) and executors; the design of an executor becomes the row of its designer."""
    role, reward = np.asarray(case["role"]), np.asarray(case["reward"], np.float64)
    design = group_ids(case["problem"], case["design"])
    designer = np.full(design.max() + 1, -1)
    designer[design[role == 0]] = np.flatnonzero(role == 0)
    plan = np.where(role == 0, -1, designer[design])
    turns = {"group": case["problem"], "level": role, "plan": plan, "return": reward}
    # Without a number of executions a design is executed once.
    options = {"executor_group": case["executor_group_mode"], "executions": case["execute_sample_num"] or 1}
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


def aepo_policy_loss(case: Case) -> Outputs:
    """Loss, metrics and gradient; the entropy-aware advantage is applied before, as the estimator does."""
    import torch

    losses, module = plugin_module("losses.aepo"), plugin_module("estimators.aepo")
    advantages, mask = np.asarray(case["advantages"]), np.asarray(case["response_mask"])
    if case["enable_entropy_balanced_advantage"]:
        advantages = advantages * module.entropy_factor(case["entropy"], mask, 0.2)
    config = ActorConfig(
        clip_ratio=case["clip_low"],
        clip_ratio_low=case["clip_low"],
        clip_ratio_high=case["clip_high"],
        clip_ratio_c=case["clip_c"],
        global_batch_info={},
    )
    log_prob = torch.tensor(case["log_prob"], dtype=torch.float64, requires_grad=True)
    old = torch.tensor(case["old_log_prob"], dtype=torch.float64)
    loss, metrics = losses.clipped_loss(
        old,
        log_prob,
        torch.tensor(advantages, dtype=torch.float64),
        torch.tensor(mask, dtype=torch.float64),
        case["loss_agg_mode"],
        config,
        None,
        balanced=case["enable_entropy_balanced_clipping"],
    )
    loss.backward()
    return {
        "loss": loss.item(),
        "clipfrac": metrics["actor/pg_clipfrac"],
        "ppo_kl": metrics["actor/ppo_kl"],
        "clipfrac_lower": metrics["actor/pg_clipfrac_lower"],
        "grad_log_prob": log_prob.grad.numpy() if log_prob.grad is not None else np.zeros(mask.shape),
    }


def arise(case: Case) -> Outputs:
    """Marginal value of a skill, or the rewards of an episode (of several, where a case has lists)."""
    module = plugin_module("estimators.arise")
    if "unaided" in case:
        return {"out": module.skill_value(case["unaided"], case["verify"])}
    used, correct = (np.atleast_1d(np.asarray(case[name], bool)) for name in ("skill_used", "correct"))
    table = make_table({"reward": correct.astype(float), "skill_used": used}, episodes={"success": correct})
    total = module.episode_rewards(table, module.ARISEOptions())
    parts = {"out": total, "total": total, "r_task": correct.astype(float), "r_skill": total - correct}
    return parts if np.ndim(case["correct"]) else {name: values[0] for name, values in parts.items()}


_OPTIONS = ("initial_rollouts", "beam_size", "branch_probability", "entropy_weight")


def arpo_rollout(case: Case) -> Outputs:
    """Outputs of a case of `arpo_rollout.json`."""
    return replay(case, lambda: part("sampler", "arpo", **{name: case[name] for name in _OPTIONS}))


def aepo_rollout(case: Case) -> Outputs:
    """Outputs of a case of `aepo_rollout.json`; the tasks of a batch share their rounds, as in the released code."""
    options = {name: case[name] for name in (*_OPTIONS, "dynamic")} | {"reset": "released"}
    rounds: set[int] = set()
    return replay(case, lambda: part("sampler", "aepo", rounds, **options))


ADAPTERS: dict[str, Callable[[Case], Outputs]] = {
    "grpo": grpo,
    "mc_grpo": mc_grpo,
    "drmas": drmas,
    "at_grpo": at_grpo,
    "metaagentx": metaagentx,
    "coda_peco": coda_peco,
    "gigpo": gigpo,
    "hgpo": hgpo,
    "aepo_policy_loss": aepo_policy_loss,
    "arise": arise,
    "tree_grpo": tree_fixtures.tree_grpo,
    "tree_grpo_diffscore": tree_fixtures.tree_diff,
    "treerl": tree_fixtures.treerl,
    "treepo": tree_fixtures.treepo,
    "hiper_hae": critic_fixtures.hiper,
    "marft_action_gae": critic_fixtures.marft,
    "ragen_bilevel_gae": critic_fixtures.ragen,
    "igpo": partial(critic_fixtures.igpo, form="trainer"),
    "igpo_repo_discounted": partial(critic_fixtures.igpo, form="discounted"),
    "infopo": column_fixtures.infopo,
    "istar": column_fixtures.istar,
    "istar_rm_loss": column_fixtures.istar_rm_loss,
    "mars": critic_fixtures.mars,
    "arpo_rollout": arpo_rollout,
    "aepo_rollout": aepo_rollout,
    "at2po": branch_fixtures.at2po,
    "at2po_expand": branch_fixtures.at2po_expand,
    "at2po_policy_loss": branch_fixtures.at2po_policy_loss,
    "branpo": branch_fixtures.branpo,
    "branpo_sampler": branch_fixtures.branpo_sampler,
    "grpo_roc": branch_fixtures.grpo_roc,
    "t2po_resample": branch_fixtures.t2po_resample,
    "c3": fork_fixtures.c3,
    "ccpo": fork_fixtures.ccpo,
    "boad": state_fixtures.boad,
    "ccpo_history": fork_fixtures.ccpo_history,
    "sepo": fork_fixtures.sepo,
    "mars2": fork_fixtures.mars2,
    "magrpo": fork_fixtures.magrpo,
    "ppr_renorm": fork_fixtures.ppr_renorm,
    "epo": state_fixtures.epo,
    "gdro": state_fixtures.gdro,
    "hierarchical_grpo": team_fixtures.hierarchical_grpo,
    "matpo": team_fixtures.matpo,
    "rae": state_fixtures.rae,
    "spiral_rae": state_fixtures.spiral_rae,
    "wideseek_credit": team_fixtures.wideseek_credit,
    "wideseek_r1": team_fixtures.wideseek_r1,
}
