"""Where the rollout servers of some trainer ranks stand among all servers of a run that has several policies."""

from __future__ import annotations

from typing import Any

FIRST_REPLICA = "first_replica"
"""In `rollout.custom`, which verl leaves to others: the number of the first server of these trainer ranks."""

ADAPTER = "adapter"
"""As above: the name of the adapter that they send, where servers keep adapters beside the weights."""


def first_replica(config: Any) -> int:
    """The number of the first server that the ranks of this rollout configuration feed; 0 where it says none."""
    return int((config.custom or {}).get(FIRST_REPLICA, 0))


def adapter_of(config: Any) -> str:
    """The name of the adapter that the ranks of this rollout configuration send."""
    return str((config.custom or {}).get(ADAPTER, "default"))


def ranks_of_replica(config: Any) -> int:
    """Trainer ranks that one rollout server of this configuration has (`RolloutReplica.__init__`)."""
    return int(config.tensor_model_parallel_size * config.data_parallel_size * config.pipeline_model_parallel_size)
