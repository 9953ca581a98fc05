"""Adapters of the recorded cases of critic-based and token-level methods."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.conformance.builtin_parts import plugin_module
from tests.conformance.layout import Case, Outputs
from verl_hier.credit.estimate import estimate
from verl_hier.credit.tables import make_table
from verl_hier.graph.turn_table import TurnTable
from verl_hier.testing.builtin import credit_of, estimator, full_credit

Array = NDArray[Any]


def read_values(case: Case, name: str) -> Array:
    """Value of each row at the first place of its mask, or at its last token where the mask is empty."""
    valid = np.asarray(case["response_mask"], bool)
    at = np.asarray(case[f"value_mask_{name}"], bool) & valid
    place = np.where(at.any(1), at.argmax(1), np.maximum(valid.sum(1) - 1, 0))
    return np.asarray(case[f"value_{name}"], np.float64)[np.arange(len(valid)), place]


def hiper_table(case: Case) -> TurnTable:
    """Rows are turns, each with one value of every head that the case has."""
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
    for name, column in (("low", "value_low"), ("high", "value_high"), ("term", "value_term")):
        if case.get(f"value_{name}") is not None and case.get(f"value_mask_{name}") is not None:
            turns[column] = read_values(case, name)
    order = np.lexsort((np.asarray(turns["turn"]), np.asarray(turns["episode"])))
    segment = np.empty(len(order), np.int64)
    segment[order] = np.cumsum(np.asarray(case["switch"])[order])
    turns["segment"] = segment
    # A mask that the function is not given: all tokens act, and no token belongs to a subgoal or a switch.
    given = {
        name: mask & (np.asarray(case[key], bool) if case.get(key) is not None else name == "action")
        for name, key in ((name, f"{name}_mask") for name in ("action", "subgoal", "switch"))
    }
    if case.get("subgoal_mask") is not None:
        texts = [tuple(np.asarray(r)[m]) for r, m in zip(case["responses"], given["subgoal"], strict=True)]
        numbers = {text: number for number, text in enumerate(sorted(set(texts) - {()}))}
        turns["subgoal"] = np.asarray([numbers.get(text, -1) for text in texts])
    return make_table(turns, tokens={"turn": rows, **{name: at[rows, columns] for name, at in given.items()}})


HIPER_OPTIONS = {
    "keep_consistency_penalty": "consistency_penalty",
    "keep_consistency_requires_both": "consistency_needs_both",
    "invalid_action_penalty_coef": "format_penalty",
    "assign_high_to_subgoal": "high_to_subgoal",
    "assign_high_to_switch": "high_to_switch",
    "assign_term_to_switch": "term_to_switch",
}
"""The released configuration's names of our options."""
HIPER_UNUSED = ("value_key_low", "value_key_high", "value_key_term", "include_tags_mask")


def hiper_options(cfg: Case) -> dict[str, Any]:
    """The released configuration as options of the estimator, with the released defaults."""
    given = {HIPER_OPTIONS.get(key, key): value for key, value in cfg.items() if key not in HIPER_UNUSED}
    return {"norm_adv": False, "format_penalty": 0.0, "keep_penalty_mode": "fixed"} | given


def hiper(case: Case) -> Outputs:
    """All three levels at their masked places, and the sum over tokens."""
    table = hiper_table(case)
    options = estimator("hiper").options(**hiper_options(case["cfg"]))
    module = plugin_module("estimators.hiper")
    levels = module.hae(table, module.shaped_rewards(table, options), options)
    turn = table["tokens.turn"]
    low, high, term = module.token_masks(table, levels, options)
    mask = np.asarray(case["response_mask"], bool)
    out: Outputs = {}
    for name, values, target, carries in (
        ("low", levels.low, levels.low_target, low),
        ("high", levels.high, levels.high_target, high),
        ("term", levels.term, levels.term_target, term),
    ):
        here = np.bincount(turn, carries, len(table)) > 0
        known = case.get(f"value_mask_{name}")
        read = np.zeros(len(mask), bool) if known is None else (np.asarray(known, bool) & mask).any(1)
        level = module.level_values(table, values, turn, carries, options)
        out[f"advantages_{name}"] = np.where(here, level, 0.0)
        out[f"returns_{name}"] = np.where(read, 0.0 if target is None else target, 0.0)
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


