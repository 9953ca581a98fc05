"""Tasks of the asynchronous trainers in the order of their launch (`hier.launch_order`), and how long they took.

verl's replay buffer knows the step in which a task was launched and not its place among the tasks of that step, and the
first tasks of a run, which are sampled ahead, all have one step. So the trainer numbers them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import transfer_queue as tq
from omegaconf import open_dict
from tensordict import TensorDict
from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync
from verl.utils import tensordict_utils as tu

from verl_hier.compat.queue import SECONDS, TRAIN, tags_of
from verl_hier.recipe.schema import HierConfig
from verl_hier.training.launches import Durations, LaunchOrder

if TYPE_CHECKING:
    from verl.trainer.ppo.v1 import PPOTrainer as _Base
else:
    _Base = object

NUMBER = "launch"
"""Tag of a task: how many were launched before it. A checkpoint of the queue keeps it."""


class LaunchBuffer(ReplayBufferAsync):
    """verl's asynchronous replay buffer, which knows the order of the launches.

    Attributes:
        order: counts who overtakes whom, and decides what is taken where it is finite.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.order = LaunchOrder()
        self._durations = Durations()
        self._numbers: dict[str, int] = {}
        self._launched: dict[str, float] = {}
        self._next = -1
        self._step = 0
        self._enough_since: float | None = None
        self._metrics: dict[str, float] = {}

    def launch(self, uids: Sequence[str]) -> None:
        """Number tasks that will be launched. Nobody else may write their tags at the same time."""
        if self._next < 0:
            self._restore()
        numbers = range(self._next, self._next + len(uids))
        self._next += len(uids)
        tq.kv_batch_put(keys=list(uids), partition_id=TRAIN, tags=[{NUMBER: number} for number in numbers])
        self._numbers.update(zip(uids, numbers, strict=True))
        self._launched.update(dict.fromkeys(uids, time.monotonic()))

    def _restore(self) -> None:
        """Read the numbers of a checkpoint; tasks of a run that had none come first, by their steps."""
        tags = {uid: tag for uid, tag in tags_of(TRAIN).items() if tag.get("is_prompt")}
        self._numbers = {uid: int(tag[NUMBER]) for uid, tag in tags.items() if NUMBER in tag}
        self._next = max(self._numbers.values(), default=-1) + 1
        others = sorted(tags.keys() - self._numbers.keys(), key=lambda uid: (tags[uid]["global_steps"], uid))
        self._numbers.update(zip(others, range(-len(others), 0), strict=True))
        self._launched = dict.fromkeys(tags, time.monotonic())

    def _numbers_of(self, uids: Iterable[str]) -> list[int]:
        return [self._numbers[uid] for uid in uids]

    @property
    def _under_way(self) -> set[str]:
        found: set[str] = self.pending_keys[TRAIN] | self.running_keys[TRAIN]
        return found

    def _has_enough_samples(
        self, global_steps: int, partition_id: str, batch_size: int, sampleable_keys: set[str]
    ) -> bool:
        """As verl's; with an order also whether nobody would be overtaken by too many."""
        enough = bool(super()._has_enough_samples(global_steps, partition_id, batch_size, sampleable_keys))
        if partition_id != TRAIN or math.isinf(self.order.most) or not enough:
            return enough
        if self._enough_since is None:
            self._enough_since = time.monotonic()
        finished, under_way = self._numbers_of(sampleable_keys), self._numbers_of(self._under_way)
        return self.order.choose(finished, under_way, batch_size) is not None

    def _select_prompt_uids(
        self, partition_id: str, sampleable_keys: set[str], batch_size: int
    ) -> tuple[list[str], dict[str, dict[str, Any]], dict[str, int]]:
        """As verl's, which sorts by the step of the launch; with an order by the launch itself."""
        chosen, rows, steps = super()._select_prompt_uids(partition_id, sampleable_keys, batch_size)
        if partition_id == TRAIN:
            if not math.isinf(self.order.most):
                chosen = sorted(sampleable_keys, key=self._numbers.__getitem__)[:batch_size]
            self._metrics = self._taken(chosen, steps)
        return chosen, rows, steps

    def _taken(self, chosen: Sequence[str], steps: dict[str, int]) -> dict[str, float]:
        """Note what is trained now, and measure it."""
        seconds = self._seconds(self._numbers)
        later = [self._step - steps[uid] for uid in chosen]
        overtaken = self.order.take(self._numbers_of(chosen), self._numbers_of(self._under_way))
        found = {
            "hier/durations/steps_mean": sum(later) / len(later),
            "hier/durations/steps_max": float(max(later)),
            "hier/durations/overtaken_max": float(overtaken),
        }
        if self._enough_since is not None:
            found["hier/durations/waited_total_s"] = time.monotonic() - self._enough_since
            self._enough_since = None
        self._forget(chosen)
        under_way = self._under_way & self._numbers.keys()
        left = (self._numbers.keys() - under_way, under_way)
        return found | self._durations.metrics(*([seconds[uid] for uid in uids] for uids in (chosen, *left)))

    def _seconds(self, uids: Iterable[str]) -> dict[str, float]:
        """Seconds of tasks; so far, of those under way."""
        tags, now = tags_of(TRAIN), time.monotonic()
        return {uid: float(tags.get(uid, {}).get(SECONDS, now - self._launched[uid])) for uid in uids}

    def _forget(self, uids: Iterable[str]) -> None:
        for uid in uids:
            del self._numbers[uid], self._launched[uid]

    def _clear_groups(self, partition_id: str, uids: set[str]) -> None:
        """As verl's, which drops tasks by it."""
        if partition_id == TRAIN and uids:
            self._durations.drop(self._seconds(uids).values())
            self.order.drop(self._numbers_of(uids))
            self._forget(uids)
        super()._clear_groups(partition_id, uids)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """As verl's, with the metrics of what is trained."""
        self._step, self._metrics = global_steps, {}
        batch, metrics = super().sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)
        return batch, {**metrics, **self._metrics}


class LaunchMixin(_Base):
    """The seams of verl's trainer that launch tasks, in the asynchronous trainers; see `HierTrainerMixin`."""

    hier: HierConfig
    replay_buffer: Any

    def _build_replay_buffer(self) -> Any:
        sampler = self.config.trainer.v1.sampler
        if self.trainer_mode == "sync" or (sampler.get("custom_sampler") or {}).get("name"):
            return super()._build_replay_buffer()
        with open_dict(self.config):
            sampler.custom_sampler = {"path": f"pkg://{__name__}", "name": LaunchBuffer.__name__}
        buffer = super()._build_replay_buffer()
        # verl leaves this to samplers that are not its own.
        buffer.filter_groups_metric = self._resolve_filter_groups_metric()
        if self.hier.launch_order is not None:
            buffer.order.most = self.hier.launch_order.late_steps * self.config.data.train_batch_size
        return buffer

    def _submit_batch_to_rollout(self, batch: TensorDict) -> int:
        if isinstance(self.replay_buffer, LaunchBuffer):
            self.replay_buffer.launch([str(uid) for uid in tu.get(batch, "uid")])
        return int(super()._submit_batch_to_rollout(batch))
