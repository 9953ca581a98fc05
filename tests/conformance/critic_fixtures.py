"""Adapters of the recorded cases of critic-based and token-level methods."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.conformance.builtin_parts import plugin_module
from tests.conformance.layout import Case, Outputs
from verl_hier.credit.estimate import estimate
from verl_hier.graph.turn_table import TurnTable
from verl_hier.testing.builtin import credit_of, estimator, full_credit
from verl_hier.testing.tables import make_table

Array = NDArray[Any]


def hiper_table(case: Case) -> TurnTable:
    """Rows are turns; values are read at the place of their mask, 0 where it is empty."""
    mask = np.asarray(case["response_mask"], bool)
    rows, columns = np.nonzero(mask)
    turns: dict[str, Any] = {
        "episode": case["traj_uid"],
        "turn": case["turn_idx"],
        "reward": np.asarray(case["rewards"], np.float64),
        "done": case["dones"],
        "valid": np.asarray(case.get("is_action_valid", np.ones(len(mask)))) > 0,
        "switch": case["switch"],
    }
    for name, column in (("low", "value"), ("high", "value_high"), ("term", "value_term")):
        if case.get(f"value_{name}") is not None:
            at = np.asarray(case[f"value_mask_{name}"], bool)
            values = np.where(at, np.asarray(case[f"value_{name}"], np.float64), 0.0)
            turns[column] = values.sum(1) / np.maximum(at.sum(1), 1)
    order = np.lexsort((np.asarray(turns["turn"]), np.asarray(turns["episode"])))
    segment = np.empty(len(order), np.int64)
    segment[order] = np.cumsum(np.asarray(case["switch"])[order])
    turns["segment"] = segment
    subgoal = np.asarray(case["subgoal_mask"], bool)
    texts = [tuple(np.asarray(r)[m]) for r, m in zip(case["responses"], subgoal, strict=True)]
    numbers = {text: number for number, text in enumerate(sorted(set(texts) - {()}))}
    turns["subgoal"] = np.asarray([numbers.get(text, -1) for text in texts])
    masks = {name: np.asarray(case[f"{name}_mask"], bool)[rows, columns] for name in ("action", "subgoal", "switch")}
    return make_table(turns, tokens={"turn": rows, **masks})


def hiper(case: Case) -> Outputs:
    """All three levels at their masked places, and the sum over tokens."""
    table, cfg = hiper_table(case), dict(case["cfg"])
    names = {"keep_consistency_penalty": "consistency_penalty", "invalid_action_penalty_coef": "invalid_penalty"}
    defaults = {"norm_adv": False, "invalid_penalty": 0.0}
    options = estimator("hiper").options(**defaults | {names.get(key, key): value for key, value in cfg.items()})
    module = plugin_module("estimators.hiper")
    levels = module.hae(table, module.shaped_rewards(table, options), options)
    turn = table["tokens.turn"]
    action, subgoal, switch = module.token_masks(table, levels)
    out: Outputs = {}
    for name, values, target, mask in (
        ("low", levels.low, levels.low_target, action),
        ("high", levels.high, levels.high_target, subgoal),
        ("term", levels.term, levels.term_target, switch),
    ):
        here = np.bincount(turn, mask, len(table)) > 0
        read = np.asarray(case[f"value_mask_{name}"], bool).any(1) if f"value_mask_{name}" in case else here
        level = module.level_values(table, values, turn, mask, options)
        out[f"advantages_{name}"] = np.where(here, level, 0.0)
        out[f"returns_{name}"] = np.where(read, 0.0 if target is None else target, 0.0)
    mask = np.asarray(case["response_mask"], bool)
    full = np.zeros(mask.shape)
    full[mask] = estimate(estimator("hiper"), table, options).values
    out["advantages_full"] = full
    return out


def marft(case: Case) -> Outputs:
    """Arrays (step, thread, agent); a thread is one path, and a mask of 0 ends an episode inside it.

    The released buffer applies the mask of a step to the links between its agents too, so the first step after an
    episode's end loses them; the adapter expresses that as `done`.
    """
    rewards = np.asarray(case["rewards"], np.float64)
    agents = rewards.shape[2]
    values, masks = np.asarray(case["values"], np.float64), np.asarray(case["masks"], np.float64)
    done = np.where(np.arange(agents) < agents - 1, masks[:-1], masks[1:]) == 0
    step, thread, agent = np.indices(rewards.shape)
    table = make_table(
        {
            "episode": thread.ravel(),
            "turn": (step * agents + agent).ravel(),
            "agent": agent.ravel(),
            "reward": rewards.ravel(),
            "value": values[:-1].ravel(),
            "done": done.ravel(),
            "bootstrap": np.broadcast_to(np.asarray(case["next_value"])[None, :, :1], rewards.shape).ravel(),
        }
    )
    credit = full_credit("marft", table, gamma=case["gamma"], lam=case["lam"], normalise=False)
    returns = np.asarray(credit.returns).reshape(rewards.shape)
    return {"advantages": np.asarray(credit.values).reshape(rewards.shape), "returns": returns}


def ragen(case: Case) -> Outputs:
    """Rows of tokens whose turns end where the reward is not 0."""
    rewards, mask = np.asarray(case["token_level_rewards"], np.float64), np.asarray(case["loss_mask"], bool)
    rows, columns = np.nonzero(mask)
    ends = rewards[rows, columns] != 0
    order = np.append(True, (rows[1:] != rows[:-1]) | ends[:-1])
    turn = np.cumsum(order) - 1
    first = np.flatnonzero(order)
    table = make_table(
        {"episode": rows[first], "reward": np.bincount(turn, rewards[rows, columns])},
        tokens={"turn": turn, "value": np.asarray(case["values"], np.float64)[rows, columns]},
    )
    options = {"gamma": case["gamma"], "lam": case["lam"], "high_gamma": case["high_level_gamma"]}
    raw = credit_of("ragen_bilevel", table, whiten=False, **options)
    padding = -raw.mean() / np.sqrt(raw.var(ddof=1) + 1e-8)
    out = {name: np.zeros(mask.shape) for name in ("advantages_whitened", "returns")}
    out["advantages_whitened"][:] = padding
    credit = full_credit("ragen_bilevel", table, **options)
    out["advantages_whitened"][mask], out["returns"][mask] = credit.values, credit.returns
    return out


def igpo_repo(case: Case) -> Outputs:
    """Rows of tokens; a masked place cuts the chain, so every run of the mask is a turn."""
    mask, rewards = np.asarray(case["response_mask"], bool), np.asarray(case["token_level_rewards"], np.float64)
    rows, columns = np.nonzero(mask)
    starts = np.append(True, (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1] + 1))
    first = np.flatnonzero(starts)
    table = make_table(
        {
            "group": np.asarray(case["index"])[rows[first]],
            "episode": rows[first],
            "info_gain": np.zeros(len(first)),
        },
        tokens={"turn": np.cumsum(starts) - 1, "reward": rewards[rows, columns]},
    )
    credit = full_credit("igpo", table, form="repo", gamma=case["gamma"], eps=case["epsilon"])
    out = {name: np.zeros(mask.shape) for name in ("advantages", "returns")}
    out["advantages"][mask], out["returns"][mask] = credit.values, credit.returns
    return out


def mars(case: Case) -> Outputs:
    """Rows are one player's view of a game; turns end at `turn_end`. Outputs drop the first token."""
    ends, mask = np.asarray(case["turn_end"], bool), np.asarray(case["response_mask"], bool)
    rewards = np.asarray(case["turn_rewards"], np.float64)
    rows, columns = np.nonzero(ends)
    player = np.asarray([name.rsplit("_p", 1)[1] for name in case["group_ids"]])
    upto = np.cumsum(ends[:, ::-1], 1)[:, ::-1]
    turn_of = np.cumsum(np.append(0, ends.sum(1)))[1:, None] - upto
    live = upto > 0
    table = make_table(
        {
            "episode": rows,
            "agent": player[rows].astype(np.int64),
            "reward": rewards[rows, columns],
            "n_tokens": np.bincount(turn_of[live & mask], minlength=len(rows)),
        }
    )
    module, spec = plugin_module("estimators.mars"), estimator("mars")
    names = ("reward_norm", "separate_players", "whiten_rewards", "whiten_advantages", "advantage_norm", "gamma")
    options = spec.options(**{name: case[name] for name in names})
    shaped = module.player_rewards(table, options)
    returns = module.player_returns(table, shaped, options)
    values = np.asarray(estimate(spec, table, options).values)

    def spread(per_turn: Array, where: Array) -> Array:
        return np.where(where, per_turn[np.where(live, turn_of, 0)], 0.0)[:, 1:]

    at_ends = np.zeros(ends.shape)
    at_ends[ends] = shaped
    return {
        "rewards_after_player_norm": at_ends[:, 1:],
        "raw_returns": spread(returns, live),
        "advantages": spread(values, live & mask),
    }
