"""Processes that do not divide, or that Ray could never start.

Memory is what small runs were measured to hold, and only of runs on a CPU: GPU servers manage theirs themselves, and
the machine that checks such a recipe is often not the one that runs it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from verl_hier.errors import RecipeError
from verl_hier.host.servers import keeps_adapters
from verl_hier.recipe.checks.lengths import (
    ACTOR,
    ROLLOUT,
    data_parallel,
    devices,
    longest_row,
    sequence_parallel,
    shards,
)
from verl_hier.recipe.checks.rule import rule, value
from verl_hier.recipe.checks.updates import Step, step_of
from verl_hier.recipe.cluster import joins_cluster
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.policies import full, learning

MANAGER = "verl_hier.compat.agent_loop.HierAgentLoopManager"
ALSO_ON_CPU = ("vllm",)
"""Servers with a build of their own for CPUs."""
MODES = ("hier_sync", "hier_colocate_async", "hier_separate_async")

# Measured with verl 0.9.1 on Linux, as PSS of all processes of a run (scripts/bench/policies.py): a trainer rank or a
# rollout server adds 0.25 GiB after a few steps; they are forked from one process, whose pages they share.
PROCESS_BYTES = 250 * 2**20
# The Ray head (GCS, raylet, object store as used by small runs), the driver, and library pages, which count once.
RAY_BYTES = 300 * 2**20
ENVIRONMENT_BYTES = 60 * 2**20
# fp32 weights, gradients and two AdamW moments; one more copy each for reference policy and rollout server.
TRAINED_BYTES_PER_PARAMETER = 16
COPY_BYTES_PER_PARAMETER = 4


@dataclass(frozen=True)
class Plan:
    """Processes of a run.

    Attributes:
        ranks: trainer processes (actor, reference and critic share them), of all policies that learn, and teachers.
        replicas: rollout servers, of all of them too.
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
    def processes(self) -> int:
        """All Ray processes that import verl."""
        return self.ranks + self.replicas + self.services

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
        step: what one step does.
        longest_row: tokens of the longest row.
    """

    devices: int
    data_parallel: int
    step: Step
    longest_row: int
    plan: Plan


@rule
def check_mode(recipe: ComposedRecipe) -> None:
    """Refuse a trainer or rollout worker that would ignore the `hier` block."""
    mode = value(recipe.config, "trainer.v1.trainer_mode")
    if mode not in MODES:
        raise RecipeError(
            f"trainer.v1.trainer_mode: {mode!r} is not a trainer of verl-hier and would ignore the hier block; use "
            f"{', '.join(MODES[:-1])} or {MODES[-1]}."
        )
    if not value(recipe.config, "trainer.use_v1"):
        raise RecipeError("trainer.use_v1: the hier trainers are v1 trainers of verl; set it to true.")
    line = ROLLOUT + "agent.agent_loop_manager_class"
    if not value(recipe.config, line):
        raise RecipeError(
            f"{line}: without one verl's own rollout workers would ignore the hier block; set it to "
            f"{MANAGER} or to a class that is made from it."
        )


@rule
def check_separate(recipe: ComposedRecipe) -> None:
    """Refuse settings that the asynchronous trainer with rollout nodes of its own cannot have."""
    if value(recipe.config, "trainer.v1.trainer_mode") != "hier_separate_async":
        return
    config = recipe.config
    tasks, mini = value(config, "data.train_batch_size"), value(config, ACTOR + "ppo_mini_batch_size")
    every = value(config, "trainer.v1.separate_async.parameter_sync_step")
    if tasks != every * mini:
        raise RecipeError(
            f"trainer.v1.separate_async.parameter_sync_step: data.train_batch_size = {tasks} must be this ({every}) "
            f"times {ACTOR}ppo_mini_batch_size ({mini})."
        )
    for line in (ROLLOUT + "nnodes", ROLLOUT + "n_gpus_per_node"):
        if int(value(config, line) or 0) < 1:
            raise RecipeError(
                f"{line}: hier_separate_async serves rollouts on nodes of their own; set it to at least 1."
            )
    if value(config, ROLLOUT + "checkpoint_engine.backend") == "naive":
        raise RecipeError(
            f"{ROLLOUT}checkpoint_engine.backend: 'naive' cannot reach separate rollout nodes; use nccl on GPUs or "
            "gloo on CPUs."
        )


@rule
def check_device(recipe: ComposedRecipe) -> None:
    """Refuse a rollout server that does not run on the recipe's device."""
    device, name = value(recipe.config, "trainer.device"), value(recipe.config, ROLLOUT + "name")
    on_cpu = [server.name for server in recipe.host.specs("rollout_server").values() if server.on_cpu]
    if device == "cpu" and name not in (*on_cpu, *ALSO_ON_CPU):
        raise RecipeError(
            f"{ROLLOUT}name: the rollout server {name!r} needs an accelerator, and trainer.device is cpu; use "
            f"{' or '.join((*on_cpu, *ALSO_ON_CPU))}."
        )
    if device != "cpu" and name in on_cpu:
        raise RecipeError(
            f"{ROLLOUT}name: the rollout server {name!r} runs on a CPU only, and trainer.device is {device}; use vllm "
            "or sglang."
        )


@rule
def check_parallel(recipe: ComposedRecipe) -> None:
    """Refuse parallelism that does not divide the devices."""
    whole = devices(recipe)
    _divides(sequence_parallel(recipe), whole, ACTOR + "ulysses_sequence_parallel_size")
    for size in ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size"):
        _divides(int(value(recipe.config, ROLLOUT + size) or 1), whole, ROLLOUT + size)
    _divides(_devices_of_a_server(recipe), whole, ROLLOUT + "tensor_model_parallel_size")
    _divides(shards(recipe), whole, ACTOR + "fsdp_config.fsdp_size")


