"""`hier_tree_sync`: verl's own synchronous trainer, for recipes that name nothing of ours but the tree engine."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, open_dict
from verl.trainer.ppo.v1 import PPOTrainerSync, register_trainer

from verl_hier.compat.updates import groups_of, ranks_of, workloads_of
from verl_hier.training.mini_batches import whole_groups

NAME = "hier_tree_sync"


class TreeSync(PPOTrainerSync):
    """verl's trainer, whose batches are shared out among the ranks by whole groups of answers."""

    def __init__(self, config: DictConfig) -> None:
        # verl compares the mode with the names of its own three trainers in several places.
        with open_dict(config):
            config.trainer.v1.trainer_mode = "sync"
        super().__init__(config)

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Pad as verl does; then each rank gets equally many rows, and a group goes to one rank where it fits."""
        padded = super()._balance_batch(batch, metrics, *args, **kwargs)
        shares = whole_groups(groups_of(padded), workloads_of(padded).tolist(), ranks_of(self.actor_rollout_wg))
        padded.reorder([row for share in shares for row in share])
        return padded


def register() -> None:
    """Put the trainer into verl's registry. Idempotent."""
    register_trainer(NAME)(TreeSync)
