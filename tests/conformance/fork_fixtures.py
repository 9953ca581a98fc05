"""Adapters of the recorded cases of counterfactual credit, and of trees whose nodes are messages or joint actions."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.conformance.builtin_parts import part, plugin_module
from tests.conformance.layout import Case, Outputs
from verl_hier.credit.tables import make_table
from verl_hier.testing.builtin import credit_of, estimator


def c3(case: Case) -> Outputs:
    """A row is a message; the roles speak one after the other."""
    question, parent = np.asarray(case["question"]), np.asarray(case["parent"])
    first = {name: int(np.flatnonzero(question == name)[0]) for name in np.unique(question)}
    offset = np.asarray([first[name] for name in question])
    leaf = np.asarray(case["is_leaf"], bool)
    returns = np.asarray([case["leaf_reward"][row] for row in np.flatnonzero(leaf)], np.float64)
    turns = {
        "group": question,
        "role": case["role"],
        "agent": case["role"],
        "parent": np.where(parent >= 0, parent + offset, -1),
        "value_last": np.asarray(case["value"], np.float64),
    }
    table = make_table(turns, episodes={"return": returns})
    options = {"variant": case["variant"], "baseline": case["baseline"], "alpha": case["alpha"]}
    advantage = credit_of("c3", table, **options, replay=not case["no_replay"], standardise=False)
    return {"subtree_reward": table["return"], "advantage": advantage}


def ccpo(case: Case) -> Outputs:
    """A row is an episode of a thinker and a solver."""
    turns = team_turns(case["task"]) | {"solo_return": np.repeat(case["solo"], 2)}
    table = make_table(turns, episodes={"return": np.asarray(case["joint"], np.float64)}, names=ROLES)
    options: dict[str, Any] = {
        "coefficient": case["coefficient"],
        "event_bonus": case["event_bonus"],
        "group_solo_baseline": case["group_solo_baseline"],
        "norm_by_std": case["norm_std"],
    }
    rewards = plugin_module("estimators.ccpo").rewards(table, estimator("ccpo").options(**options))
    return by_role("reward", rewards) | by_role("advantage", credit_of("ccpo", table, **options))


def ccpo_history(case: Case) -> dict[str, Any]:
    """Steps in a row, of one task each."""
    schedule = part(
        "schedule",
        "ccpo_history",
        slope=case["alpha"],
        gate=case["eta"],
        decay=case["ema_decay"],
        least=case["min_samples"],
        eps=case["eps"],
    )
    found = []
    for step in case["steps"]:
        turns = team_turns(["q"] * len(step["joint"])) | {"solo_return": np.repeat(step["solo"], 2)}
        table = make_table(turns, episodes={"return": np.asarray(step["joint"], np.float64)}, names=ROLES)
        schedule.table_ready(table, 1)
        history, after = schedule.history, {}
        for theirs, ours in (("delta", "difference"), ("joint", "joint"), ("solo", "solo")):
            after |= {f"{theirs}_mean": history.mean[ours], f"{theirs}_std": history.deviation(ours)}
        rewards = by_role("reward", table["history_reward"])
        found.append({**rewards, "after": {**after, "gate_coef": history.gate}})
    return {"out": found}


def sepo(case: Case) -> Outputs:
    """A row is an episode of a thinker and a solver, each of which rates at the end."""
    rows = len(case["task"])
    says = np.stack([case["thinker_says_thinker_share"], case["solver_says_thinker_share"]], 1)
    turns = {
        name: np.repeat(column.reshape(rows, 2), 2, 0).ravel() for name, column in team_turns(case["task"]).items()
    }
    turns |= {
        "rates": np.tile([0, 0, 1, 1], rows),
        "share": np.concatenate([np.full((rows, 2), np.nan), says], 1).ravel(),
    }
    table = make_table(turns, episodes={"return": np.asarray(case["outcome"], np.float64)}, names=ROLES)
    options = {"own": case["eta"], "credit": case["credit"], "blame": case["blame"]}
    options |= {"centre_by_task": case["center_by_group"]}
    rewards = plugin_module("estimators.sepo").rewards(table, estimator("sepo").options(**options))
    return by_role("reward", rewards.reshape(rows, 4)[:, :2].ravel())


ROLES = {"role": ("thinker", "solver")}


def team_turns(tasks: list[str]) -> dict[str, np.ndarray]:
    """Turns of a thinker and a solver in each episode."""
    rows = len(tasks)
    both = np.tile([0, 1], rows)
    return {"group": np.repeat(tasks, 2), "episode": np.repeat(np.arange(rows), 2), "role": both, "agent": both}


def by_role(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Values of turns as one column a role."""
    return {f"thinker_{name}": values[::2], f"solver_{name}": values[1::2]}


