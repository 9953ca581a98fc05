"""The processes, lengths and memory of a run, which verl would only find impossible after its processes have started.

Memory is a lower bound, and only of runs on a CPU: GPU servers manage theirs themselves, and the machine that checks
such a recipe is often not the one that runs it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from verl_hier.errors import RecipeError
from verl_hier.recipe.schema import HierConfig

ACTOR = "actor_rollout_ref.actor."
ROLLOUT = "actor_rollout_ref.rollout."
MODES = ("hier_sync", "hier_colocate_async", "hier_separate_async")

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


@dataclass(frozen=True)
class Sizes:
    """What the numbers of a recipe amount to.

    Attributes:
        devices: GPUs, or slots that stand for them on a CPU.
        data_parallel: trainer ranks that see different rows.
        tasks: tasks a step; the number of groups.
        episodes: trained episodes a task.
        optimiser_steps: a step's updates, whatever the number of rows.
        longest_row: tokens of the longest row.
    """

    devices: int
    data_parallel: int
    tasks: int
    episodes: int
    optimiser_steps: int
    longest_row: int
    plan: Plan


def check_resources(config: Mapping[str, Any], hier: HierConfig, episodes: int) -> Sizes:
    """Refuse sizes that do not divide, do not hold the longest row, or leave Ray waiting for ever."""
    check_mode(config)
    devices = _positive(config, "trainer.nnodes") * _positive(config, "trainer.n_gpus_per_node")
    tasks, mini = _positive(config, "data.train_batch_size"), _positive(config, ACTOR + "ppo_mini_batch_size")
    parallel = _sequence_parallel(config)
    _divides(parallel, devices, ACTOR + "ulysses_sequence_parallel_size")
    plan = _plan(config, hier, devices)
    longest = check_lengths(config, hier, parallel)
    if _get(config, "trainer.device") == "cpu":
        check_ray_slots(config, plan, devices)
    return Sizes(
        devices=devices,
        data_parallel=devices // parallel,
        tasks=tasks,
        episodes=episodes,
        optimiser_steps=optimiser_steps(config, tasks, mini),
        longest_row=longest,
        plan=plan,
    )


def optimiser_steps(config: Mapping[str, Any], tasks: int, mini: int) -> int:
    """Updates a step, as the hier trainers count them: whole mini-batches of tasks, whatever the number of rows."""
    if _get(config, "trainer.v1.trainer_mode") == "hier_separate_async":
        tasks //= int(_get(config, "trainer.v1.separate_async.parameter_sync_step"))
    return max(1, tasks // mini) * int(_get(config, ACTOR + "ppo_epochs") or 1)


def check_mode(config: Mapping[str, Any]) -> None:
    """Refuse trainer modes that would ignore the `hier` block, and settings that the asynchronous one cannot have."""
    mode = _get(config, "trainer.v1.trainer_mode")
    if mode not in MODES:
        raise RecipeError(
            f"trainer.v1.trainer_mode: {mode!r} is not a trainer of verl-hier and would ignore the hier block; use "
            f"{', '.join(MODES[:-1])} or {MODES[-1]}."
        )
    if not _get(config, "trainer.use_v1"):
        raise RecipeError("trainer.use_v1: the hier trainers are v1 trainers of verl; set it to true.")
    if mode == "hier_separate_async":
        _check_separate(config)


def _check_separate(config: Mapping[str, Any]) -> None:
    tasks, mini = _get(config, "data.train_batch_size"), _get(config, ACTOR + "ppo_mini_batch_size")
    every = _get(config, "trainer.v1.separate_async.parameter_sync_step")
    if tasks != every * mini:
        raise RecipeError(
            f"trainer.v1.separate_async.parameter_sync_step: data.train_batch_size = {tasks} must be this ({every}) "
            f"times "
            f"{ACTOR}ppo_mini_batch_size ({mini})."
        )
    for line in (ROLLOUT + "nnodes", ROLLOUT + "n_gpus_per_node"):
        if int(_get(config, line) or 0) < 1:
            raise RecipeError(
                f"{line}: hier_separate_async serves rollouts on nodes of their own; set it to at least 1."
            )
    if _get(config, ROLLOUT + "checkpoint_engine.backend") == "naive":
        raise RecipeError(
            f"{ROLLOUT}checkpoint_engine.backend: 'naive' cannot reach separate rollout nodes; use nccl on GPUs or "
            f"gloo "
            "on CPUs."
        )


def check_lengths(config: Mapping[str, Any], hier: HierConfig, parallel: int) -> int:
    """Refuse token limits that contradict each other; returns the longest row."""
    prompt, response = _positive(config, "data.max_prompt_length"), _positive(config, "data.max_response_length")
    row = prompt + response
    turn = hier.rollout.max_tokens_per_turn
    if turn > response:
        raise RecipeError(
            f"hier.rollout.max_tokens_per_turn: a turn may take {turn} tokens, but data.max_response_length is "
            f"{response}; "
            "lower the first or raise the second."
        )
    context = hier.rollout.context_tokens
    if context is not None and context > row:
        raise RecipeError(
            f"hier.rollout.context_tokens: {context} tokens do not fit into data.max_prompt_length + "
            f"data.max_response_length = {row}."
        )
    limits = (("use_dynamic_bsz", ACTOR, "ppo_max_token_len_per_gpu"),)
    for switch, block, line in limits:
        limit = int(_get(config, block + line) or 0) * parallel
        if _get(config, block + switch) and limit < row:
            raise RecipeError(
                f"{block}{line}: a micro-batch must hold the longest row, data.max_prompt_length + "
                f"data.max_response_length = {row} tokens, and holds {limit}; raise it or shorten the rows."
            )
    return row


def check_ray_slots(config: Mapping[str, Any], plan: Plan, devices: int) -> None:
    """Refuse a local Ray with too few logical CPUs or slots: its placement groups would wait without a word."""
    ray = _get(config, "ray_kwargs.ray_init") or {}
    if ray.get("address"):
        return
    needed = 3 * devices + plan.services
    cpus = ray.get("num_cpus")
    given = int(cpus) if cpus is not None else os.cpu_count() or 1
    if given < needed:
        raise RecipeError(
            f"ray_kwargs.ray_init.num_cpus: this plan's processes reserve at least {needed} logical CPUs of Ray and "
            f"{given} are offered, so it would wait for ever; set it to {max(32, needed)} (they need not exist)."
        )
    slots = ray.get("num_gpus")
    if slots is not None and int(slots) < devices:
        raise RecipeError(
            f"ray_kwargs.ray_init.num_gpus: trainer.nnodes x trainer.n_gpus_per_node asks for {devices} slots and "
            f"{slots} "
            "are offered; set it to that product."
        )


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
        f"use a smaller model than {config['actor_rollout_ref']['model']['path']!r}, or fewer processes in "
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


def _plan(config: Mapping[str, Any], hier: HierConfig, devices: int) -> Plan:
    tensor = _positive(config, ROLLOUT + "tensor_model_parallel_size")
    server = tensor * int(_get(config, ROLLOUT + "data_parallel_size") or 1)
    server *= int(_get(config, ROLLOUT + "pipeline_model_parallel_size") or 1)
    _divides(server, devices, ROLLOUT + "tensor_model_parallel_size")
    workers = _positive(config, ROLLOUT + "agent.num_workers")
    return Plan(
        ranks=devices,
        replicas=devices // server,
        agent_workers=workers,
        reward_workers=int(_get(config, "reward.num_workers") or 0),
        storage_units=int(_get(config, "transfer_queue.backend.SimpleStorage.num_data_storage_units") or 0),
        environment_processes=workers * hier.rollout.environment_processes,
    )


def _sequence_parallel(config: Mapping[str, Any]) -> int:
    places = (ACTOR + "ulysses_sequence_parallel_size", ACTOR + "fsdp_config.ulysses_sequence_parallel_size")
    return max(int(_get(config, place) or 1) for place in places)


def _divides(part: int, whole: int, line: str) -> None:
    if whole % part:
        raise RecipeError(
            f"{line}: {part} processes share one copy, which does not divide trainer.nnodes x "
            f"trainer.n_gpus_per_node = "
            f"{whole}."
        )


def _positive(config: Mapping[str, Any], line: str) -> int:
    value = _get(config, line)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RecipeError(f"{line}: expected a whole number of at least 1, got {value!r}.")
    return value


def _get(config: Mapping[str, Any], line: str) -> Any:
    """The value at a dotted recipe line, None when a part of it is missing."""
    place: Any = config
    for key in line.split("."):
        if not isinstance(place, Mapping) or key not in place:
            return None
        place = place[key]
    return place
