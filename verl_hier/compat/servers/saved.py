"""Saved models in the process of a rollout worker, beside the policy that learns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from verl_hier.errors import RecipeError
from verl_hier.rollout import Policy
from verl_hier.rollout.policy import saved_in

_OPEN = 4
"""Saved models that stay in memory."""


class SavedPolicies:
    """Saved models as further policies of a rollout, such as past checkpoints: those that were used last stay open.

    Args:
        load: loads the model of a folder.
    """

    def __init__(self, load: Callable[[str], Policy]) -> None:
        self._load = load
        self._open: OrderedDict[str, Policy] = OrderedDict()

    def __call__(self, name: str) -> Policy | None:
        """The policy of `rollout.policy.saved`, None for any other name.

        Raises:
            RecipeError: when the model cannot be loaded.
        """
        folder = saved_in(name)
        if folder is None:
            return None
        if name not in self._open:
            if not Path(folder).is_dir():
                raise RecipeError(
                    f"trainer.max_actor_ckpt_to_keep: the checkpoint in {folder} is gone, and an episode plays against "
                    "it; keep more checkpoints, and where there are several nodes keep them on a disk that all reach."
                )
            self._open[name] = self._load(folder)
        self._open.move_to_end(name)
        while len(self._open) > _OPEN:
            self._open.popitem(last=False)
        return self._open[name]
