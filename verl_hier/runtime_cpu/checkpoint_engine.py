"""`checkpoint_engine.backend=gloo`: weights from the trainer to standalone rollout servers over gloo.

verl's own backends for `trainer_mode=separate_async` (NCCL, HCCL, NIXL, …) all need an accelerator or RDMA.
"""

import asyncio
import pickle
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import ray
import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
from verl.utils.net_utils import get_free_port

from verl_hier.runtime_cpu.weights import pack_in_parts

NAME = "gloo"
_TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class StoreAddress:
    """Where the ranks of one weight update meet."""

    host: str
    port: int


@CheckpointEngineRegistry.register(NAME)
class GlooCheckpointEngine(CheckpointEngine):
    """Trainer rank 0 broadcasts to all rollout workers; the other trainer ranks only take part in gathering.

    Args:
        bucket_size: Bytes in one broadcast.
        is_master: Whether this is trainer rank 0.
    """

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self._bucket_size = bucket_size
        self._is_master = is_master
        self._store: TCPStore | None = None
        self._group: Any = None
        self._rank = -1

    def prepare(self) -> StoreAddress | None:
        """Open the meeting point on trainer rank 0; None elsewhere."""
        if not self._is_master:
            return None
        host = ray.util.get_node_ip_address().strip("[]")
        port, _ = get_free_port(host)
        self._store = TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=_TIMEOUT)
        return StoreAddress(host, port)

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Trainer rank 0 is rank 0, rollout workers follow, other trainer ranks get -1."""
        world_size = 1 + rollout_world_size

        def arguments(ranks: list[int]) -> dict[str, list[Any]]:
            count = len(ranks)
            return {"rank": ranks, "world_size": [world_size] * count, "address": [metadata[0]] * count}

        return arguments([0] + [-1] * (actor_wg_world_size - 1)), arguments(list(range(1, world_size)))

    def init_process_group(self, rank: int, world_size: int, address: StoreAddress) -> None:
        """Join the group of this update; returns when all have joined."""
        self._rank = rank
        if rank < 0:
            return
        if self._store is None:
            self._store = TCPStore(address.host, address.port, is_master=False, timeout=_TIMEOUT)
        self._group = ProcessGroupGloo(PrefixStore("weights", self._store), rank, world_size, _TIMEOUT)

    def finalize(self) -> None:
        """Leave the group; each update makes a new one, because replicas may come and go."""
        self._group = None
        self._store = None

    @torch.no_grad()
    async def send_weights(self, weights: Any, global_steps: int | None = None) -> None:
        """Drain `weights`, an iterator of (name, tensor); rank 0 also broadcasts them."""
        async for message, last in pack_in_parts(weights, self._bucket_size):
            if self._rank == 0:
                await asyncio.to_thread(self._broadcast, pickle.dumps((message, last)))

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Yield (name, tensor) as trainer rank 0 sends them."""
        last = False
        while not last:
            message, last = pickle.loads(await asyncio.to_thread(self._broadcast, None))
            for name, packed in message.items():
                yield name, packed.unpack()

    def _broadcast(self, payload: bytes | None) -> bytes:
        """Send `payload` from rank 0, or receive it."""
        assert self._group is not None, "a weight update must call init_process_group first"
        length = torch.tensor([len(payload) if payload is not None else 0])
        self._group.broadcast(length, 0).wait()
        if payload is None:
            buffer = torch.empty(int(length), dtype=torch.uint8)
        else:
            buffer = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        self._group.broadcast(buffer, 0).wait()
        return payload if payload is not None else buffer.numpy().tobytes()
