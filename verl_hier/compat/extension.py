"""What learns, or is asked, beside verl's actor: the one place at which our trainers let further parts in.

A trainer builds its extensions once, and calls them in the order in which plugins name them, wherever a start, a
step or a checkpoint has room for them. An extension overrides the calls that it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import transfer_queue as tq
from numpy.typing import NDArray
from tensordict import TensorDict

from verl_hier.training.probes import Asked
from verl_hier.training.step import TrainingStep

OF_VALUES = ("critic/values/", "critic/vf_explained_var")
"""What verl's metrics call the values of a critic."""


class TrainerExtension:
    """One part that learns or is asked beside verl's actor, for the whole run and in the trainer's process.

    Attributes:
        trainer: the trainer, whose configuration, worker groups and recipe the extension reads.
        heads: names of the outputs of the critic, in order, which a resumed run must have too; none for verl's own.
        critic_update: how the critic learns in a step: in mini-batches and epochs as the recipe says, in `one`
            optimiser step, or by `itself` before the step is credited.
    """

    heads: Sequence[str] = ()
    critic_update: Literal["mini-batches", "one", "itself"] = "mini-batches"

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def choose_workers(self) -> None:
        """Replace classes in the trainer's `role_worker_mapping`, which verl has filled."""

    def actor_worker(self, worker: type) -> type:
        """The class of the actor's workers, made of the one that verl and the extensions before this one want.

        Args:
            worker: verl's `ActorRolloutRefWorker` or a class that is made of it.
        """
        return worker

    def prepare(self) -> None:
        """Make what has to exist before verl's workers do."""

    def build(self) -> None:
        """Start what stands beside verl's workers, which exist by now; the checkpoint of a resumed run is read next."""

    def begin(self) -> None:
        """Give verl's workers what they need; they exist, and have loaded the checkpoint of a resumed run."""

    def values(self, batch: Any) -> bool:
        """Write the fields of a critic for a padded batch to TransferQueue, `values` among them.

        Returns:
            whether it has; otherwise verl asks its own critic.
        """
        return False

    def before_credit(self, batch: Any, step: TrainingStep, metrics: dict[str, Any]) -> Sequence[Asked]:
        """Learn from a step before it is credited, add columns to its turn table, or ask the actor about it.

        Args:
            batch: rows of the step, padded and balanced.
            step: its rows and turn table.
            metrics: to which those of the extension are added.

        Returns:
            probes with their answers.
        """
        return ()

    def after_credit(
        self, batch: Any, step: TrainingStep, fields: dict[str, list[NDArray[Any]]], metrics: dict[str, Any]
    ) -> None:
        """Change the token fields that verl's update reads, such as `advantages`.

        Args:
            batch: rows of the step, padded and balanced.
            step: its rows and turn table, credited.
            fields: what `train_step` returns.
            metrics: to which those of the extension are added.
        """

    def after_update(self, batch: Any, step: TrainingStep, metrics: dict[str, Any]) -> None:
        """Train the actor on something else than the step, or keep some of it; verl has updated the actor.

        Args:
            batch: rows of the step, with the request of the update in `extra_info`.
            step: its rows and turn table, credited.
            metrics: to which those of the extension are added.
        """

    @property
    def server_managers(self) -> list[Any]:
        """Managers of rollout servers beside verl's own."""
        return []

    def report(self, metrics: dict[str, Any]) -> None:
        """Change the metrics of a step that verl has made."""

    def save(self, checkpoint: Path) -> None:
        """Write what the extension needs in a resumed run into the folder `global_step_N`, before verl writes its own
        part."""

    def load(self, checkpoint: Path) -> None:
        """Read it back, after verl has read its own part.

        Raises:
            RecipeError: when the recipe has something else than the run that wrote the checkpoint.
            FileError: when a file is damaged.
        """


def jagged(rows: Iterable[torch.Tensor]) -> torch.Tensor:
    """Rows of different lengths as one nested tensor, as verl keeps them."""
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def put_values(batch: Any, fields: dict[str, torch.Tensor]) -> None:
    """Write fields of each row of a batch, nested with one number a token of the response, to TransferQueue."""
    found = TensorDict(fields, batch_size=len(batch))
    tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=found)


def without_values(metrics: dict[str, Any]) -> None:
    """Remove verl's metrics of the values of a critic, of which there are none."""
    for name in [name for name in metrics if name.startswith(OF_VALUES)]:
        del metrics[name]