def igpo_table(case: Case) -> TurnTable:
    """Rows of tokens; a masked place cuts the chain, so every run of the mask is a turn."""
    mask, rewards = np.asarray(case["response_mask"], bool), np.asarray(case["token_level_rewards"], np.float64)
    rows, columns = np.nonzero(mask)
    starts = np.append(True, (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1] + 1))
    first = np.flatnonzero(starts)
    length = np.diff(np.append(first, len(rows)))
    behind = columns[first] + length
    before = np.append(0, np.where(rows[first][1:] == rows[first][:-1], behind[:-1], 0))
    return make_table(
        {
            "group": np.asarray(case["index"])[rows[first]],
            "episode": rows[first],
            "info_gain": np.zeros(len(first)),
            "n_tokens": length,
            "n_prompt": columns[first] - before,
        },
        tokens={"turn": np.cumsum(starts) - 1, "reward": rewards[rows, columns]},
    )


def igpo(case: Case, form: str) -> Outputs:
    """Advantages and returns of a form of the estimator, on the mask."""
    mask = np.asarray(case["response_mask"], bool)
    names = {"gamma": "gamma", "epsilon": "eps", "norm_adv_by_std_in_grpo": "scale"}
    options = {ours: case[name] for name, ours in names.items() if name in case}
    credit = full_credit("igpo", igpo_table(case), form=form, **options)
    out = {name: np.zeros(mask.shape) for name in ("advantages", "returns")}
    out["advantages"][mask], out["returns"][mask] = credit.values, credit.returns
    return out


def mars(case: Case) -> Outputs:
    """Rows are one player's view of a game; turns end at `turn_end`. Outputs drop the first token.

    Behind the last turn of a row nothing follows, and at a prompt the discounted return of the next place does.
    """
    ends, mask = np.asarray(case["turn_end"], bool), np.asarray(case["response_mask"], bool)
    rewards = np.asarray(case["turn_rewards"], np.float64)
    rows, columns = np.nonzero(ends)
    player = np.asarray([name.rsplit("_p", 1)[-1] if "_p" in name else "0" for name in case["group_ids"]])
    games = np.unique(case.get("tags") or [""] * len(ends), return_inverse=True)[1]
    upto = np.cumsum(ends[:, ::-1], 1)[:, ::-1]
    turn_of = np.cumsum(np.append(0, ends.sum(1)))[1:, None] - upto
    live = (upto > 0) & mask
    table = make_table(
        {
            "episode": rows,
            "agent": player[rows].astype(np.int64),
            "reward": rewards[rows, columns],
            "n_tokens": np.bincount(turn_of[live], minlength=len(rows)),
            "n_prompt": np.bincount(turn_of[(upto > 0) & ~mask], minlength=len(rows)),
        },
        episodes={"source": games[np.unique(rows)]},
        tokens={"turn": turn_of[live]},
    )
    module, spec = plugin_module("estimators.mars"), estimator("mars")
    names = ("separate_players", "whiten_rewards", "whiten_advantages", "gamma")
    norms = {name: _norm(case.get(name)) for name in ("reward_norm", "advantage_norm")}
    padded = bool((~mask[:, 1:] & (upto[:, 1:] == 0)).any())
    games_apart = case.get("grouping", "tags") == "tags"
    given = {name: case[name] for name in names}
    options = spec.options(**given, **norms, separate_games=games_apart, padding_value=padded)
    shaped = module.player_rewards(table, options)
    at_ends, returns, values = (np.zeros(ends.shape) for _ in range(3))
    at_ends[ends] = shaped
    returns[live] = module.token_returns(table, shaped, options)
    for place in reversed(range(ends.shape[1] - 1)):
        returns[:, place] = np.where(live[:, place], returns[:, place], options.gamma * returns[:, place + 1])
    values[live] = np.asarray(estimate(spec, table, options).values)
    return {"rewards_after_player_norm": at_ends[:, 1:], "raw_returns": returns[:, 1:], "advantages": values[:, 1:]}


def _norm(name: str | None) -> str:
    """Our name of a normalisation, whose absence has several."""
    return "none" if name in (None, "", "identity", "none") else name
