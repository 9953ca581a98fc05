"""Adapters of the recorded cases of methods that read columns of probes and of a process reward."""

from __future__ import annotations

import numpy as np

from tests.conformance.builtin_parts import plugin_module
from tests.conformance.layout import Case, Outputs
from verl_hier.credit.tables import make_table
from verl_hier.testing.builtin import credit_of, estimator
from verl_hier.training.process_reward import pair_loss

TURN_CREDITS = {"Equalized": "equal", "R2G": "reward_to_go", "EM": "exponential"}


def infopo(case: Case) -> Outputs:
    """One list a trajectory; the released decay is a factor of the weight."""
    sizes = [len(rewards) for rewards in case["turn_reward"]]
    table = make_table(
        {
            "group": np.repeat(np.asarray(case["uid"]), sizes),
            "episode": np.repeat(np.arange(len(sizes)), sizes),
            "reward": np.concatenate(case["turn_reward"]).astype(np.float64),
            "feedback_gain": np.concatenate(case["info_gain"]).astype(np.float64),
            "n_tokens": np.concatenate(case["n_tokens"]),
        }
    )
    given = {
        "weight": case["intrinsic_weight"] * np.exp(-case["decay"] * case["epoch"]),
        "gate_temperature": case["gate_temperature"],
        "norm_by_std": case["norm_by_std"],
        "normalise_gain": case["normalize_intrinsic"],
        "only_gain": case["intrinsic_only"],
        "turn_credit": TURN_CREDITS[case["turn_credit"]],
        "score": "discounted" if case["trajectory_score"] == "R2G" else "sum",
        "gamma": case["gamma"],
    }
    module, options = plugin_module("estimators.infopo"), estimator("infopo").options(**given)
    outcome, gate = module.outcome_advantage(table, options)
    gain = module.gain_advantage(table, options)
    ends = np.cumsum(sizes)

    def lists(values: np.ndarray) -> list[np.ndarray]:
        return np.split(values, ends[:-1])

    return {
        "outcome_advantage": lists(outcome),
        "intrinsic_advantage": lists(gain),
        "magnitude_ratio": module.magnitude_ratio(table, outcome, gain, options),
        "gate": gate[ends - sizes],
        "advantage": lists(credit_of("infopo", table, **given)),
    }


COMBINE = {"rloo": "rloo", "grpo": "grpo", "rfpp": "reinforce", "combined": "sum_first"}


def istar(case: Case) -> Outputs:
    """Rows are turns."""
    table = make_table(
        {
            "group": case["uid"],
            "episode": case["trajectory"],
            "return": np.asarray(case["episode_return"], np.float64),
            "step_reward": np.asarray(case["step_reward"], np.float64),
            "n_tokens": case["n_tokens"],
        }
    )
    given = {
        "combine": COMBINE[case["estimator"]],
        "step_weight": case["step_advantage_w"],
        "norm_by_std": case["mode"] == "mean_std_norm",
        "only_steps": case["process_only"],
    }
    return {"advantage": credit_of("istar", table, **given)}


def istar_rm_loss(case: Case) -> Outputs:
    """Rows are turns with a log-ratio a token; the gradient is spread as the trainer spreads it."""
    ratio, length = np.asarray(case["log_ratio"], np.float64), np.asarray(case["n_tokens"])
    mask = np.arange(ratio.shape[1]) < length[:, None]
    table = make_table({"group": case["uid"], "episode": case["trajectory"], "n_tokens": length})
    solved = np.zeros(len(table.episodes["return"]), bool)
    solved[table["episode"]] = np.asarray(case["success"]) > 0
    rewards = case["beta"] * (ratio * mask).sum(1)
    found = pair_loss(table, rewards, solved, np.asarray(case["active"], bool))
    return {"loss": found.loss, "grad": case["beta"] * found.gradient[:, None] * mask}
