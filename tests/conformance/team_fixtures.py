"""Adapters of the recorded cases of teams: a planner or lead with workers."""

from __future__ import annotations

import numpy as np

from tests.conformance.builtin_parts import plugin_module
from tests.conformance.layout import Case, Outputs, on_mask
from verl_hier.credit import group_ids
from verl_hier.credit.tables import make_table
from verl_hier.testing.builtin import credit_of


def matpo(case: Case) -> Outputs:
    """Rows are conversations: of a planner, or of a worker of one.

    The recorded token advantages have a defect that the note of the file names, a worker's are 0 where its planner has
    no token; the adapter repeats it, and the denominators of the released loss.
    """
    request, parent = case["request"], case["parent"]
    planner = np.asarray([above is None for above in parent])
    own = [name if above is None else above for name, above in zip(request, parent, strict=True)]
    accuracy = dict(zip(request, case["accuracy"], strict=True))
    episode = group_ids(np.asarray(own))
    first = dict(zip(episode.tolist(), own, strict=True))
    returns = np.asarray([accuracy[first[key]] for key in range(len(first))], np.float64)
    turns = {"group": case["uid"], "episode": np.asarray(own), "agent": request, "level": 1 - planner}
    turns |= {"format": np.asarray(case["tool_format"], np.float64), "reward": np.where(planner, returns[episode], 0.0)}
    table = make_table(turns)
    names = ("accuracy_weight", "format_weight", "gate", "norm_by_std")
    options = {name: case[name] for name in names}
    module = plugin_module("estimators.matpo")
    values = credit_of("matpo", table, **options)
    mask = np.asarray(case["response_mask"], np.float64)
    rows = {name: place for place, name in enumerate(request)}
    upstream = on_mask(values, mask[[rows[name] for name in own]])
    losses = np.asarray(case["loss_matrix"]) * mask
    mode = case["loss_agg_mode"]
    each = losses.sum(1) / (mask.sum(1) if mode.endswith("token-mean") else 1.0)
    # verl's mode with a fixed divisor has the width of the batch in it, whoever's rows they are.
    divisor = {"token-mean": mask.sum(), "seq-mean-token-sum-norm": mask.shape[1]}.get(mode, planner.sum())
    loss = (losses if mode == "token-mean" else each).sum() / divisor
    return {
        "reward": module.episode_rewards(table, module.MATPOOptions(**options))[episode],
        "main_advantage": [value if top else None for value, top in zip(values, planner, strict=True)],
        "token_advantages_upstream": upstream,
        "loss": loss,
    }


def wideseek_r1(case: Case) -> Outputs:
    """Rows are turns with a reward each."""
    trajectory = np.asarray(case["trajectory"])
    rewards = np.asarray(case["reward"], np.float64)
    turns = {"group": trajectory // case["group_size"], "episode": trajectory, "agent": case["agent"]}
    table = make_table({**turns, "n_tokens": case["n_tokens"]})
    module = plugin_module("estimators.wideseek_r1")
    scaled = {f"{name}_level": f"{name}_level" in case["loss_scales"] for name in ("agent", "turn")}
    batch = None
    if "group_level" in case["loss_scales"]:
        batch = case["actor_global_batch_size"] // case["data_parallel_world_size"]
    found = {}
    for name, given in (("advantage", None), ("scaled_advantage", batch)):
        options = module.WideSeekOptions(per=case["advantage_mode"], global_batch=given, **scaled)
        found[name] = module.credit_of_rewards(table, rewards, np.ones(len(table), bool), options)
    values = {name: credit.values for name, credit in found.items()}
    return {**values, "loss_scale": found["advantage"].weight}


def wideseek_credit(case: Case) -> Outputs:
    """Turns of one trajectory; the last one is the lead's answer, sound or not."""
    rows, module = case["turns"], plugin_module("estimators.wideseek_r1")
    count, last = len(rows), len(rows) - 1
    lead = np.asarray([row["role"] == "planner" for row in rows])
    ends = np.arange(count) == last
    turns = {
        "episode": np.zeros(count, np.int64),
        "turn": np.arange(count),
        "level": 1 - lead,
        "n_tokens": [row["n_tokens"] for row in rows],
        "reward": ends * case["judge_reward"],
        "answered": ends * case["answer_format_ok"],
        "complete": ~ends | case["ended_by_itself"],
        "access_calls": [row["access_calls"] or 0 for row in rows],
        "limit_failed": [row["context_failed"] or row["max_turns_failed"] for row in rows],
        "repeat_failed": [row["repeat_failed"] for row in rows],
    }
    config = case["config"]
    options = module.WideSeekOptions(
        format_reward=config["format_reward"],
        call_reward=config["call_search_reward"],
        length_penalty=config["length_penalty"],
        long=config["length_limit"],
        longest=config["max_length_limit"],
    )
    rewards, kept = module.assigned(make_table(turns), options)
    trained = np.flatnonzero(kept).tolist()
    # The released function appends the last turn first where the answer is not sound.
    order = trained if case["answer_format_ok"] else sorted(trained, key=lambda place: (place != last, place))
    sound = case["answer_format_ok"] and not any((lead & np.asarray(turns["limit_failed"], bool)).tolist())
    return {"reward": rewards[0], "trained_turns": order, "format_ok": int(sound)}


def hierarchical_grpo(case: Case) -> Outputs:
    """One task; an agent of an episode has one turn here, and agents of one role in it are several."""
    episodes = case["episodes"]
    traces = [(number, trace) for number, episode in enumerate(episodes) for trace in episode]
    roles = sorted({trace["agent"] for _, trace in traces})
    turns = {
        "episode": [number for number, _ in traces],
        "role": [roles.index(trace["agent"]) for _, trace in traces],
        "agent": np.arange(len(traces)),
        "reward": [trace["reward"] for _, trace in traces],
        "trained": [trace["trained"] for _, trace in traces],
    }
    table = make_table({"group": np.zeros(len(traces), np.int64), **turns}, names={"role": roles})
    values = credit_of("hierarchical_grpo", table, episode_agents=tuple(case["episode_agents"]))
    found = iter(values.tolist())
    return {
        "advantages": [
            [value if trace["trained"] else None for trace in episode for value in [next(found)]]
            for episode in episodes
        ]
    }
