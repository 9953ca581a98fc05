"""The CPU rollout server in this process, without Ray: a saved model as the policy of a rollout."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from verl_hier.errors import RecipeError
from verl_hier.host.specs import RolloutServerSpec
from verl_hier.runtime_cpu.options import ROLLOUT_NAME
from verl_hier.served.rollout_server import ServerPolicy

_SMALL_BYTES = 64 * 1024**2
"""Weights below this are computed by one thread: more would only wait for each other."""


class _Client:
    """verl's client of rollout servers, for a server in the same event loop."""

    def __init__(self, server: Any) -> None:
        self._server = server

    async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        return await self._server.generate(prompt_ids, sampling_params, request_id)


def in_process_policy(spec: RolloutServerSpec, config: Any, model: str | os.PathLike[str]) -> ServerPolicy:
    """A policy that generates with a transformers model on this machine's CPU, as training on a CPU does.

    Args:
        spec: what the server can do.
        config: the whole composed verl configuration; lengths, data type and options of the server are its own.
        model: folder or Hugging Face name of the model.

    Raises:
        RecipeError: when the model cannot be loaded or served.
    """
    from verl.workers.config import HFModelConfig, RolloutConfig

    from verl_hier.runtime_cpu.server import TransformersServer

    rollout, trust = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model.get("trust_remote_code", False)
    options = dict((rollout.engine_kwargs or {}).get(ROLLOUT_NAME) or {}) if rollout.name == ROLLOUT_NAME else {}
    options["num_threads"] = _threads(Path(model))
    try:
        settings = RolloutConfig(
            name=ROLLOUT_NAME,
            dtype=rollout.dtype,
            tensor_model_parallel_size=1,
            prompt_length=rollout.prompt_length,
            response_length=rollout.response_length,
            max_num_seqs=min(rollout.max_num_seqs, 128),
            engine_kwargs={ROLLOUT_NAME: options},
        )
        served = HFModelConfig(
            path=str(model),
            trust_remote_code=bool(trust),
            override_config={"attn_implementation": "sdpa"},
            use_remove_padding=False,
        )
        return ServerPolicy(_Client(TransformersServer(settings, served, replica_rank=0)), spec)
    except (OSError, ValueError, AssertionError) as error:  # verl asserts that config.json names one architecture
        said = str(error).strip() or type(error).__name__
        raise RecipeError(f"the model {model} cannot be loaded: {said.splitlines()[0]}") from error


def _threads(folder: Path) -> int:
    """Threads of one forward pass."""
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors")) if folder.is_dir() else _SMALL_BYTES
    return 1 if size < _SMALL_BYTES else os.cpu_count() or 1
