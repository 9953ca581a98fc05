"""Server and replica of `vllm_topk`. Importing this imports vLLM."""

from __future__ import annotations

import argparse
from typing import Any

import ray
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from verl_hier.compat.servers.vllm_topk.engine import NAME, TopKEngine, asking, wanted


class TopKServer(vLLMHttpServer):
    """verl's server; `logprobs=K` adds `extra_fields["top_logprobs"]`, and `statistics` returns its counters."""

    engine: Any

    async def run_server(self, args: argparse.Namespace) -> None:
        await super().run_server(args)
        self.engine = TopKEngine(self.engine)

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **request: Any
    ) -> TokenOutput:
        """See `vLLMHttpServer.generate`."""
        with asking(wanted(sampling_params)) as top:
            output = await super().generate(prompt_ids, sampling_params, request_id, **request)
        if top.count:
            output.extra_fields["top_logprobs"] = top.found
        return output

    async def statistics(self) -> dict[str, Any]:
        """Running totals, see `verl_hier.compat.servers.counters`."""
        return {**self.engine.counters, "replica_rank": self.replica_rank}


class TopKReplica(vLLMReplica):
    """verl's replica with our server class and a name of its own for its actors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(TopKServer)

    def _get_server_name_prefix(self) -> str:
        return f"{NAME}_"
