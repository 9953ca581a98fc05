"""Per-step aggregates of rollout and credit, all under `hier/`; docs/metrics.md is their glossary."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from verl_hier.credit import Credit
from verl_hier.graph import TurnTable
from verl_hier.graph.columnar.layout import EXTRAS
from verl_hier.graph.columnar.light import Light
from verl_hier.graph.columnar.table import column_numbers, complete_episodes, cut_nodes
from verl_hier.graph.paths import Ints, paths_to

_COUNT = re.compile(
    r"hier/(episodes/(count|failed|truncated|pruned)|turns/count|tokens/(generated|prompt)|rows/(trained|padding)"
    r"|groups/(count|short|without_rows)|sharing/tokens|update/steps|(failures|counts)/.+)"
)


def rollout_metrics(light: Light) -> dict[str, float]:
    """Size and cost of the rollouts, summed over the tasks of a step."""
    episodes, nodes = light.columns.episodes, light.columns.nodes
    tasks = len(light.uids)
    complete = complete_episodes(light.columns)
    status = Counter(episodes["status"].to_pylist())
    prompt = _sum(nodes["prompt_tokens"])
    counts: Counter[str] = Counter()
    for each in light.counts:
        counts.update(each)
    metrics = {
        "hier/episodes/count": float(len(episodes)),
        "hier/episodes/turns_mean": len(nodes) / max(len(episodes), 1),
        "hier/episodes/failed": float(status["failed"]),
        "hier/episodes/truncated": float(status["truncated"]),
        "hier/episodes/pruned": float(status["pruned"]),
        "hier/groups/short": float(_sum(light.columns.tasks["short"])),
        "hier/turns/count": float(len(nodes)),
        "hier/turns/invalid_share": (len(nodes) - _sum(nodes["valid"])) / max(len(nodes), 1),
        **cut_metrics(nodes),
        "hier/tokens/generated": float(_sum(nodes["n_action"])),
        "hier/tokens/prompt": float(prompt),
        "hier/tokens/prefix_hit": _sum(nodes["cached_tokens"]) / max(prompt, 1),
        "hier/time/rollout_s": sum(each.get("rollout", 0.0) for each in light.records("seconds")) / max(tasks, 1),
    }
    metrics |= tree_metrics(light)
    if complete.any():
        metrics["hier/episodes/return_mean"] = float(np.mean(episodes["ret"].to_numpy()[complete]))
    won = episodes["success"].filter(pa.array(complete)).drop_null()
    if len(won):
        metrics["hier/episodes/success"] = float(np.mean(column_numbers(won, np.float64)))
    for name, noted in _named(episodes["reward_info"].filter(pa.array(complete))):
        metrics[f"hier/reward/{name}/mean"] = float(np.mean(noted.to_numpy()))
    failures: Counter[str] = Counter()
    for column in EXTRAS:
        for name, values in _named(nodes[column]):
            if name == "failure":
                failures.update(map(str, values.to_pylist()))
    metrics |= {f"hier/failures/{name}": float(count) for name, count in sorted(failures.items())}
    return metrics | {f"hier/counts/{name}": float(value) for name, value in sorted(counts.items())}


def cut_metrics(nodes: pa.Table) -> dict[str, float]:
    """The share of turns that were cut, over all roles and for each of them."""
    cut, whole = cut_nodes(nodes), ~column_numbers(nodes["partial"], bool)
    roles = np.asarray(nodes["role"].to_pylist(), object)
    metrics = {"hier/turns/cut_share": float(cut[whole].mean()) if whole.any() else 0.0}
    for role in sorted({*roles[whole]}):
        metrics[f"hier/turns/cut_share/{role}"] = float(cut[whole & (roles == role)].mean())
    return metrics


def _sum(column: pa.ChunkedArray) -> int:
    return int(column_numbers(column).sum())


def _named(column: pa.ChunkedArray) -> Iterator[tuple[str, pa.Array]]:
    """The names in a column of mappings, each with its values."""
    entries = column.combine_chunks().flatten()
    names, values = entries.field("name"), entries.field("value")
    for name in pc.unique(names).to_pylist():
        yield name, values.filter(pc.equal(names, name))


def turn_metrics(*lights: Light) -> dict[str, float]:
    """verl's names for the number of turns, over the complete episodes of all updates of a step instead of over verl's
    rows."""
    turns = np.concatenate([np.zeros(0, np.int64), *map(_turns, lights)])
    if not len(turns):
        return {}
    values = {"mean": float(np.mean(turns)), "min": float(turns.min()), "max": float(turns.max())}
    return {f"{prefix}num_turns/{name}": value for prefix in ("", "training/") for name, value in values.items()}


def _turns(light: Light) -> Ints:
    """The number of turns of each complete episode."""
    complete, nodes = complete_episodes(light.columns), light.columns.nodes
    leaves = _first_nodes(light)[complete] + column_numbers(light.columns.episodes["leaf"])[complete]
    turns: Ints = (column_numbers(nodes["turn"]) + ~column_numbers(nodes["partial"], bool))[leaves]
    return turns


def counted(updates: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What a step counts that verl has trained in several updates, of whose metrics verl takes the mean.

    Args:
        updates: the metrics of each update.

    Returns:
        the sums of what are numbers of episodes, turns, tokens, rows, groups, faults or optimiser steps.
    """
    names = dict.fromkeys(name for update in updates for name in update if _COUNT.fullmatch(name))
    return {name: float(sum(update.get(name, 0.0) for update in updates)) for name in names}


