"""Which tasks a step samples and trains: their phase, the curriculum, and the exchange of those without a signal.

For the exchange verl's replay buffer waits for the tasks of the step, and the trainer draws further ones while the
others are still under way. verl's own `algorithm.filter_groups` has no limit, draws two tasks for one, and discards
what is too much (verl/trainer/ppo/v1/replay_buffer.py).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import transfer_queue as tq
from omegaconf import open_dict
from tensordict import TensorDict
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils import tensordict_utils as tu

from verl_hier.compat.dataset import TASK_FIELDS, NumberedRows
from verl_hier.compat.launches import LaunchMixin
from verl_hier.compat.liveness import Liveness
from verl_hier.compat.queue import TRAIN
from verl_hier.recipe.checks.updates import without_refill
from verl_hier.training.curriculum import Curriculum
from verl_hier.training.refill import Group, StepTasks
from verl_hier.training.schedule import Schedule

Settle = Callable[[int], tuple[int, dict[str, float]]]


class RefillBuffer(ReplayBuffer):
    """verl's replay buffer, which lets the trainer settle the tasks of a step before it samples them.

    Attributes:
        settle: called with the number of tasks that the step wants; waits until none is under way, removes those that
            are not trained, and returns how many are left and the metrics of it.
    """

    settle: Settle

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """As verl's; of the training partition all tasks that are left."""
        found: dict[str, float] = {}
        if partition_id == TRAIN:
            batch_size, found = self.settle(batch_size)
        batch, metrics = super().sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)
        return batch, {**metrics, **found}


class _Telling:
    """The batches of a validation, with what the schedule tells their tasks; see `Schedule.told_in_evaluation`."""

    def __init__(self, batches: Iterable[dict[str, Any]], schedule: Schedule) -> None:
        self._batches = batches
        self._schedule = schedule

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self._batches:
            told = self._schedule.told_in_evaluation([int(number) for number in batch["index"]])
            yield {**batch, "hier_told": np.array([json.dumps(each) for each in told], object)} if told else batch


