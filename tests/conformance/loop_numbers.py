"""Numbers of a step: credit, loss and optimiser steps of what a composed recipe names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.conformance import branch_fixtures, critic_fixtures, loop_losses, tree_fixtures
from tests.conformance.adapters import step_table
from tests.conformance.layout import Case, first_seen
from verl_hier.credit import Credit, group_ids
from verl_hier.credit.estimate import estimate
from verl_hier.credit.tables import make_table
from verl_hier.graph.turn_table import TurnTable
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.training.mini_batches import divide
from verl_hier.training.options import UpdateOptions

Array = NDArray[Any]


def credit(recipe: ComposedRecipe, table: TurnTable, **given: Any) -> Credit:
    """Credit of the estimator of a recipe, with what a case says over the options of the recipe."""
    part = recipe.parts.estimator
    return estimate(part.spec, table, replace(part.options, **given))


def values(recipe: ComposedRecipe, table: TurnTable, **given: Any) -> Array:
    """The values of that credit."""
    return np.asarray(credit(recipe, table, **given).values, np.float64)


# ---- credit ---------------------------------------------------------------------------------------------------------


def igpo(recipe: ComposedRecipe, case: Case) -> Mapping[str, Array]:
    """Advantages and returns on the tokens of actions."""
    given = case["input"]
    mask = np.asarray(given["action_mask"], bool)
    found = credit(recipe, critic_fixtures.igpo_table({**given, "response_mask": given["action_mask"]}))
    out = {name: np.zeros(mask.shape) for name in ("advantages", "returns")}
    out["advantages"][mask], out["returns"][mask] = found.values, found.returns
    return out


def igpo_expected(case: Case) -> Mapping[str, Any]:
    """What the released trainer gave there."""
    return {"advantages": case["theirs_advantages_on_actions"], "returns": case["theirs_returns"]}


def gigpo(recipe: ComposedRecipe, case: Case) -> Array:
    """Credit of each row."""
    given = case["input"]
    similarity = given["similarity_thresh"] if given["enable_similarity"] else None
    options = {"gamma": given["gamma"], "norm": given["mode"], "eps": given["epsilon"], "similarity": similarity}
    return values(recipe, step_table(given), omega=given["step_advantage_w"], **options)


def hgpo(recipe: ComposedRecipe, case: Case) -> Array:
    """Credit of each row; the lengths of the histories and their weights are the recipe's."""
    given = case["input"]
    return values(recipe, step_table(given), gamma=given["gamma"], norm=given["mode"], eps=given["epsilon"])


def branpo(recipe: ComposedRecipe, case: Case) -> Array:
    """Credit on the masks of bases and endings."""
    scale = "sample" if case["input"]["norm_by_std"] else "none"
    return branch_fixtures.on_rows(case["input"], lambda table: values(recipe, table, scale=scale))


def coda(recipe: ComposedRecipe, case: Case) -> Array:
    """Credit of rows of planners and executors with the score of their rollout."""
    given = case["input"]
    turns = {
        "group": given["question"],
        "episode": given["rollout"],
        "level": np.asarray(given["role"]) != "planner",
        "return": np.asarray(given["score"], np.float64),
    }
    return values(recipe, make_table(turns), eps=given["epsilon"])


def hiper(recipe: ComposedRecipe, case: Case) -> Array:
    """The sum of all levels, on the tokens."""
    given = case["input"]
    table = critic_fixtures.hiper_table(given)
    full = np.zeros(np.shape(given["response_mask"]))
    options = critic_fixtures.hiper_options(given["cfg"])
    full[np.asarray(given["response_mask"], bool)] = values(recipe, table, **options)
    return full


def metaagentx(recipe: ComposedRecipe, case: Case) -> Mapping[str, Array]:
    """Groups and advantages of designs (role 0) and executions."""
    given = case["input"]
    role, reward = np.asarray(given["role"]), np.asarray(given["reward"], np.float64)
    design = group_ids(given["problem"], given["design"])
    designer = np.full(design.max() + 1, -1)
    designer[design[role == 0]] = np.flatnonzero(role == 0)
    plan = np.where(role == 0, -1, designer[design])
    table = make_table({"group": given["problem"], "level": role, "plan": plan, "return": reward})
    options = replace(recipe.parts.estimator.options, executions=given["execute_sample_num"] or 1)
    from verl_hier_plugins.estimators.metaagent_x import by_design

    columns = [given["problem"], role, *([plan] if by_design(table, options) else [])]
    found = values(recipe, table, executions=given["execute_sample_num"] or 1)
    return {"group": first_seen(group_ids(*columns)), "advantage": np.round(found, 4)}


