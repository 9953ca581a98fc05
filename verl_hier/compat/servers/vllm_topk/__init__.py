"""`actor_rollout_ref.rollout.name: vllm_topk`: verl's own vLLM server that also returns top-k log-probs and counts.

verl's server asks vLLM for the chosen token's log-prob only (verl/workers/rollout/vllm_rollout/vllm_async_server.py,
`generate`). Here its engine is wrapped: a request for the K likeliest tokens is passed on to vLLM, and vLLM's answer is
kept on the way back. Everything else is verl's, weight updates and sleep included.

Only `server` imports vLLM and verl's server, in the processes that serve.
"""

from __future__ import annotations

from types import ModuleType

from verl_hier.compat.servers.vllm_topk.engine import NAME

STOCK_ADAPTER = "verl.workers.rollout.vllm_rollout.ServerAdapter"


def register_replica(module: ModuleType) -> None:
    """Into `verl.workers.rollout.replica`'s registry."""

    def load() -> type:
        from verl_hier.compat.servers.vllm_topk.server import TopKReplica

        return TopKReplica

    module.RolloutReplicaRegistry.register(NAME, load)


def register_adapter(module: ModuleType) -> None:
    """Into `verl.workers.rollout.base`'s private registry: verl's own adapter, which goes by the rollout's name."""
    module._ROLLOUT_REGISTRY[(NAME, "async")] = STOCK_ADAPTER