def mars2(case: Case) -> Outputs:
    """One tree; a row is a solution, which refines the one above."""
    reward = np.asarray(case["reward"], np.float64)
    depth = list[int]()
    for above in case["parent"]:
        depth.append(0 if above < 0 else depth[above] + 1)
    table = make_table({"parent": case["parent"], "reward": reward, "segment": depth})
    options = {"gamma": case["gamma"], "mix": case["lambda_mix"], "advantage": case["advantage"]}
    module, spec = plugin_module("estimators.mars2"), estimator("mars2")
    shaped = module.shaped_rewards(table, reward, np.arange(len(reward)), spec.options(**options))
    return {"shaped": shaped, "advantage": credit_of("mars2", table, **options)}


def magrpo(case: Case) -> Outputs:
    """A joint action is one turn of each agent, one after the other; copies of a completion share their number."""
    rows: list[dict[str, Any]] = []
    ends: dict[tuple[int, int], int] = {}
    places: list[dict[tuple[int, int], list[int]]] = []
    for number, node in enumerate(case["nodes"]):
        above = -1 if node["parent"] < 0 else ends[node["parent"], node["parent_joint_action"]]
        mine: dict[tuple[int, int], list[int]] = {}
        for action, (chosen, reward) in enumerate(zip(node["joint_actions"], node["reward"], strict=True)):
            before = above
            for agent, completion in enumerate(chosen):
                last = agent == len(chosen) - 1
                row = {"agent": agent, "role": agent, "parent": before, "segment": node["turn"]}
                rows.append(row | {"completion": completion, "reward": float(reward) if last else 0.0})
                before = len(rows) - 1
                mine.setdefault((agent, completion), []).append(before)
            ends[number, action] = before
        places.append(mine)
    table = make_table({name: np.asarray([row[name] for row in rows]) for name in rows[0]})
    options = {"discount": case["discount"], "baseline": case["advantage_mode"]}
    values = credit_of("magrpo", table, **options)
    module = plugin_module("estimators.magrpo")
    returns = module.joint_returns(table, module.JointSteps(table), case["discount"])
    advantage = [
        [
            [float(values[mine[agent, k][0]]) for k in sorted({k for who, k in mine if who == agent})]
            for agent in sorted({who for who, _ in mine})
        ]
        for mine in places
    ]
    count = [len(node["joint_actions"]) for node in case["nodes"]]
    return {
        "returns": [[float(returns[ends[node, action]]) for action in range(size)] for node, size in enumerate(count)],
        "advantage": advantage,
    }


def ppr_renorm(case: Case) -> dict[str, Any]:
    """Trajectories whose turns but the last have a score and its maximum."""
    options = estimator("ppr").options(renorm=case["renorm"], beta=case["beta"])
    found = []
    for trajectory in case["trajectories"]:
        scores = [np.nan if each is None else each[0] / each[1] for each in trajectory["step_scores"]]
        outcome = [0.0] * len(scores) + [trajectory["outcome"]]
        table = make_table({"episode": [0] * len(outcome), "reward": outcome, "judge": [*scores, 0.0]})
        found.append(plugin_module("estimators.ppr").rewards(table, options))
    return {"out": found}