def spiral(recipe: ComposedRecipe, case: Case) -> list[list[dict[str, Any]]]:
    """The turns of each game that are trained, with their credit."""
    from tests.conformance.state_fixtures import played_games

    given = case["input"]
    schedule, estimator = recipe.parts.schedule, recipe.parts.estimator
    decay = given["decay"] if given["use_role_baseline"] else 1.0
    baselines = schedule.spec.factory(replace(schedule.options, decay=decay, reward_scale=given["reward_scaling"]))
    table, rows = played_games(given)
    baselines.table_ready(table, 1)
    gamma = given["gamma"] if given["use_intermediate_rewards"] else 1.0
    options = replace(estimator.options, gamma=gamma, drop_zero=given["filter_zero_adv"])
    found = np.asarray(estimate(estimator.spec, table, options).values)
    kept: list[list[dict[str, Any]]] = [[] for _ in given["games"]]
    for (game, player, turn, cut), value, trained in zip(rows, found, table["trained"], strict=True):
        if trained and (value != 0 or not given["filter_zero_adv"]):
            kept[game].append({"player": player, "turn": turn, "credit": float(value), "loss_mask": not cut})
    return kept


def standardised(recipe: ComposedRecipe, case: Case) -> Array:
    """Advantages of turns without a successor, whose values are 0, standardised."""
    reward = np.asarray(case["input"], np.float64)
    return values(recipe, make_table({"reward": reward, "value": np.zeros(len(reward))}))


def tree_grpo(recipe: ComposedRecipe, case: Case) -> Array:
    """Credit of leaves of trees of a prompt."""
    given = case["input"]
    tree = np.unique(given["tree"], return_inverse=True)[1]
    table = make_table({"group": given["prompt"], "reward": given["score"]}, episodes={"tree": tree})
    return values(recipe, table, eps=given["epsilon"])


def treerl(recipe: ComposedRecipe, case: Case) -> list[list[float]]:
    """Credit of the turns on the path of each leaf."""
    table, options, scores = tree_fixtures.treerl_table(case["input"])
    total = values(recipe, table, **options)
    paths = [table.step_turn[table.step_episode == episode] for episode in range(scores)]
    return [[float(total[turn]) for turn in path] for path in paths]


# ---- loss -----------------------------------------------------------------------------------------------------------


def aggregated(recipe: ComposedRecipe, case: Case) -> float:
    """What these losses of tokens add up to."""
    given = case["input"]
    return loop_losses.loss_of(recipe, given["mask"], -np.asarray(given["loss"], np.float64)).loss


def loss_and_gradient(recipe: ComposedRecipe, case: Case) -> Mapping[str, Any]:
    """The loss of these advantages and its gradient in the log-probs."""
    given = case["input"]
    found = loop_losses.loss_of(recipe, given["mask"], given["advantages"], log_ratio=given["log_ratio"])
    return {"loss": found.loss, "grad": found.gradient}


def action_loss(recipe: ComposedRecipe, case: Case) -> Mapping[str, Any]:
    """The loss of one action, its gradient and the estimate of the KL divergence."""
    given = case["input"]
    new, old = np.asarray([given["new_log_probs"]]), np.asarray([given["old_log_probs"]])
    mask = np.ones(new.shape)
    clip = {"clip_ratio": given["clip"], "clip_ratio_low": given["clip"], "clip_ratio_high": given["clip"]}
    found = loop_losses.loss_of(recipe, mask, given["advantage"] * mask, log_ratio=new - old, **clip)
    return {"loss": found.loss, "approx_kl": found.kl, "grad": found.gradient}


# ---- optimiser steps ------------------------------------------------------------------------------------------------


def igpo_steps(recipe: ComposedRecipe, case: Case) -> Mapping[str, int]:
    """Rows of a mini-batch, and optimiser steps of a batch with one row an episode."""
    given = case["input"]
    prompts, n = given["train_batch_size"], given["agent_grpo_n"]
    parts = divide(_sized(recipe, given), [str(row // n) for row in range(prompts * n)], prompts)
    return {"rows_of_a_mini_batch": max(map(len, parts)), "steps": len(parts)}


def metaagentx_steps(recipe: ComposedRecipe, case: Case) -> Mapping[str, Any]:
    """The same for designs and executions, of which each execution has one row or more."""
    given, wanted = case["input"], case["theirs"]
    prompts, designs = given["train_batch_size"], given["design_sample_num"]
    rows = designs * (1 + given["execute_sample_num"] * given["rows_of_an_execution"])
    parts = divide(_sized(recipe, given), [str(row // rows) for row in range(prompts * rows)], prompts)
    schedule = recipe.parts.schedule
    phases = [schedule.spec.factory(schedule.options).phase(step) for step in range(1, 60)]
    roles = list(enumerate(("designer", "executor")))
    alike = [{1.0, *(weight for _, weight in phase.weights)} == {1.0} for phase in phases]
    together = all(alike) and all(phase.learns(role, level) for phase in phases for level, role in roles)
    return {
        "rows_of_a_mini_batch": max(map(len, parts)),
        "steps_at_least": min(len(parts), wanted["steps_at_least"]),
        "roles_in_one_update": together and recipe.hier.guards.weight_by != "role",
    }


def _sized(recipe: ComposedRecipe, given: Case) -> UpdateOptions:
    """The mini-batches of a recipe with the number of a case, in the unit of the recipe."""
    update, number = recipe.hier.update, given["ppo_mini_batch_size"]
    size = update.mini_batch
    sizes = {"rows": number * given["rollout_n"], "prompts": number}
    named = {each.name: sizes[each.name] for each in fields(size) if getattr(size, each.name) and each.name in sizes}
    return replace(update, mini_batch=replace(size, **named))