@rule
def check_resume(recipe: ComposedRecipe) -> None:
    """Refuse to resume from a path that is not named or not there."""
    if value(recipe.config, "trainer.resume_mode") != "resume_path":
        return
    line = "trainer.resume_from_path"
    path = value(recipe.config, line)
    if not path:
        raise RecipeError(f"{line}: trainer.resume_mode is resume_path; name the folder of a checkpoint.")
    if not Path(str(path)).expanduser().is_dir():
        raise RecipeError(f"{line}: there is no checkpoint at {str(path)!r}.")


@rule
def check_ray_variables(recipe: ComposedRecipe) -> None:
    """Refuse environment variables of Ray's processes that are no texts, which Ray refuses when it starts."""
    line = "ray_kwargs.ray_init.runtime_env.env_vars"
    variables = value(recipe.config, line)
    if variables is not None and not isinstance(variables, Mapping):
        raise RecipeError(f"{line}: expected a block of names and texts, got {variables!r:.60}.")
    for name, said in (variables or {}).items():
        if not (isinstance(name, str) and isinstance(said, str)):
            raise RecipeError(
                f"{line}.{name}: Ray takes texts as environment variables and refuses {said!r:.60}; quote it for the "
                f"recipe, {name}: '{said}', or for the command line, {name}=\"'{said}'\"."
            )


@rule
def check_ray_slots(recipe: ComposedRecipe) -> None:
    """Refuse a Ray of the run's own with too few logical CPUs or slots: its placement groups would wait for ever.

    A cluster has the numbers that it was started with, and Ray refuses others.
    """
    ray = value(recipe.config, "ray_kwargs.ray_init") or {}
    if joins_cluster(recipe.config):
        for line in ("num_cpus", "num_gpus"):
            if ray.get(line) is not None:
                raise RecipeError(
                    f"ray_kwargs.ray_init.{line}: Ray takes no such number for a cluster that runs already; set it to "
                    "null, or ray_kwargs.ray_init.address to local for a Ray of this run alone."
                )
        return
    if value(recipe.config, "trainer.device") != "cpu":
        return
    groups = 3 + len(full(recipe.hier.policies)) + len(recipe.hier.teachers)
    needed = groups * devices(recipe) + plan_of(recipe).services
    cpus = ray.get("num_cpus")
    given = int(cpus) if cpus is not None else os.cpu_count() or 1
    if given < needed:
        raise RecipeError(
            f"ray_kwargs.ray_init.num_cpus: this plan's processes reserve at least {needed} logical CPUs of Ray and "
            f"{given} are offered, so it would wait for ever; set it to {max(32, needed)} (they need not exist)."
        )
    slots = ray.get("num_gpus")
    if slots is not None and int(slots) < devices(recipe):
        raise RecipeError(
            f"ray_kwargs.ray_init.num_gpus: trainer.nnodes x trainer.n_gpus_per_node asks for {devices(recipe)} slots "
            f"and {slots} are offered; set it to that product."
        )


def sizes_of(recipe: ComposedRecipe) -> Sizes:
    """What the numbers of a sound recipe amount to."""
    return Sizes(
        devices=devices(recipe),
        data_parallel=data_parallel(recipe),
        step=step_of(recipe),
        longest_row=longest_row(recipe),
        plan=plan_of(recipe),
    )


def plan_of(recipe: ComposedRecipe) -> Plan:
    """The processes of a sound recipe."""
    workers = int(value(recipe.config, ROLLOUT + "agent.num_workers"))
    units = value(recipe.config, "transfer_queue.backend.SimpleStorage.num_data_storage_units")
    policies = recipe.hier.policies
    shared = keeps_adapters(recipe.server, value(recipe.config, "actor_rollout_ref.model") or {})
    served = full(policies) if shared else learning(policies)
    return Plan(
        ranks=(1 + len(full(policies)) + len(recipe.hier.teachers)) * devices(recipe),
        replicas=(1 + len(served)) * (devices(recipe) // _devices_of_a_server(recipe)),
        agent_workers=workers,
        reward_workers=int(value(recipe.config, "reward.num_workers") or 0),
        storage_units=int(units or 0),
        environment_processes=workers * recipe.hier.rollout.environment_processes,
    )


def expected_bytes(plan: Plan, parameters: int, copies: int, critic: int) -> dict[str, int]:
    """Bytes that the run is expected to hold, by the recipe line that most changes them.

    Args:
        plan: its processes.
        parameters: of the policy.
        copies: forward-only copies of the policy (reference, rollout replicas).
        critic: parameters of the critic, 0 without one.
    """
    return {
        "trainer.n_gpus_per_node": RAY_BYTES + plan.processes * PROCESS_BYTES,
        "hier.rollout.environment_processes": plan.environment_processes * ENVIRONMENT_BYTES,
        "actor_rollout_ref.model.path": parameters * (TRAINED_BYTES_PER_PARAMETER + copies * COPY_BYTES_PER_PARAMETER),
        "critic.model.path": critic * TRAINED_BYTES_PER_PARAMETER,
    }


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


def _devices_of_a_server(recipe: ComposedRecipe) -> int:
    lines = ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")
    return math.prod(int(value(recipe.config, ROLLOUT + line) or 1) for line in lines)


def _divides(part: int, whole: int, line: str) -> None:
    if whole % part:
        raise RecipeError(
            f"{line}: {part} processes share one copy, which does not divide trainer.nnodes x "
            f"trainer.n_gpus_per_node = {whole}."
        )
