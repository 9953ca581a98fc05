"""Adapters of the recorded cases of AT²PO, BranPO, GRPO-RoC and T²PO: trees, endings and choices of samplers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tests.conformance.builtin_parts import plugin_module
from tests.conformance.layout import ActorConfig, Case, Outputs, on_mask
from verl_hier.credit.tables import make_table
from verl_hier.credit.trees import under_tasks
from verl_hier.graph.turn_table import TurnTable
from verl_hier.testing.builtin import credit_of, estimator


def at2po(case: Case) -> Outputs:
    """Nodes of one tree, node 0 is the task; token advantages have one row a leaf."""
    parent, leaf = np.asarray(case["parent"]), np.asarray(case["is_leaf"], bool)
    turns = {"parent": parent[1:] - 1, "entropy": np.asarray(case["entropy"], np.float64)[1:]}
    tokens = {"turn": np.arange(len(parent) - 1), "logprob": np.zeros(len(parent) - 1)}
    returns = np.asarray(case["leaf_score"], np.float64)[leaf]
    table = make_table(turns, episodes={"return": returns}, tokens=tokens)
    spec, module = estimator("at2po"), plugin_module("estimators.at2po")
    options = {
        "value": case["node_value_mode"],
        "advantage": case["node_adv_mode"],
        "normalise": case["leaf_value_norm"],
        "entropy": "entropy",
    }
    value = module.values(table, spec.options(**options), under_tasks(table["parent"], table["group"])[0])
    advantage = np.append(value[-1], credit_of("at2po", table, **options))
    leaves = [node for node in plugin_module("samplers.at2po").breadth_first(parent) if leaf[node]]
    paths = []
    for node in leaves:
        path = [node]
        while parent[path[0]] > 0:
            path.insert(0, int(parent[path[0]]))
        paths.append(np.repeat(advantage[path], np.asarray(case["n_tokens"])[path]))
    rows = np.zeros((len(paths), max(map(len, paths))))
    for row, credit in zip(rows, paths, strict=True):
        row[: len(credit)] = credit
    return {
        "value": np.append(value[-1], value[:-1]),
        "advantage": advantage,
        "leaf_order": leaves,
        "token_advantages": rows,
    }


def at2po_expand(case: Case) -> Outputs:
    """Which turns of a tree are sampled again."""
    module = plugin_module("samplers.at2po")
    parent, leaf = case["parent"], case["is_leaf"]
    chosen = module.expansions(parent, leaf, case["entropy"], case["beam_size"])
    return {
        "chosen": chosen,
        "candidates": [node for node in module.breadth_first(parent) if not leaf[node]],
        "branch_parent": [max(parent[node], 0) for node in chosen],
    }


def at2po_policy_loss(case: Case) -> Outputs:
    """Loss, gradient and metrics; `gspo` has one ratio a row, `soft_clip` keeps the gradient of what is clipped."""
    module = plugin_module("losses.at2po")
    name = case["loss"].removeprefix("gspo")
    loss_of = module.turn_loss(per="turn" if "_turn" in name else "row", soft="soft_clip" in name)
    log_prob = torch.tensor(case["log_prob"], dtype=torch.float64, requires_grad=True)
    old, advantages, mask = (
        torch.tensor(case[field], dtype=torch.float64) for field in ("old_log_prob", "advantages", "response_mask")
    )
    config = ActorConfig(
        clip_ratio=case["cliprange_high"],
        clip_ratio_low=case["cliprange_low"],
        clip_ratio_high=case["cliprange_high"],
        global_batch_info={},
    )
    loss, metrics = loss_of(old, log_prob, advantages, mask, "seq-mean-token-mean", config)
    loss.backward()
    assert log_prob.grad is not None
    named = {name.removeprefix("actor/"): value for name, value in metrics.items()}
    return {"loss": loss.item(), "grad": log_prob.grad.numpy(), **named}


def branpo(case: Case) -> Outputs:
    """Credit on the masks of bases and endings."""
    scale = "sample" if case["norm_by_std"] else "none"
    return {"advantages": on_rows(case, lambda table: credit_of("branpo", table, scale=scale))}


def on_rows(case: Case, credit: Callable[[TurnTable], NDArray[Any]]) -> NDArray[Any]:
    """Credit of rows, one an ending; the base stands in the row of the first ending of its trajectory."""
    base_mask, end_mask = np.asarray(case["base_mask"]), np.asarray(case["branch_mask"])
    turns: list[dict[str, Any]] = []
    base_of: dict[tuple[str, int], int] = {}
    base_at, end_at = np.full(len(base_mask), -1), np.full(len(base_mask), -1)
    for row, place in enumerate(zip(case["uid"], case["trajectory"], strict=True)):
        if base_mask[row].any():
            base_at[row] = base_of[place] = len(turns)
            turns.append(_turn(case, row, -1, "base_reward", suffix=0))
    for row, place in enumerate(zip(case["uid"], case["trajectory"], strict=True)):
        if end_mask[row].any():
            end_at[row] = len(turns)
            turns.append(_turn(case, row, base_of.get(place, -1), "reward", suffix=1))
    table = make_table({name: np.asarray([turn[name] for turn in turns]) for name in turns[0]})
    found = np.append(credit(table), 0.0)
    return on_mask(found[base_at], base_mask) + on_mask(found[end_at], end_mask)


def _turn(case: Case, row: int, parent: int, reward: str, suffix: int) -> dict[str, Any]:
    return {
        "parent": parent,
        "group": case["uid"][row],
        "return": float(case[reward][row]),
        "suffix": suffix,
        "preference": case["preference"][row],
    }


def branpo_sampler(case: Case) -> Outputs:
    """The rounds of each trajectory's endings, played with the scripted attempts."""
    module = plugin_module("samplers.branpo")
    options = module.BranPOSamplerOptions()
    first = [
        module.Ending(float(t["reward"]), t["steps"], t["termination"] in ("ENV_TIMEOUT", "INVALID", "TRUNCATION"))
        for t in case["trajectories"]
    ]
    trajectories = []
    for ending, attempts in zip(first, case["attempts"], strict=True):
        accuracy = module.accuracy(first, options)
        left = [module.Ending(float(a["reward"]), a["steps"], a["masked_out"]) for a in attempts]
        calls: list[dict[str, Any]] = []
        accepted = None
        for round_ in module.rounds(ending, first, options):
            call = {"branchpoint": round_.last, "num_branches": round_.tries + 1, "attempts": 0, "suffixes": 1}
            if round_.tries:
                call["start_step"] = ending.turns - round_.last
            calls.append(call)
            while accepted is None and call["attempts"] < round_.tries:
                attempt = left.pop(0)
                call["attempts"] += 1
                preference = module.preference(ending, attempt, round_.last, accuracy, options)
                if preference:
                    call["suffixes"] = 2
                    accepted = {
                        "reward": attempt.score,
                        "steps": attempt.turns,
                        "preference": preference,
                        "original_preference": -preference,
                    }
            if accepted is not None:
                break
        trajectories.append(
            {
                "calls": calls,
                "base_steps": ending.turns - calls[-1]["branchpoint"],
                "accepted": accepted,
                "unused": len(left),
            }
        )
    return {"trajectories": trajectories}


