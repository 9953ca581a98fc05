"""Adapters of the recorded cases of BOAD, EPO, GDRO and RAE, whose statistics cross steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.conformance.builtin_parts import part, plugin_module
from tests.conformance.layout import Case, Outputs
from verl_hier.credit.tables import make_table
from verl_hier.graph.turn_table import TurnTable
from verl_hier.testing.builtin import full_credit

_SCORE = {"debias_scores_ema": "ema", "debias_scores": "mean"}
_NAMES = {
    "eta_q": "rate",
    "gamma": "exploration",
    "max_class_weight": "max_weight",
    "passk_num_bins": "bins",
    "passk_history_len": "history",
    "passk_hysteresis": "hysteresis",
    "passk_exclude_extremes": "exclude_extremes",
    "ema_beta": "ema",
    "loss_norm_by_class": "by_share",
    "use_zscore": "standardise",
    "z_std_floor": "z_floor",
    "z_cap": "z_cap",
    "passk_focus_warmup_steps": "focus_after",
    "passk_focus_ramp_steps": "focus_ramp",
}


def _options(case: Case) -> Any:
    """The configuration of the released code as options of the schedule."""
    config = case["config"]
    options = {ours: config[theirs] for theirs, ours in _NAMES.items() if theirs in config}
    # The released code clips these to what makes sense.
    options["bins"] = max(2, options.get("bins", 10))
    options["hysteresis"] = min(max(options.get("hysteresis", 0.0), 0.0), 0.49)
    options |= {"score": next((ours for theirs, ours in _SCORE.items() if config.get(theirs)), "sum")}
    if text := config.get("passk_edges", "").strip("[] "):
        options["edges"] = tuple(sorted({edge for edge in map(float, text.split(",")) if 0 < edge < 1}))
    if config.get("passk_focus_enable"):
        pairs = (pair.split(":") for pair in config.get("passk_focus_map", "").strip("{} ").split(",") if pair)
        options["focus"] = {number.strip(): float(factor) for number, factor in pairs}
    if case.get("arms"):
        options |= {
            "arms": tuple(sorted(set(case["arms"]))),
            "mean_episodes": float(case["bar_n"]),
            "dual_rate": case["dual_lr"],
        }
    return plugin_module("schedules.gdro").GDROOptions(**options)


def _named(values: dict[str, Any]) -> dict[str, Any]:
    return {f"accbin_{name}": value for name, value in values.items()}


def gdro(case: Case) -> Outputs:
    """Steps in a row: classes and weights before each, then what is learned from its losses and outcomes."""
    groups = plugin_module("schedules.gdro").GroupWeights(_options(case))
    steps = []
    for step in case["steps"]:
        tasks = step["uids"]
        classes = groups.classify(tasks)
        result: dict[str, Any] = {
            "classes": [f"accbin_{name}" for name in classes],
            "weights": groups.weights(classes),
        }
        arms = None
        if case.get("arms"):
            arms = groups.choose(classes, step["budget"])
            total = sum(arms[name] for name in classes)
            result |= {
                "arm": _named(arms),
                "arm_total": total,
                "arm_probs": _named(groups.arm_chances(classes)),
            }
        rows = step["losses_per_prompt"]
        repeated = [name for name, losses in zip(classes, rows, strict=True) for _ in losses]
        groups.learn(repeated, [loss for losses in rows for loss in losses], arms)
        if arms is not None:
            groups.raise_price(total / len(tasks))
            result["dual_mu"] = groups.state.price
        groups.note(tasks, step["any_correct"])
        steps.append(result)
    final = {
        "scores": _named(groups.state.sums),
        "ema": _named(groups.state.averages),
        "accuracy": {task: groups.rate(task) for task in sorted(groups.state.seen)},
    }
    return {"steps": steps, "final": final}


def epo(case: Case) -> Outputs:
    """Penalties of entropies that leave the range around the mean of earlier rollouts, and the term of the loss."""
    module = plugin_module("schedules.epo")
    entropy, mask = np.asarray(case["entropy"], np.float64), np.asarray(case["response_mask"], np.float64)
    means = np.asarray(case["step_entropy_history"], np.float64).mean(0)[np.asarray(case["turn"])]
    compared = entropy if case["mask_mode"] == "token" else entropy.mean(1, keepdims=True)
    outside = module.outside(compared, means[:, None], case["min_ratio"], case["max_ratio"])
    weight = 1.0
    if case["epoch"] is not None:
        weight = module.smoothing_weight(case["epoch"], case["max_epochs"])
    penalty = np.broadcast_to(case["out_range_penalty"] * weight * (outside != 0), entropy.shape)

    def mean(values: np.ndarray) -> float:
        return float((values * mask).sum() / mask.sum())

    return {
        "penalty": penalty,
        "in_range_ratio": float((outside == 0).mean()),
        "epoch_weight": weight,
        "entropy_term": -case["entropy_coeff"] * (mean(entropy) - case["entropy_smooth_coeff"] * mean(penalty)),
    }


def rae(case: Case) -> Outputs:
    """Groups of episodes, one step each; an agent has one turn an episode."""
    schedule = part("schedule", "rae", decay=case["decay"], score="role")
    advantages, after = [], []
    for group in case["groups"]:
        traces = [(episode, trace) for episode, traces in enumerate(group) for trace in traces]
        agents = sorted({trace["agent"] for _, trace in traces})
        turns = {
            "episode": [episode for episode, _ in traces],
            "role": [agents.index(trace["agent"]) for _, trace in traces],
            "reward": [float(trace["reward"]) for _, trace in traces],
            "trained": [trace["trained"] for _, trace in traces],
        }
        table = make_table(turns, names={"role": agents, "source": ("game",)})
        schedule.table_ready(table, 1)
        values = full_credit("rae", table).values
        credit = iter(None if not trace["trained"] else value for value, (_, trace) in zip(values, traces, strict=True))
        advantages.append([[next(credit) for _ in traces] for traces in group])
        means = schedule.state_dict()["means"]
        after.append({name.removeprefix("game/"): mean for name, mean in means.items()})
    return {"advantages": advantages, "baselines_after": after}


Played = list[tuple[int, int, int, bool]]
"""(game, player, turn, cut) of each turn."""


def played_games(case: Case) -> tuple[TurnTable, Played]:
    """Games of two players on one policy; a player's reward comes with the last of their turns."""
    rows = [
        (game, player, turn, cut)
        for game, played in enumerate(case["games"])
        for player, cuts in enumerate(played["truncated"])
        for turn, cut in enumerate(cuts)
    ]
    games = case["games"]
    turns: dict[str, list[Any]] = {
        "episode": [game for game, *_ in rows],
        "role": [player for _, player, *_ in rows],
        "reward": [
            float(games[game]["rewards"][player]) * (turn == games[game]["turns"][player] - 1)
            for game, player, turn, _ in rows
        ],
        "complete": [not cut for *_, cut in rows],
        "trained": [player in case["train_players"] for _, player, *_ in rows],
    }
    last = {game: number for number, (game, *_) in enumerate(rows)}
    for game, played in enumerate(games):
        for player, reward in enumerate(played["rewards"] if game in last else ()):
            turns.setdefault(f"outcome/{player}", [math.nan] * len(rows))[last[game]] = float(reward)
    return make_table(turns, episodes={"trained": [True] * len(last)}), rows


