#!/usr/bin/env python3
"""What trees save: samplers with the same number of trained leaves, on the ALFWorld engine and the CPU rollout server.

A small model learns the language of the households from demonstrations; then each sampler rolls out the same tasks with
it. Counted are generated tokens, positions that the server computed (its own counters: prompts that were not in its
cache, and one a generated token that something follows), environment calls and wall time. Exits with 1 when a tree
sampler computes more than 1.05 times the distinct tokens of its trees, or when fewer than 0.95 of the prompt tokens
that could come from the cache did.

    python scripts/bench/branching.py --quick
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("VERL_PLATFORM", "cpu")

import verl  # noqa: F401 - settles the platform

from verl_hier.coldstart.build import build
from verl_hier.compat.runner import runner_of
from verl_hier.graph import RolloutGraph
from verl_hier.host.manager import DEFAULT_ENABLED, PluginHost
from verl_hier.host.servers import rollout_server
from verl_hier.recipe.compose import compose
from verl_hier.rollout import Request, Sampling
from verl_hier.runtime_cpu.server import TransformersServer
from verl_hier.served.rollout_server import ServerPolicy

LEAVES = 8
SAMPLERS = {
    "independent": "{name: independent}",
    "arpo": "{name: arpo, initial_rollouts: 4}",
    "tree_grpo": "{name: tree_grpo, trees: 2, nodes: 3, rounds: 1, leaves: 4}",
    "treepo": "{name: treepo, segment_tokens: 3}",
    "treerl": "{name: treerl, trees: 2, tokens: 3, rounds: 1, branches: 1}",
}
MOST_COMPUTED, LEAST_HIT = 1.05, 0.95


@dataclass(frozen=True)
class Figures:
    """One sampler on all tasks. Tokens are sums over the tasks."""

    leaves: int
    generated: int
    computed: int
    distinct: int
    calls: int
    wall_s: float
    hit: float
    best_hit: float


class InProcess:
    """verl's server client for a server in this process."""

    def __init__(self, server: TransformersServer) -> None:
        self._server = server

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        return await self._server.generate(prompt_ids, sampling_params, request_id)


def config_of(model: Path, sampler: str) -> Any:
    """The flat ALFWorld recipe with another sampler."""
    return compose(
        "grpo_alfworld",
        [
            f"hier.sampler={sampler}",
            "hier.environment.goals=1",
            "hier.guards.shared_prefix=once",
            f"actor_rollout_ref.model.path={model}",
            f"actor_rollout_ref.rollout.n={LEAVES}",
            "actor_rollout_ref.rollout.free_cache_engine=false",
        ],
    )


async def measure(model: Path, sampler: str, tasks: int) -> Figures:
    """Roll out `tasks` tasks side by side."""
    config = config_of(model, sampler)
    runner = runner_of(config)
    server = TransformersServer(config.actor_rollout_ref.rollout, config.actor_rollout_ref.model, 0)
    policy = ServerPolicy(InProcess(server), rollout_server(PluginHost.load(DEFAULT_ENABLED), "transformers"))
    environment = runner.recipe.parts.environment
    worlds = environment.spec.tasks(environment.options, "train")[:tasks]
    pool = runner.pool()
    await pool.start()
    started = time.perf_counter()
    requests = [
        Request(task=world, identity={"uid": str(i), "index": i}, n=LEAVES, sampling=Sampling())
        for i, world in enumerate(worlds)
    ]
    try:
        graphs = await asyncio.gather(*(runner.roll_out(request, policy, pool) for request in requests))
    finally:
        await pool.close()
    wall = time.perf_counter() - started
    counted = await server.statistics()
    distinct, best_hit = tokens_of(graphs)
    return Figures(
        leaves=sum(e.trained for graph in graphs for e in graph.complete()),
        generated=counted["generated_tokens"],
        computed=counted["prefill_tokens"] + counted["decode_tokens"],
        distinct=distinct,
        calls=sum(g.counts.get("environment_calls", 0) + g.counts.get("replayed_calls", 0) for g in graphs),
        wall_s=wall,
        hit=counted["cached_tokens"] / counted["prompt_tokens"],
        best_hit=best_hit,
    )


def tokens_of(graphs: list[RolloutGraph]) -> tuple[int, float]:
    """What a server cannot avoid: distinct tokens, and the best prefix hit.

    Returns:
        Sampled tokens of all nodes, and the tokens between them, these once however many nodes stand behind the same
        beginning; and the share of the prompt tokens that were computed for another prompt or while another turn was
        generated.
    """
    asked, sampled, read, prompted, decoded = 0, 0, set(), set(), set()
    for graph in graphs:
        for node in graph.nodes:
            forced = node.decision.get("forced", 0)
            prompt = graph.prompt(node.id)
            places = chain([*prompt, *node.action])
            sampled += len(node.action)
            read.update(places[len(prompt) - len(node.observation) : len(prompt)])
            if node.prompt_tokens:
                asked += len(prompt) + forced
                prompted.update(places[: len(prompt) + forced])
            decoded.update(places[len(prompt) + forced : None if node.partial else -1])
    return sampled + len(read), 1 - len(prompted - decoded) / asked


def chain(tokens: list[int]) -> list[int]:
    """For each token a number that stands for it and all before it."""
    found, state = [], 0
    for token in tokens:
        state = hash((state, token))
        found.append(state)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="8 tasks and a short cold start instead of 32 and a whole")
    parser.add_argument("--samplers", nargs="+", choices=list(SAMPLERS), default=list(SAMPLERS))
    parser.add_argument("--model", type=Path, help="a model that speaks the flat ALFWorld format; made when omitted")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        start = [
            f"actor_rollout_ref.model.path={folder}/model",
            f"hier.coldstart.episodes={96 if options.quick else 480}",
            "hier.coldstart.batch_size=24",
            f"hier.coldstart.steps={200 if options.quick else 1300}",
        ]
        model = options.model or build(compose("grpo_alfworld", start), report=lambda text: print(text, flush=True))
        tasks = 8 if options.quick else 32
        found = {name: asyncio.run(measure(model, SAMPLERS[name], tasks)) for name in options.samplers}
    return report(found, tasks)


def report(found: dict[str, Figures], tasks: int) -> int:
    """Print the table; 1 when a limit is broken."""
    base = found.get("independent")
    print(f"\n{tasks} tasks, {LEAVES} trained leaves each\n")
    print(
        "| sampler | leaves | generated | computed | of independent | distinct | computed / distinct "
        "| environment calls | wall s | prefix hit | best possible |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    broken = []
    for name, f in found.items():
        share = f"{f.computed / base.computed:.2f}" if base else "–"
        ratio = f.computed / f.distinct
        print(
            f"| {name} | {f.leaves} | {f.generated} | {f.computed} | {share} | {f.distinct} | {ratio:.3f} | {f.calls} "
            f"| {f.wall_s:.1f} | {f.hit:.3f} | {f.best_hit:.3f} |"
        )
        if name != "independent" and ratio > MOST_COMPUTED:
            broken.append(f"{name} computes {ratio:.3f} times its distinct tokens (limit {MOST_COMPUTED})")
        if f.hit < LEAST_HIT * f.best_hit:
            broken.append(f"{name} hits {f.hit:.3f} of a possible {f.best_hit:.3f} (limit {LEAST_HIT} of it)")
    print("\n" + ("\n".join(broken) or "all limits kept"))
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