def _first_nodes(light: Light) -> Ints:
    """The first node of the task of each episode."""
    sizes = light.sizes("nodes")
    return np.repeat(np.cumsum(sizes) - sizes, light.sizes("episodes"))


def tree_metrics(light: Light) -> dict[str, float]:
    """Where the trees of a step branch, how much their leaves share, and the share of the budgets that they used."""
    episodes, nodes, tasks = light.columns.episodes, light.columns.nodes, len(light.uids)
    leaf, source, shared = (column_numbers(episodes[name]) for name in ("leaf", "source", "shared"))
    leaf = np.where(leaf >= 0, leaf + _first_nodes(light), -1)
    leaves = leaf[complete_episodes(light.columns) & column_numbers(episodes["trained"], bool)]
    count = len(leaves)
    if not count:
        return {}
    sizes = light.sizes("nodes")
    parent = column_numbers(nodes["parent"])
    parent = np.where(parent >= 0, parent + np.repeat(np.cumsum(sizes) - sizes, sizes), -1)
    tokens = column_numbers(nodes["n_observation"]) + column_numbers(nodes["n_action"])
    through = paths_to(leaves, parent).node
    unique = np.zeros(len(tokens), bool)
    unique[through] = True
    forked = (source >= 0) & (leaf >= 0)
    metrics = {
        "hier/tree/leaves_mean": count / tasks,
        "hier/tree/token_ratio": int(tokens[through].sum()) / max(int(tokens[unique].sum()), 1),
        "hier/tree/fork_rate": int(forked.sum()) / max(len(tokens), 1),
        "hier/tree/calls_per_leaf": sum(each.get("environment_calls", 0) for each in light.counts) / count,
    }
    if forked.any():
        forks = paths_to(leaf[forked], parent)
        length = np.bincount(forks.episode, minlength=int(forked.sum()))
        metrics["hier/tree/branch_position"] = float(np.mean(shared[forked] / length))
        own = shared[forked] < length
        metrics |= _branch_prefix_hit(nodes, forks.node[forks.start[own] + shared[forked][own]])
    budgets = light.records("budget")
    for name in sorted({name for budget in budgets for name in budget}):
        shares = [used / limit for budget in budgets for used, limit in [budget.get(name, (0.0, 1.0))]]
        metrics[f"hier/budget/{name}"] = float(np.mean(shares))
    return metrics


def _branch_prefix_hit(nodes: pa.Table, firsts: Ints) -> dict[str, float]:
    """Share of the prompts of the branches' first turns that came from the server's prefix cache."""
    prompt, cached = (int(column_numbers(nodes[name])[firsts].sum()) for name in ("prompt_tokens", "cached_tokens"))
    return {"hier/tree/branch_prefix_hit": cached / prompt} if prompt else {}


def credit_metrics(table: TurnTable, credit: Credit) -> dict[str, float]:
    """Mean and spread of the credit of each role, and the share of the credit that is 0."""
    if not len(table):
        return {}
    values = np.asarray(credit.values, dtype=np.float64)
    turns = {"turn": np.arange(len(table)), "step": table.step_turn, "token": table.tokens.get("turn")}[credit.per]
    if turns is None:
        return {}
    trained = np.asarray(table["trained"], dtype=bool)[turns]
    roles = np.asarray(table["role"], dtype=np.int64)[turns]
    metrics: dict[str, float] = {}
    if trained.any():
        metrics["hier/credit/zero_share"] = float((np.abs(values[trained]) < 1e-12).mean())
    for code, name in enumerate(table.names.get("role", ())):
        chosen = values[trained & (roles == code)]
        if len(chosen):
            metrics[f"hier/credit/{name}/mean"] = float(chosen.mean())
            metrics[f"hier/credit/{name}/std"] = float(chosen.std())
    return metrics
