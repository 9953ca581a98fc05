"""The trainer's side of a rollout server: lives in each worker process, hands weights over, wakes and puts to sleep."""

import logging
import os
import time
from typing import Any

import ray
import torch
from torch.distributed.device_mesh import DeviceMesh
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.base import BaseRollout

from verl_hier.runtime_cpu.options import ServerOptions
from verl_hier.runtime_cpu.replica import server_name
from verl_hier.runtime_cpu.weights import pack_in_parts
from verl_hier.verl_facts.replicas import adapter_of

logger = logging.getLogger(__name__)

# Parts larger than this only make the object store hold more at once.
_LARGEST_PART = 256 * 1024**2


class TransformersServerAdapter(BaseRollout):
    """One replica for each trainer rank: every rank drains the weights (gathering them is a collective) and sends them.

    Args:
        config: Rollout configuration.
        model_config: Model configuration.
        device_mesh: Not used; None in a standalone replica's worker.
        replica_rank: -1: derived from RANK.
    """

    def __init__(
        self,
        config: RolloutConfig,
        model_config: HFModelConfig,
        device_mesh: DeviceMesh | None,
        replica_rank: int = -1,
    ) -> None:
        super().__init__(config, model_config, device_mesh)
        # Refuse what the server would refuse, where the message reaches the user first.
        ServerOptions.from_rollout_config(self.config)
        self.replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        self.adapter = adapter_of(self.config)
        self.is_leader_rank = True
        self._server: ray.actor.ActorHandle | None = None

    @property
    def server(self) -> ray.actor.ActorHandle:
        """The server's actor; found by name, because it starts after this object."""
        if self._server is None:
            self._server = ray.get_actor(server_name(self.replica_rank))
        return self._server

    async def resume(self, tags: list[str]) -> None:
        if self.config.free_cache_engine:
            await self.server.wake_up.remote(tags=tags)

    async def release(self) -> None:
        if self.config.free_cache_engine:
            await self.server.sleep.remote()

    @torch.no_grad()
    async def update_weights(
        self,
        weights: Any,
        global_steps: int | None = None,
        wire_format: str = "named_tensors",
        peft_config: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Send `weights`, an iterator or async iterator of (name, full tensor), to the server.

        With `peft_config` they are those of an adapter, which the server keeps beside its weights: `rollout.custom`
        says which one.

        Raises:
            ValueError: For a wire format other than named tensors.
        """
        if wire_format != "named_tensors":
            raise ValueError(
                f"The rollout server 'transformers' takes whole tensors, not {wire_format!r}; set "
                "actor_rollout_ref.rollout.checkpoint_engine.backend=naive (or gloo for separate_async)."
            )
        started = time.monotonic()
        configured = self.config.checkpoint_engine.update_weights_bucket_megabytes << 20
        async for message, last in pack_in_parts(weights, min(configured, _LARGEST_PART)):
            if peft_config is None:
                await self.server.receive_weights.remote(message, last)
            else:
                await self.server.receive_adapter.remote(self.adapter, peft_config["scale"], message, last)
        if global_steps is not None:
            await self.server.set_global_steps.remote(global_steps)
        logger.debug("weights sent to replica %d in %.3f s", self.replica_rank, time.monotonic() - started)
