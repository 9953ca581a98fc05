"""Where the rollout servers of some trainer ranks stand among all servers of a run that has several policies."""

from __future__ import annotations

from typing import Any

FIRST_REPLICA = "first_replica"
"""In `rollout.custom`, which verl leaves to others: the number of the first server of these trainer ranks."""


def first_replica(config: Any) -> int:
    """The number of the first server that the ranks of this rollout configuration feed; 0 where it says none."""
    return int((config.custom or {}).get(FIRST_REPLICA, 0))
