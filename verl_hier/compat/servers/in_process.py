"""The CPU rollout server in this process, without Ray: a saved model as the policy of a rollout."""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

from verl_hier.compat.servers.policy import ServerPolicy
from verl_hier.errors import RecipeError
from verl_hier.rollout.policy import saved_in

_NAME = "transformers"
_OPEN = 4
"""Saved models that stay in memory."""
_SMALL_BYTES = 64 * 1024**2
"""Weights below this are computed by one thread: more would only wait for each other."""


class _Client:
    """verl's client of rollout servers, for a server in the same event loop."""

    def __init__(self, server: Any) -> None:
        self._server = server

    async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        return await self._server.generate(prompt_ids, sampling_params, request_id)


def in_process_policy(config: Any, model: str | os.PathLike[str]) -> ServerPolicy:
    """A policy that generates with a transformers model on this machine's CPU, as training on a CPU does.

    Args:
        config: the whole composed verl configuration; lengths, data type and options of the server are its own.
        model: folder or Hugging Face name of the model.

    Raises:
        RecipeError: when the model cannot be loaded or served.
    """
    from verl.workers.config import HFModelConfig, RolloutConfig

    from verl_hier.runtime_cpu.server import TransformersServer

    rollout, trust = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model.get("trust_remote_code", False)
    options = dict((rollout.engine_kwargs or {}).get(_NAME) or {}) if rollout.name == _NAME else {}
    options["num_threads"] = _threads(Path(model))
    try:
        settings = RolloutConfig(
            name=_NAME,
            dtype=rollout.dtype,
            tensor_model_parallel_size=1,
            prompt_length=rollout.prompt_length,
            response_length=rollout.response_length,
            max_num_seqs=min(rollout.max_num_seqs, 128),
            engine_kwargs={_NAME: options},
        )
        served = HFModelConfig(
            path=str(model),
            trust_remote_code=bool(trust),
            override_config={"attn_implementation": "sdpa"},
            use_remove_padding=False,
        )
        return ServerPolicy(_Client(TransformersServer(settings, served, replica_rank=0)), _NAME)
    except (OSError, ValueError, AssertionError) as error:  # verl asserts that config.json names one architecture
        said = str(error).strip() or type(error).__name__
        raise RecipeError(f"the model {model} cannot be loaded: {said.splitlines()[0]}") from error


class SavedPolicies:
    """Saved models as further policies of a rollout, such as past checkpoints: those that were used last stay open.

    Args:
        config: the whole composed verl configuration.
    """

    def __init__(self, config: Any) -> None:
        self._config = config
        self._open: OrderedDict[str, ServerPolicy] = OrderedDict()

    def __call__(self, name: str) -> ServerPolicy | None:
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
            self._open[name] = in_process_policy(self._config, folder)
        self._open.move_to_end(name)
        while len(self._open) > _OPEN:
            self._open.popitem(last=False)
        return self._open[name]


def _threads(folder: Path) -> int:
    """Threads of one forward pass."""
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors")) if folder.is_dir() else _SMALL_BYTES
    return 1 if size < _SMALL_BYTES else os.cpu_count() or 1
