"""Rollout servers of verl's own classes for a policy beside verl's, numbered after those that stand already.

verl 0.9.1 finds the server of a trainer rank by a number on both sides: the trainer's adapter takes it from its rank
(`vllm_rollout.py`, `sglang_rollout.py`), and a replica takes by it its part of the worker group (`replica.py`,
`RolloutReplica.init_hybrid`). `LLMServerManager` counts from `start_rank`, and the other two from 0. Here they count
from the policy's first number, with whichever server the recipe names.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.rollout.llm_server import LLMServerManager
from verl.workers.rollout.replica import get_rollout_replica_class

from verl_hier.verl_facts.replicas import first_replica, ranks_of_replica


class ServersBeside(LLMServerManager):
    """verl's manager of the servers of one worker group, which count from `start_rank`."""

    @property
    def rollout_replica_class(self) -> type:
        """What verl looks for before it takes the class of the recipe's server as it is."""
        return numbered_replica(get_rollout_replica_class(self.rollout_config.name))


def numbered_replica(base: Any) -> type:
    """verl's class of a server's replica, whose workers are counted from the first one of their policy."""

    class Replica(base):  # type: ignore[misc]
        async def init_hybrid(self, worker_group: Any) -> None:
            before = [None] * (self.world_size * first_replica(self.config))
            await super().init_hybrid(SimpleNamespace(workers=[*before, *worker_group.workers]))

    Replica.__name__ = base.__name__
    return Replica


def numbered_rollout(rollout: Any, config: Any, rank: int) -> Any:
    """The trainer's side of a policy's servers, made like another one.

    Args:
        rollout: what verl's worker has made for its rank; it has spoken to no server yet.
        config: `actor_rollout_ref.rollout` of the policy, with the number of its first server.
        rank: of the worker in its group.
    """
    made = omega_conf_to_dataclass(config)
    return type(rollout)(
        config=made,
        model_config=rollout.model_config,
        device_mesh=rollout.device_mesh,
        replica_rank=first_replica(made) + rank // ranks_of_replica(made),
    )


def replicas_of(config: Any, ranks: int) -> int:
    """How many rollout servers so many trainer ranks feed."""
    return ranks // ranks_of_replica(config)


def worker_beside(base: Any) -> type:
    """`base`, verl's `ActorRolloutRefWorker`, for a policy whose servers are not the first ones of the run."""

    class WorkerBeside(base):  # type: ignore[misc]
        rollout: Any

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def init_model(self) -> None:
            super().init_model()
            self.rollout = numbered_rollout(self.rollout, self.config.rollout, self.rank)

    WorkerBeside.__name__ = base.__name__
    return WorkerBeside