class TaskMixin(LaunchMixin):
    """The seams of verl's trainer that draw and sample tasks; see `HierTrainerMixin`."""

    schedule: Schedule
    val_dataloader: Any
    _curriculum: Curriculum | None = None
    _drawn: dict[str, int]
    """uid of each task of the step to its number in the data set, in the order in which they were drawn."""

    @property
    def train_dataset(self) -> Any:
        """The data set of the training tasks, with numbered rows, whatever class the recipe names."""
        return self._train_dataset

    @train_dataset.setter
    def train_dataset(self, rows: Any) -> None:
        self._train_dataset = NumberedRows.of(rows)

    @property
    def val_dataset(self) -> Any:
        """The data set of the validation, with numbered rows."""
        return self._val_dataset

    @val_dataset.setter
    def val_dataset(self, rows: Any) -> None:
        self._val_dataset = NumberedRows.of(rows)

    def _build_replay_buffer(self) -> Any:
        self._drawn = {}
        if self.hier.refill is not None:
            if self.trainer_mode != "sync":
                raise without_refill(f"hier_{self.trainer_mode}")
            with open_dict(self.config):
                self.config.trainer.v1.sampler.custom_sampler = {"path": f"pkg://{__name__}", "name": "RefillBuffer"}
                # Further tasks are drawn one by one.
                self.config.data.gen_batch_size = 1
        buffer = super()._build_replay_buffer()
        buffer.poll_interval = self.hier.poll_interval_s
        if self.hier.refill is not None:
            buffer.settle = self._settle
        return buffer

    def _watch(self, liveness: Liveness) -> None:
        """Look whether all are alive whenever the trainer waits for the tasks of a step."""
        wait = self.replay_buffer._wait_for_next_poll

        def watched(partition_id: str, last_debug_time: float) -> float:
            liveness.check()
            return float(wait(partition_id, last_debug_time))

        self.replay_buffer._wait_for_next_poll = watched

    # ---- drawing -----------------------------------------------------------------------------------------------------

    def prepare_step(self) -> dict[str, Any]:
        self._drawn.clear()
        metrics: dict[str, Any] = super().prepare_step()
        return metrics

    def _fetch_one_gen_batch(self) -> TensorDict:
        batch = super()._fetch_one_gen_batch()
        if self.hier.refill is None:
            return batch
        # The same task twice in a step would be the same rollout twice.
        while places_of(batch)[0] in self._drawn.values():
            batch = super()._fetch_one_gen_batch()
        self._note(batch)
        return batch

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        batch = super()._next_train_batch(num_prompts)
        if self.hier.curriculum.horizons:
            self._exchange_for_shorter(batch)
        phase = json.dumps(self.schedule.phase(self.global_steps).to_dict())
        tu.assign_non_tensor_data(batch, "hier_phase", phase)
        n = self.config.actor_rollout_ref.rollout.n
        counts = self.schedule.episodes(self.global_steps, places_of(batch), n)
        if counts:
            tu.assign_non_tensor_stack(batch, "hier_n", counts)
        told = self.schedule.told(self.global_steps, places_of(batch))
        if told:
            tu.assign_non_tensor_stack(batch, "hier_told", [json.dumps(each) for each in told])
        return batch

    def _validate(self) -> dict[str, float]:
        """Tell the tasks of a validation what the schedule has to say to them."""
        loader, self.val_dataloader = self.val_dataloader, _Telling(self.val_dataloader, self.schedule)
        try:
            figures: dict[str, float] = super()._validate()
        finally:
            self.val_dataloader = loader
        return figures

    def _exchange_for_shorter(self, batch: TensorDict) -> None:
        """Replace the tasks of the batch that are too long for the present stage of the curriculum."""
        if self._curriculum is None:
            self._curriculum = Curriculum(self.hier.curriculum, self.train_dataset.tasks)
        here = set(tu.get(batch, "uid", []))
        used = {place for uid, place in self._drawn.items() if uid not in here}
        places = self._curriculum.admit(self.global_steps, places_of(batch), used)
        items = [self.train_dataset[place] for place in places]
        for name in TASK_FIELDS:
            tu.assign_non_tensor_stack(batch, name, [item[name] for item in items])
        if self.hier.refill is not None:
            self._note(batch)

    def _note(self, batch: TensorDict) -> None:
        uids = [str(uid) for uid in tu.get(batch, "uid")]
        self._drawn.update(zip(uids, places_of(batch), strict=True))

    # ---- exchanging tasks without a signal ---------------------------------------------------------------------------

    def _settle(self, tasks: int) -> tuple[int, dict[str, float]]:
        """Exchange tasks until the step has those that it trains, and remove all others from the queue.

        Args:
            tasks: that the step wants.

        Returns:
            how many it trains; its metrics.
        """
        assert self.hier.refill is not None
        available = len(self.train_dataset)
        if self._curriculum is not None:
            available = self._curriculum.admitted(self.global_steps)
        step, buffer, looked = StepTasks(self.hier.refill, tasks, available), self.replay_buffer, time.time()
        while True:
            buffer._sync_metadata_from_transfer_queue()
            finished, failed = buffer.finished_keys[TRAIN], buffer.failure_keys[TRAIN]
            self._look_at(step, finished)
            # A task fails by a fault that ends the run.
            for _ in range(0 if failed else step.missing(len(self._drawn))):
                self._add_prompts_to_generate(1)
            if self._drawn.keys() <= finished | failed:
                break
            looked = buffer._wait_for_next_poll(TRAIN, looked)
        if failed:
            return len(self._drawn), {}
        drawn = list(self._drawn)
        kept = step.choose(drawn)
        dropped = set(drawn) - set(kept)
        buffer._clear_groups(TRAIN, dropped)
        return len(kept), step.metrics(drawn, kept)

    def _look_at(self, step: StepTasks, finished: set[str]) -> None:
        """Tell the step of the tasks that have been finished since the last time."""
        new = [task for task in self._drawn if task in finished and task not in step]
        if new:
            tags = tq.kv_list(TRAIN)[TRAIN]
            for task in new:
                step.finish(task, Group(**tags[task]["group"]))


def places_of(batch: TensorDict) -> list[int]:
    """The place of each task in the data set."""
    return [int(place) for place in tu.get(batch, "index")]
