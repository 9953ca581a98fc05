"""verl's handle on one rollout server."""

import asyncio
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.plugin.platform import get_platform
from verl.workers.rollout.replica import RolloutReplica

from verl_hier.runtime_cpu.options import ROLLOUT_NAME, ServerOptions


def server_name(replica_rank: int, suffix: str = "") -> str:
    """Ray name of a server's actor; names are per run, because each run of verl has a Ray namespace of its own."""
    return f"{ROLLOUT_NAME}_server_{replica_rank}{suffix}"


class TransformersReplica(RolloutReplica):
    """One server process, on the node of the trainer rank that feeds it weights."""

    async def launch_servers(self) -> None:
        """Start the server's actor and wait until its model is loaded.

        Raises:
            ValueError: For a reward model (verl asks those over HTTP) or a parallel layout.
        """
        ServerOptions.from_rollout_config(self.config)
        if self.is_reward_model:
            raise ValueError(
                f"A reward model is asked over HTTP, which the rollout server '{ROLLOUT_NAME}' does not speak; set "
                "reward.reward_model.enable=False and score in a reward function."
            )
        node_id = await self.workers[0].__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
        self.servers = [self._start_server(node_id)]
        # The constructor loads the model: an error there must surface here, not in the first request.
        await self.servers[0].statistics.remote()
        self._server_handle = self.servers[0]
        address = ray.util.get_node_ip_address().strip("[]")
        self._server_address = f"{server_name(self.replica_rank, self._suffix)}@{address}"

    @property
    def _suffix(self) -> str:
        return f"_teacher{self.name_suffix}" if self.is_teacher_model else self.name_suffix

    def _start_server(self, node_id: str) -> ray.actor.ActorHandle:
        from verl_hier.runtime_cpu.server import TransformersServer

        return (
            ray.remote(TransformersServer)
            .options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node_id, soft=False),
                runtime_env={"env_vars": get_platform().rollout_env_vars()},
                name=server_name(self.replica_rank, self._suffix),
                max_concurrency=self.max_concurrency,
            )
            .remote(config=self.config, model_config=self.model_config, replica_rank=self.replica_rank)
        )

    async def abort_all_requests(self, reject_request: bool = False) -> dict[str, Any]:
        """End all requests with their partial output; see the server's method of the same name."""
        results = await asyncio.gather(
            *[server.abort_all_requests.remote(reject_request=reject_request) for server in self.servers]
        )
        return {
            "aborted_count": sum(r["aborted_count"] for r in results),
            "request_ids": [i for r in results for i in r["request_ids"]],
            "server_results": results,
        }

    async def abort_request(self, request_id: str) -> dict[str, Any]:
        """End one request with its partial output."""
        result: dict[str, Any] = await self.servers[0].abort_request.remote(request_id)
        return result
