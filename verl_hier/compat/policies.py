"""Policies beside verl's own: workers, rollout servers and checkpoints of their own in one run of stock verl.

A policy of `hier.policies` that learns weights of its own has a worker group beside that of `actor_rollout_ref`, on the
same devices; one that learns an adapter shares that group. Each has rollout servers of its own. What verl does with the
rows of a step (padding, old and reference log-probs, the update) it does for the rows of each policy by themselves: on
a copy of the trainer whose configuration and worker groups are those of the policy. All else of a step sees one batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from omegaconf import OmegaConf, open_dict
from transfer_queue import KVBatchMeta
from verl.checkpoint_engine import CheckpointEngineManager
from verl.utils.config import omega_conf_to_dataclass

from verl_hier.compat.extension import TrainerExtension
from verl_hier.compat.servers.client import ClientOfAdapter
from verl_hier.compat.servers.named import OF_CLIENT
from verl_hier.compat.servers.numbered import ServersBeside, worker_beside
from verl_hier.compat.worker_groups import role_of_actor, started_group
from verl_hier.errors import RecipeError
from verl_hier.host.servers import keeps_adapters, rollout_server
from verl_hier.recipe.policies import PolicyOptions, full, learning, lines_of_adapters
from verl_hier.rollout.policy import DEFAULT_POLICY
from verl_hier.verl_facts.replicas import ADAPTER as OF_ADAPTER
from verl_hier.verl_facts.replicas import FIRST_REPLICA

ADAPTER = "adapter_of_policy"
"""What the request of a batch calls the adapter that it is for."""
SUMMED = ("hier/rows/trained", "hier/rows/padding")
"""Metrics of a policy's batch that are added up over the policies of a step."""


@dataclass(frozen=True)
class Trained:
    """A policy that learns beside verl's own.

    Attributes:
        config: the whole configuration with the policy's lines.
        group: its workers; those of verl's own policy for an adapter.
        servers: its rollout servers; None for an adapter that verl's own servers keep.
        weights: brings its weights to them; None for an adapter, which its workers bring with those of verl's own.
    """

    config: Any
    group: Any
    servers: Any
    weights: Any | None


class Each:
    """Several objects of one class as one: a call goes to all of them in order, and the first one answers."""

    def __init__(self, members: Sequence[Any]) -> None:
        self._members = members

    def __getattr__(self, name: str) -> Any:
        first = getattr(self._members[0], name)
        if not callable(first):
            return first

        def call(*args: Any, **kwargs: Any) -> Any:
            answers = [getattr(member, name)(*args, **kwargs) for member in self._members]
            return answers[0]

        return call


def config_of(config: Any, options: PolicyOptions, first_replica: int) -> Any:
    """The configuration of a run as a policy has it.

    Args:
        config: of the run; it stays as it is.
        options: of the policy.
        first_replica: number of its first rollout server.
    """
    found = copy.deepcopy(config)
    with open_dict(found):
        found.actor_rollout_ref = with_lines(found.actor_rollout_ref, options.actor_rollout_ref, first_replica)
        if options.model is not None:
            found.actor_rollout_ref.model.path = options.model
    return found


def with_lines(block: Any, lines: Mapping[str, Any], first_replica: int = 0, adapter: str = DEFAULT_POLICY) -> Any:
    """A copy of `actor_rollout_ref` with the lines of a policy, the number of its first rollout server, and what its
    adapter is called there."""
    found = OmegaConf.merge(block, dict(lines))
    with open_dict(found):
        custom = {FIRST_REPLICA: first_replica, OF_ADAPTER: adapter}
        found.rollout.custom = {**(found.rollout.get("custom") or {}), **custom}
    return found