_RESPONSE = re.compile(r"<tool_response>.*?</tool_response>", re.DOTALL)
_ASSISTANT = re.compile(r"<\|im_start\|>assistant.*?<\|im_end\|>", re.DOTALL)


def grpo_roc(case: Case) -> Outputs:
    """Penalties of the rows from their texts, and which rows of each group stay."""
    module = plugin_module("samplers.grpo_roc")
    errors = [module.error_share(_RESPONSE.findall(text)) for text in case["text"]]
    format_ = [module.format_penalty(text, len(_ASSISTANT.findall(text))) for text in case["text"]]
    penalty = np.zeros(len(errors))
    if case["roc_error_ratio"]:
        penalty += errors
    if case["roc_answer_format"]:
        penalty += format_
    uids = np.asarray(case["uid"])
    kept: list[int] = []
    for uid in dict.fromkeys(case["uid"]):
        rows = np.flatnonzero(uids == uid)
        if len(rows) < case["down_sample_to_n"]:
            continue
        places = module.kept(
            np.asarray(case["reward"])[rows].tolist(),
            penalty[rows].tolist(),
            case["down_sample_to_n"],
            case["min_non_zero"],
            case["min_zero"],
        )
        kept += rows[places].tolist()
    return {"error_penalty": errors, "format_penalty": format_, "kept": sorted(kept)}


def t2po_resample(case: Case) -> Outputs:
    """Turns of episodes that are sampled again while their score is too close to that of the turn before."""
    module = plugin_module("samplers.t2po")
    final: list[list[float]] = []
    counts: list[list[int]] = []
    for turn, scores in enumerate(case["first_score"]):
        final.append([])
        counts.append([])
        for episode, score in enumerate(scores):
            again = iter(case["regenerated_scores"][turn][episode])
            tries = 0
            while turn and module.stalls(score, final[turn - 1][episode], case["eta"]) and tries < case["max_try"]:
                score, tries = next(again), tries + 1
            final[turn].append(score)
            counts[turn].append(tries)
    return {"final_score": final, "regenerations": counts}