def spiral_rae(case: Case) -> Outputs:
    """The turns of each game that are trained, with their credit."""
    schedule = part(
        "schedule",
        "rae",
        decay=case["decay"] if case["use_role_baseline"] else 1.0,
        score="role",
        reward_scale=case["reward_scaling"],
    )
    table, rows = played_games(case)
    games = case["games"]
    schedule.table_ready(table, 1)
    options = {
        "gamma": case["gamma"] if case["use_intermediate_rewards"] else 1.0,
        "drop_zero": case["filter_zero_adv"],
    }
    credit = full_credit("rae", table, **options)
    kept: list[list[dict[str, Any]]] = [[] for _ in games]
    for (game, player, turn, cut), value, trained in zip(rows, credit.values, table["trained"], strict=True):
        if trained and (value != 0 or not case["filter_zero_adv"]):
            kept[game].append({"player": player, "turn": turn, "credit": float(value), "loss_mask": not cut})
    return {"kept_turns": kept}


def boad(case: Case) -> Outputs:
    """One round of slots over an archive."""
    module = plugin_module("schedules.boad")
    counts = zip(case["n"], case["helpful"], strict=True)
    archive = [module.SubAgent("", tasks, helpful) for tasks, helpful in counts]
    bounds = [module.confidence_bound(agent, case["step"]) for agent in archive]
    new, chosen = module.choose(archive, case["step"], case["uniform"], case["theta"])
    return {
        "p_new": module.new_share(len(archive), case["theta"]),
        "new": new,
        "ucb": [None if math.isinf(bound) else bound for bound in bounds],
        "chosen": chosen,
    }
