"""Per-step aggregates of rollout and credit, all under `hier/`; docs/metrics.md is their glossary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from verl_hier.credit import Credit
from verl_hier.graph import EpisodeRecord, RolloutGraph, TurnTable


def rollout_metrics(graphs: Iterable[RolloutGraph]) -> dict[str, float]:
    """Size and cost of the rollouts, summed over the tasks of a step."""
    graphs = list(graphs)
    episodes = [episode for graph in graphs for episode in graph.episodes]
    nodes = [node for graph in graphs for node in graph.nodes]
    complete = [episode for graph in graphs for episode in graph.complete()]
    won = [float(episode.success) for episode in complete if episode.success is not None]
    status = Counter(episode.status for episode in episodes)
    prompt = sum(node.prompt_tokens for node in nodes)
    counts: Counter[str] = Counter()
    for graph in graphs:
        counts.update(graph.counts)
    metrics = {
        "hier/episodes/count": float(len(episodes)),
        "hier/episodes/turns_mean": len(nodes) / max(len(episodes), 1),
        "hier/episodes/failed": float(status["failed"]),
        "hier/episodes/truncated": float(status["truncated"]),
        "hier/episodes/pruned": float(status["pruned"]),
        "hier/groups/short": float(sum(graph.short for graph in graphs)),
        "hier/turns/count": float(len(nodes)),
        "hier/turns/invalid_share": sum(not node.valid for node in nodes) / max(len(nodes), 1),
        "hier/tokens/generated": float(sum(len(node.action) for node in nodes)),
        "hier/tokens/prompt": float(prompt),
        "hier/tokens/prefix_hit": sum(node.cached_tokens for node in nodes) / max(prompt, 1),
        "hier/time/rollout_s": sum(graph.seconds.get("rollout", 0.0) for graph in graphs) / max(len(graphs), 1),
    }
    metrics |= tree_metrics(graphs)
    if complete:
        metrics["hier/episodes/return_mean"] = float(np.mean([episode.ret for episode in complete]))
    if won:
        metrics["hier/episodes/success"] = float(np.mean(won))
    names = dict.fromkeys(name for episode in complete for name in episode.reward_info)
    for name in names:
        noted = [episode.reward_info[name] for episode in complete if name in episode.reward_info]
        metrics[f"hier/reward/{name}/mean"] = float(np.mean(noted))
    failures = Counter(str(node.extra["failure"]) for node in nodes if "failure" in node.extra)
    metrics |= {f"hier/failures/{name}": float(count) for name, count in sorted(failures.items())}
    return metrics | {f"hier/counts/{name}": float(value) for name, value in sorted(counts.items())}


def turn_metrics(graphs: Iterable[RolloutGraph]) -> dict[str, float]:
    """verl's names for the number of turns, over the complete episodes instead of over verl's rows."""
    turns = [graph.turns(episode.id) for graph in graphs for episode in graph.complete()]
    if not turns:
        return {}
    values = {"mean": float(np.mean(turns)), "min": float(min(turns)), "max": float(max(turns))}
    return {f"{prefix}num_turns/{name}": value for prefix in ("", "training/") for name, value in values.items()}


def tree_metrics(graphs: Sequence[RolloutGraph]) -> dict[str, float]:
    """Where the trees of a step branch, how much their leaves share, and the share of the budgets that they used."""
    leaves = [[graph.path(e.id) for e in graph.complete() if e.trained] for graph in graphs]
    forks = [(graph, e) for graph in graphs for e in graph.episodes if e.source >= 0 and e.leaf >= 0]
    count = sum(map(len, leaves))
    if not count:
        return {}
    turns = sum(len(graph.nodes) for graph in graphs)
    calls = sum(graph.counts.get("environment_calls", 0) for graph in graphs)
    through = [Counter(i for path in paths for i in path) for paths in leaves]
    every = sum(_tokens(graph, turns_of.elements()) for graph, turns_of in zip(graphs, through, strict=True))
    unique = sum(_tokens(graph, turns_of) for graph, turns_of in zip(graphs, through, strict=True))
    metrics = {
        "hier/tree/leaves_mean": count / len(graphs),
        "hier/tree/token_ratio": every / max(unique, 1),
        "hier/tree/fork_rate": len(forks) / max(turns, 1),
        "hier/tree/calls_per_leaf": calls / count,
    }
    if forks:
        positions = [e.shared / len(graph.path(e.id)) for graph, e in forks]
        metrics["hier/tree/branch_position"] = float(np.mean(positions))
        metrics |= _branch_prefix_hit(forks)
    for name in sorted({name for graph in graphs for name in graph.budget}):
        shares = [used / limit for graph in graphs for used, limit in [graph.budget.get(name, (0.0, 1.0))]]
        metrics[f"hier/budget/{name}"] = float(np.mean(shares))
    return metrics


def _tokens(graph: RolloutGraph, nodes: Iterable[int]) -> int:
    return sum(len(graph.nodes[i].observation) + len(graph.nodes[i].action) for i in nodes)


def _branch_prefix_hit(forks: Sequence[tuple[RolloutGraph, EpisodeRecord]]) -> dict[str, float]:
    """Share of the prompts of the branches' first turns that came from the server's prefix cache."""
    firsts = [graph.nodes[path[e.shared]] for graph, e in forks if len(path := graph.path(e.id)) > e.shared]
    prompt = sum(node.prompt_tokens for node in firsts)
    if not prompt:
        return {}
    return {"hier/tree/branch_prefix_hit": sum(node.cached_tokens for node in firsts) / prompt}


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