class SeveralPolicies(TrainerExtension):
    """The policies of `hier.policies`."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self._declared: Mapping[str, PolicyOptions] = trainer.hier.policies
        self._adapters = lines_of_adapters(self._declared)
        self._worker: type = object
        self._trained: dict[str, Trained] = {}
        self._owner: dict[str, str] = {}
        self._kept: dict[str, dict[str, Any]] = {}

    @property
    def learns_beside(self) -> dict[str, str]:
        """Each policy that learns beside verl's own, and how: what a resumed run must have too."""
        return {name: self._declared[name].train for name in learning(self._declared)}

    def choose_workers(self) -> None:
        # The workers of each policy with weights of its own are one more group of processes on the devices.
        self.trainer.resource_pool_manager.max_colocate_count += len(full(self._declared))

    def actor_worker(self, worker: type) -> type:
        # Those of the other policies are made of the same class; verl's own stay as they are.
        self._worker = worker
        return worker

    # ---- workers and servers -----------------------------------------------------------------------------------------

    def build(self) -> None:
        trainer = self.trainer
        role, model = role_of_actor(trainer), trainer.config.actor_rollout_ref.model
        first = len(trainer.llm_server_manager.get_replicas())
        shared = keeps_adapters(rollout_server(trainer.host, trainer.config.actor_rollout_ref.rollout.name), model)
        for name, how in self.learns_beside.items():
            config = config_of(trainer.config, self._declared[name], first)
            group = trainer.actor_rollout_wg
            if how == "full":
                worker = ray.remote(worker_beside(self._worker))
                group = started_group(trainer, worker, role, config.actor_rollout_ref, f"policy_{name}")
            servers = weights = None
            if how == "full" or not shared:
                pool = trainer.resource_pool_manager.get_resource_pool(role)
                servers, weights = started_servers(config, group, pool, first)
                first += len(servers.get_replicas())
            if how == "adapter" and servers is not None:
                trainer.checkpoint_manager.add_replicas(servers.get_replicas())
            self._trained[name] = Trained(config, group, servers, None if how == "adapter" else weights)
        further = [policy.weights for policy in self._trained.values() if policy.weights is not None]
        if further:
            trainer.checkpoint_manager = Each([trainer.checkpoint_manager, *further])

    @property
    def server_managers(self) -> list[Any]:
        return [policy.servers for policy in self._trained.values() if policy.servers is not None]

    def add_clients(self, client: Any, client_of: Callable[[Any], Any]) -> None:
        clients = {
            name: ClientOfAdapter(client, name) if policy.servers is None else client_of(policy.servers)
            for name, policy in self._trained.items()
        }
        setattr(client, OF_CLIENT, clients)

    # ---- the rows of a step ------------------------------------------------------------------------------------------

    def divide(self, keys: Sequence[str], policies: Sequence[str]) -> None:
        """Note whose rows those of a step are.

        Args:
            keys: of the rows, without padding.
            policies: name of the policy of each.
        """
        self._owner, self._kept = dict(zip(keys, policies, strict=True)), {}

    def each(self, call: Callable[[Any, Any, dict[str, Any]], Any], batch: Any, metrics: dict[str, Any]) -> Any:
        """Let verl work on the rows of each policy by themselves; policies without rows are left out.

        Args:
            call: what is done, with a trainer, its rows and its metrics; returns rows.
            batch: of all policies.
            metrics: those of policies other than verl's own are called `policy/<name>/…`.

        Returns:
            the rows of all policies, one policy after the other.
        """
        done = []
        for name in (DEFAULT_POLICY, *self._trained):
            places = [place for place, key in enumerate(batch.keys) if self._owner[key] == name]
            if not places:
                continue
            rows, found, trainer = part_of(batch, places), dict[str, Any](), self._view(name)
            if self._adapters:
                rows.extra_info[ADAPTER] = name
            rows = call(trainer, rows, found)
            self._kept[name] = {"_division": trainer._division}
            self._owner |= dict.fromkeys(rows.keys, name)
            done.append(rows)
            for key, value in found.items():
                if name == DEFAULT_POLICY and key not in SUMMED:
                    metrics[key] = value
                elif name != DEFAULT_POLICY:
                    metrics[f"policy/{name}/{key}"] = value
                if key in SUMMED:
                    metrics[key] = metrics.get(key, 0.0) + value
        return joined(batch, done)

    def _view(self, name: str) -> Any:
        """The trainer as the rows of one policy need it."""
        view = copy.copy(self.trainer)
        vars(view).update(self._kept.get(name, {}))
        if name != DEFAULT_POLICY:
            policy = self._trained[name]
            view.config, view.actor_rollout_wg = policy.config, policy.group
            if hasattr(view, "ref_policy_wg"):
                view.ref_policy_wg = policy.group
        return view

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def save(self, checkpoint: Path) -> None:
        trainer = self.trainer.config.trainer
        most = 1 if trainer.get("remove_previous_ckpt_in_save", False) else trainer.get("max_actor_ckpt_to_keep", None)
        for name, policy in self._trained.items():
            folder = str(folder_of(checkpoint, name))
            with self._used(name):
                policy.group.save_checkpoint(folder, None, self.trainer.global_steps, max_ckpt_to_keep=most)

    def load(self, checkpoint: Path) -> None:
        for name, policy in self._trained.items():
            folder = folder_of(checkpoint, name)
            if not folder.is_dir():
                raise RecipeError(f"hier.policies.{name}: the checkpoint {checkpoint} has no folder policies/{name}.")
            with self._used(name):
                policy.group.load_checkpoint(
                    local_path=str(folder), del_local_after_load=self.trainer.config.trainer.del_local_ckpt_after_load
                )

    @contextmanager
    def _used(self, name: str) -> Iterator[None]:
        """Within it, the workers of a policy save and load the policy, also where they have an adapter for each."""
        group = self._trained[name].group
        if name in self._adapters:
            group.use_policy(name)
        try:
            yield
        finally:
            if name in self._adapters:
                group.use_policy(DEFAULT_POLICY)


def started_servers(config: Any, group: Any, pool: Any, first: int) -> tuple[Any, Any]:
    """Rollout servers of a policy, asleep, and what brings them its weights.

    Args:
        config: the whole configuration with the policy's lines.
        group: workers of its actor.
        pool: their devices.
        first: number of its first server.
    """
    servers = ServersBeside.create(config=config, worker_group=group, rollout_resource_pool=pool, start_rank=first)
    engine = omega_conf_to_dataclass(config.actor_rollout_ref.rollout.checkpoint_engine)
    engine.backend = "naive"
    weights = CheckpointEngineManager(config=engine, actor_wg=group, replicas=servers.get_replicas())
    weights.sleep_replicas()
    return servers, weights


def folder_of(checkpoint: Path, policy: str) -> Path:
    """Where a checkpoint has the weights and the optimiser of a policy."""
    return checkpoint / ("actor" if policy == DEFAULT_POLICY else f"policies/{policy}/actor")


def part_of(batch: Any, places: Sequence[int]) -> Any:
    """Some rows of a batch of verl's trainer, with a request of their own."""
    return KVBatchMeta(
        keys=[batch.keys[place] for place in places],
        tags=[batch.tags[place] for place in places],
        partition_id=batch.partition_id,
        fields=batch.fields,
        extra_info=dict(batch.extra_info or {}),
    )


def joined(batch: Any, parts: Sequence[Any]) -> Any:
    """Rows of several policies as one batch, with the request of the batch that they were parts of."""
    return KVBatchMeta(
        keys=[key for part in parts for key in part.keys],
        tags=[tag for part in parts for tag in part.tags],
        partition_id=batch.partition_id,
        fields=batch.fields,
        extra_info=batch.extra_info,
    )
