"""`hier_sync`, `hier_colocate_async` and `hier_separate_async`: verl's own three trainers with one mixin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig, open_dict
from ray.exceptions import RayActorError, RayError
from tensordict import TensorDict
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import PPOTrainerColocateAsync, PPOTrainerSeparateAsync, PPOTrainerSync, register_trainer
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.utils.padding import response_from_nested

from verl_hier.compat.checkpoints import claim, mark_whole, mend_tracker, told_when_full
from verl_hier.compat.corrections import WEIGHTS, rollout_correction, row_products
from verl_hier.compat.examples import ExampleMixin
from verl_hier.compat.extension import TrainerExtension, jagged
from verl_hier.compat.liveness import Liveness, lost_actor, storage_units
from verl_hier.compat.losses import worker_with_losses
from verl_hier.compat.policies import SeveralPolicies
from verl_hier.compat.queue import LIGHT, TRAIN, arrived, raise_faults, tags_of, uid_of_row
from verl_hier.compat.run_state import checkpoint_of, read_state, write_state
from verl_hier.compat.servers.client import ResumingClient, SingleServerClient
from verl_hier.compat.servers.counters import ServerCounters, read_servers
from verl_hier.compat.stored_steps import StoreMixin
from verl_hier.compat.tasks import TaskMixin
from verl_hier.compat.updates import UpdateMixin
from verl_hier.compat.validation_success import ValidationMixin
from verl_hier.errors import RolloutError
from verl_hier.graph.columnar.light import Light, unpack
from verl_hier.recipe.checks.parts import check_kl
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.policies import learning
from verl_hier.training.guards import RewardHistory
from verl_hier.training.loss_table import PolicyLossOfRun
from verl_hier.training.metrics import counted, turn_metrics
from verl_hier.training.policy_loss import clip_range
from verl_hier.training.process_reward import LOG_PROBS
from verl_hier.training.schedule import Schedule, phase_metrics
from verl_hier.training.sharing import Sharing
from verl_hier.training.step import CORRECTED_MASK, TrainingStep, train_step
from verl_hier.training.value_heads import values_of

MASK = "response_mask"
NOTHING_TO_TRAIN = (
    "no row of this step can be trained: every episode was lost, or no turn belongs to the levels that learn; "
    "see hier/episodes/failed in the last metrics, and hier.schedule."
)


class HierTrainerMixin(TaskMixin, UpdateMixin, StoreMixin, ExampleMixin, ValidationMixin):
    """What our trainers do differently from verl's.

    Overridden seams (verl/trainer/ppo/v1/trainer_base.py): `_init_resource_pool_mgr`, `_setup`, `_balance_batch`,
    `_compute_values`, `_compute_advantage`, `_save_checkpoint`, `_load_checkpoint`, `_compute_metrics`,
    `on_validate_begin`, `on_validate_end`, `on_train_end`, `fit`; in the asynchronous trainers `get_llm_client` too.
    `TaskMixin` overrides those that draw, launch and sample tasks, `UpdateMixin` those that decide on mini-batches,
    `ExampleMixin` the one that logs examples of a validation, `ValidationMixin` the one that makes its figures;
    `StoreMixin` writes the steps into the store.
    What learns or is asked beside the actor is a `TrainerExtension`.
    """

    base_mode: str
    _counters: ServerCounters

    def __init__(self, config: DictConfig) -> None:
        # verl compares the mode with the names of its own three trainers in several places.
        with open_dict(config):
            config.trainer.v1.trainer_mode = self.base_mode
        recipe = ComposedRecipe.of(config)
        self.hier, self.host, self.parts = recipe.hier, recipe.host, recipe.parts
        self.update_options = recipe.hier.update
        self._heads, self.probes = recipe.value_heads, recipe.probes
        self._policies = SeveralPolicies(self) if learning(recipe.hier.policies) else None
        self.extensions: list[TrainerExtension] = [
            *(spec.factory(self) for spec in recipe.extensions),
            *(() if self._policies is None else (self._policies,)),
        ]
        self._loss = PolicyLossOfRun.of(recipe.config, self.host)
        self.schedule: Schedule = self.parts.schedule.spec.factory(self.parts.schedule.options)
        self._step: TrainingStep | None = None
        # What verl trains in a step one after the other (`parameter_sync_step`), with the metrics of each.
        self._updates: list[tuple[TrainingStep, dict[str, Any]]] = []
        self._done: dict[str, Any] = {}
        self._rewards = RewardHistory()
        self._phases: set[str] = set()
        self._saved = 0
        check_kl(recipe)
        folder = Path(str(config.trainer.default_local_dir))
        with told_when_full(folder):
            self._writer = claim(folder)
            mend_tracker(folder)
        super().__init__(config)

    def fit(self, agent_loop_manager: Any) -> None:
        """verl's loop; errors of Ray, TransferQueue and the rollout workers become a sentence that says what to do."""
        handles = [handle for manager in self._rollout_server_managers() for handle in manager.server_handles]
        self._counters = ServerCounters(read_servers(handles))
        workers = agent_loop_manager.agent_loop_workers
        self._write_by(workers)
        self._watch(Liveness([*workers, *storage_units()]))
        try:
            super().fit(agent_loop_manager)
        except (RayError, RuntimeError) as error:
            raise_faults()
            if isinstance(error, RayActorError):
                raise lost_actor(error) from error
            # ReplayBuffer.sample of verl 0.9.1 refuses a batch of which nothing is left in these words.
            if "no materializable trajectories" in str(error):
                raise RolloutError(NOTHING_TO_TRAIN) from error
            raise

    def _rollout_server_managers(self) -> list[Any]:
        found: list[Any] = super()._rollout_server_managers()
        return found + [manager for extension in self.extensions for manager in extension.server_managers]

    def get_llm_client(self) -> Any:
        client = self._client_of(self._servers)
        if self._policies is not None:
            self._policies.add_clients(client, self._client_of)
        return client

    @property
    def _servers(self) -> Any:
        """The manager of the rollout servers of verl's own policy."""
        return self.llm_server_manager

    def _client_of(self, servers: Any) -> Any:
        """A client of rollout servers that goes on with a request after an update of the weights."""
        return servers.get_client(client_cls=ResumingClient)

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        worker: type = ActorRolloutRefWorker
        policy_loss = self.config.actor_rollout_ref.actor.policy_loss
        if policy_loss.get("loss_mode", "vanilla") in self.host.specs("policy_loss"):
            worker = worker_with_losses(worker, self.hier.plugins)
        for extension in self.extensions:
            worker = extension.actor_worker(worker)
            extension.choose_workers()
        if worker is not ActorRolloutRefWorker:
            for role in {Role.Actor, Role.ActorRollout, Role.ActorRolloutRef} & self.role_worker_mapping.keys():
                self.role_worker_mapping[role] = ray.remote(worker)

    def _setup(self) -> None:
        for extension in self.extensions:
            extension.prepare()
        super()._setup()
        for extension in self.extensions:
            extension.begin()

    def _compute_values(self, batch: Any, metrics: dict[str, Any]) -> Any:
        written = any(extension.values(batch) for extension in self.extensions)
        return batch if written else super()._compute_values(batch, metrics)

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        asked = dict(batch.extra_info)
        batch = self._by_policy("_update_actor", batch, metrics)
        if self.schedule.reads_losses:
            # What the update added to the request is no concern of a forward pass.
            updated, batch.extra_info = batch.extra_info, asked
            self._read_losses(batch)
            batch.extra_info = updated
        assert self._step is not None
        for extension in self.extensions:
            extension.after_update(batch, self._step, metrics)
        return batch

    def _read_losses(self, batch: Any) -> None:
        """Show the schedule the loss of each row under the updated policy, at the cost of a forward pass."""
        assert self._step is not None
        low, high = clip_range(self.config.actor_rollout_ref.actor)
        temperature = self.config.actor_rollout_ref.rollout.temperature
        batch.extra_info.update(calculate_entropy=False, compute_loss=False, temperature=temperature)
        self.actor_rollout_wg.compute_log_prob(batch)
        fields = ["log_probs", "old_log_probs", "advantages", "response_mask"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        data["log_probs"] = response_from_nested(data.pop("log_probs"), data["response_mask"])
        columns = {name: [row.numpy() for row in data[name].unbind()] for name in fields}
        group, losses = self._step.row_losses(list(batch.keys), columns, low, high)
        self.schedule.learned(group, losses, self.global_steps)

    # ---- from rows to credit -----------------------------------------------------------------------------------------

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Read where the rows come from, put them into an order that does not depend on timing, then balance."""
        raise_faults()
        trained = {uid_of_row(key) for key in batch.keys}
        light = self._take_light(trained)
        # What the rows of each task share, whichever engine trains them.
        sharing = (Sharing(*tag["sharing"]) for uid, tag in self._done.items() if uid in trained)
        metrics.update(Sharing.total(sharing).metrics())
        without_rows = sum(not tag["rows"] for tag in self._done.values())
        if without_rows:
            metrics["hier/groups/without_rows"] = float(without_rows)
        if not len(batch):
            raise RolloutError(NOTHING_TO_TRAIN)
        indices = dict(zip(light.uids, light.columns.tasks["index"].to_pylist(), strict=True))
        batch.reorder(self._row_order(batch.keys, indices))
        self._step = TrainingStep(light, batch.keys)
        self._updates.append((self._step, metrics))
        self._step.check_losses(self.hier.rollout.max_failed_share)
        if self._policies is not None:
            self._policies.divide(batch.keys, self._step.ledger.policies)
        return self._by_policy("_balance_batch", batch, metrics, *args, **kwargs)

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        return self._by_policy("_compute_old_log_prob", batch, metrics)

    def _compute_ref_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        return self._by_policy("_compute_ref_log_prob", batch, metrics)

    def _by_policy(self, name: str, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """verl's method of that name, for the rows of each policy by themselves where several policies learn."""

        def call(trainer: Any, rows: Any, found: dict[str, Any]) -> Any:
            # Of a copy of this trainer, where the rows are those of another policy.
            return getattr(super(HierTrainerMixin, trainer), name)(rows, found, *args, **kwargs)  # noqa: UP008

        return call(self, batch, metrics) if self._policies is None else self._policies.each(call, batch, metrics)

    def _row_order(self, keys: list[str], indices: dict[str, int]) -> list[int]:
        """By task, episode and row, and the random uid last: verl's own order is that of arrival, which no seed
        controls."""
        rows = [key.rsplit("_", 2) for key in keys]
        places = [(indices.get(uid, 0), int(episode), int(row), uid) for uid, episode, row in rows]
        return sorted(range(len(keys)), key=places.__getitem__)

    def _take_light(self, trained: set[str]) -> Light:
        """Take the light parts of the tasks of this step, and note which tasks are done with it.

        These are the tasks of the batch, those without rows, and those that verl or `hier.refill` has dropped.

        Returns:
            the light parts of the tasks of the batch, in the order of the data set, which the random uids are not:
            what a schedule keeps by running means may not depend on them.
        """
        tags = {key: tag for key, tag in arrived(LIGHT).items() if not tag["validate"]}
        under_way = tags_of(TRAIN)
        self._done = {key: tag for key, tag in tags.items() if key in trained or key not in under_way}
        keys = sorted(trained & tags.keys(), key=lambda uid: (tags[uid]["index"], uid))
        parts = []
        if keys:
            data = tq.kv_batch_get(keys=keys, partition_id=LIGHT, select_fields=["light"])
            parts = list(data["light"])
        if self._done:
            tq.kv_clear(keys=list(self._done), partition_id=LIGHT)
        return unpack(parts)

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        assert self._step is not None
        columns = [MASK, "old_log_probs", "rollout_log_probs", "entropy"]
        columns += [values_of(head) for head in self._heads] or ["values"]
        columns += [LOG_PROBS] if self.hier.process_reward is not None else []
        native = self.parts.estimator.spec.native
        if native:
            batch = super()._compute_advantage(batch, metrics)
            columns.append("advantages")
        fields = [*columns, WEIGHTS]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        corrected = {name: data[name] for name in (WEIGHTS,) if name in data}
        output = corrected if native else rollout_correction(self.config.algorithm, data, metrics)
        probed = [
            asked for extension in self.extensions for asked in extension.before_credit(batch, self._step, metrics)
        ]
        known = {name: data[name] for name in columns if name in data}
        if MASK in output:
            known[CORRECTED_MASK] = output[MASK]
        result = train_step(
            self._step,
            keys=list(batch.keys),
            columns={name: [row.numpy() for row in rows.unbind()] for name, rows in known.items()},
            host=self.host,
            estimator=self.parts.estimator,
            guards=self.hier.guards,
            schedule=self.schedule,
            number=self.global_steps,
            metrics=metrics,
            history=self._rewards,
            heads=self._heads,
            probed=probed,
            process_reward=self.hier.process_reward,
            loss=self._loss,
            left_out=self._left_out(self._step.ledger.policies, self.global_steps, metrics),
        )
        for extension in self.extensions:
            extension.after_credit(batch, self._step, result, metrics)
        for name, rows in result.items():
            ours = jagged(torch.as_tensor(row, dtype=torch.float32) for row in rows)
            # Only the masks and the loss weights may exist already: verl's correction makes them too.
            output[name] = row_products(output[name], ours) if name in output else ours
        if MASK in output:
            # verl divides losses by the tokens of a copy of the mask.
            output[MASK] = output["loss_mask"] = output[MASK].to(data[MASK].dtype)
        self._begin_store(self._done, again=len(self._updates) > 1)
        if not output:
            return batch
        return tq.kv_batch_put(
            keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(output, batch_size=len(batch))
        )

    def on_validate_begin(self) -> None:
        super().on_validate_begin()
        self._counters.look()

    def on_validate_end(self) -> None:
        super().on_validate_end()
        self._counters.skip()
        done = [uid for uid, tag in arrived(LIGHT).items() if tag["validate"]]
        if done:
            tq.kv_clear(keys=done, partition_id=LIGHT)
            self._store_validation(done)

    def _compute_metrics(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        super()._compute_metrics(batch, metrics, *args, **kwargs)
        for extension in self.extensions:
            extension.report(metrics)
        metrics.update(self._counters.metrics())
        updates, self._updates = self._updates, []
        if updates:
            # verl counts the turns of rows, and a row of ours may be one turn of a longer episode.
            metrics.update(turn_metrics(*(step.ledger.light for step, _ in updates)))
            metrics.update(counted([found for _, found in updates]))
        metrics.update(self._end_store([step for step, _ in updates]))
        step = self.global_steps
        phase = self.schedule.phase(step).name
        self._phases.add(phase)
        metrics.update(phase_metrics(phase, self._phases))
        if self._curriculum is not None:
            metrics["hier/schedule/horizon"] = float(self._curriculum.longest(step))
        self.schedule.observe(step, metrics)
        self.host.hook.hier_step_end(step=step, metrics=metrics)

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def _save_checkpoint(self) -> None:
        """Write our state before verl's, whose tracker file makes a checkpoint valid and is written last."""
        config = self.config.trainer
        folder = Path(config.default_local_dir) / f"global_step_{self.global_steps}"
        with told_when_full(folder):
            folder.mkdir(parents=True, exist_ok=True)
            schedule = self.parts.schedule.spec.name
            write_state(folder, schedule, self.schedule.state_dict(), self._critic_heads, self._learns_beside)
            for extension in self.extensions:
                extension.save(folder)
            super()._save_checkpoint()
            mark_whole(folder)
        self._saved = self.global_steps

    def on_train_end(self) -> None:
        """Save after the last step, where the epochs end before `total_training_steps`; verl only does it there."""
        super().on_train_end()
        # verl has counted on to the step that follows.
        self.global_steps -= 1
        if self.config.trainer.save_freq > 0 and self._saved != self.global_steps:
            self._save_checkpoint()

    @property
    def _critic_heads(self) -> list[str]:
        """Names of the critic's heads, in order; none for verl's own critic."""
        return [head for extension in self.extensions for head in extension.heads]

    @property
    def _learns_beside(self) -> dict[str, str]:
        """Policies that learn beside verl's own, and how."""
        return {} if self._policies is None else self._policies.learns_beside

    def _load_checkpoint(self) -> None:
        """Refuse a checkpoint of another recipe before verl loads it."""
        checkpoint = checkpoint_of(self.config.trainer)
        if checkpoint is not None:
            schedule = self.parts.schedule.spec.name
            state = read_state(checkpoint, schedule, self._critic_heads, self._learns_beside)
        for extension in self.extensions:
            extension.build()
        super()._load_checkpoint()
        self._saved = self.global_steps
        if checkpoint is not None:
            for extension in self.extensions:
                extension.load(checkpoint)
            self.schedule.load_state_dict(state)


class HierSync(HierTrainerMixin, PPOTrainerSync):
    """verl's `sync` trainer with our rows and credit."""

    base_mode = "sync"

    def _client_of(self, servers: Any) -> Any:
        handles = servers.server_handles
        if len(handles) > 1:
            return servers.get_client()
        return servers.get_client(client_cls=SingleServerClient, server=handles[0])


class HierColocateAsync(HierTrainerMixin, PPOTrainerColocateAsync):
    """verl's `colocate_async` trainer with our rows and credit."""

    base_mode = "colocate_async"


class HierSeparateAsync(HierTrainerMixin, PPOTrainerSeparateAsync):
    """verl's `separate_async` trainer with our rows and credit."""

    base_mode = "separate_async"

    @property
    def _servers(self) -> Any:
        return self.standalone_server_manager


TRAINERS = {"hier_sync": HierSync, "hier_colocate_async": HierColocateAsync, "hier_separate_async": HierSeparateAsync}


def register() -> None:
    """Put our trainers into verl's registry. Idempotent."""
    for name, trainer in TRAINERS.items():
        register_trainer(name)(trainer)


__all__ = ["TRAINERS", "HierTrainerMixin", "register"]
