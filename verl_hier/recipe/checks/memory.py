"""Is there memory for the plan? A lower bound of what a run on a CPU takes, against what the machine has free.

Only what cannot possibly work is refused. On GPU nodes verl and the rollout engines manage memory themselves, and the
machine that checks a recipe is often not the one that runs it, so the question is asked of CPU recipes alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from verl_hier.errors import RecipeError

# Measured with verl 0.9.1 on Linux: a Ray process that imports verl holds 0.4-0.6 GB, of which 0.25 are its own and
# the rest is shared library pages. The bound uses the own part.
PROCESS_BYTES = 250 * 2**20
# The Ray head (GCS, raylet, object store as used by small runs) and the driver.
RAY_BYTES = 600 * 2**20
ENVIRONMENT_BYTES = 60 * 2**20
# fp32 weights, gradients and two AdamW moments; one more copy each for reference policy and rollout server.
TRAINED_BYTES_PER_PARAMETER = 16
COPY_BYTES_PER_PARAMETER = 4


@dataclass(frozen=True)
class Plan:
    """Processes of a run.

    Attributes:
        ranks: trainer processes (actor, reference and critic share them).
        replicas: rollout servers.
        agent_workers, reward_workers, storage_units: verl's service processes.
        environment_processes: worlds of all rollout workers together.
    """

    ranks: int
    replicas: int
    agent_workers: int
    reward_workers: int
    storage_units: int
    environment_processes: int

    @property
    def services(self) -> int:
        """Ray processes besides trainer ranks and rollout servers: workers, storage, its controller, the runner."""
        return self.agent_workers + self.reward_workers + self.storage_units + 2


def lower_bound(plan: Plan, parameters: int, copies: int, critic: int) -> int:
    """Bytes that the run takes at least.

    Args:
        plan: its processes.
        parameters: of the policy.
        copies: forward-only copies of the policy (reference, rollout replicas).
        critic: parameters of the critic, 0 without one.
    """
    processes = plan.ranks + plan.replicas + plan.services
    return (
        RAY_BYTES
        + processes * PROCESS_BYTES
        + plan.environment_processes * ENVIRONMENT_BYTES
        + parameters * (TRAINED_BYTES_PER_PARAMETER + copies * COPY_BYTES_PER_PARAMETER)
        + critic * TRAINED_BYTES_PER_PARAMETER
    )


def check_memory(needed: int, config: Mapping[str, Any]) -> None:
    """Refuse a plan that needs more than the machine has free."""
    free = available_bytes()
    if needed <= free:
        return
    raise RecipeError(
        f"actor_rollout_ref.model.path: this plan needs at least {_gib(needed)} of memory and {_gib(free)} are free; "
        f"use "
        f"a smaller model than {config['actor_rollout_ref']['model']['path']!r}, or fewer processes in "
        "trainer.n_gpus_per_node, actor_rollout_ref.rollout.agent.num_workers and hier.rollout.environment_processes."
    )


def available_bytes() -> int:
    """Free memory of this machine or, if that is less, of this container; psutil knows machines only."""
    free = int(psutil.virtual_memory().available)
    container = _cgroup()
    return free if container is None else min(free, container)


def _cgroup() -> int | None:
    """Limit minus use of a version 2 control group, which is how containers are bounded."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        cached = dict(line.split() for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    return max(0, int(limit) - used + int(cached.get("inactive_file", 0)))


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
