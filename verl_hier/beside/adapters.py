"""verl's worker of the actor with an adapter for each policy on one base model, served merged."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from verl.single_controller.base.decorator import Dispatch, register
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass

from verl_hier.compat.policies import ADAPTER, with_lines
from verl_hier.compat.servers.numbered import numbered_rollout, replicas_of
from verl_hier.engines.adapters import BASE, Adapters

Lines = Mapping[str, Mapping[str, Any]]
"""The lines of `actor_rollout_ref` that each policy beside verl's own has for itself."""


def worker_with_adapters(base: Any, lines: Lines, seed: int | None, apart: bool = False) -> type:
    """`base`, verl's worker of the actor (verl/workers/engine_workers.py), whose model has `lora_rank`.

    Args:
        base: the worker.
        lines: of each policy beside verl's own; none for a run with one adapter, whose checkpoints then hold a model
            that transformers loads.
        seed: draws the first weights of all adapters.
        apart: the servers of verl's own policy keep every adapter by its name; else each policy has servers of its own,
            which get its adapter merged.
    """

    class ActorWithAdapters(base.actor_worker_cls):  # type: ignore[misc]
        """verl's `TrainingWorker` of the actor: each request says which adapter it is for."""

        def __init__(self, config: Any, actors: Mapping[str, Any]) -> None:
            super().__init__(config)
            self._actors = actors
            self._losses: dict[str, Any] = {}
            optimisers = {name: actor.optim for name, actor in actors.items()}
            self.adapters = Adapters(self.engine, optimisers, seed, apart)

        def reset(self) -> None:
            super().reset()
            self.adapters.begin()

        def set_loss_fn(self, loss_fn: Any) -> None:
            super().set_loss_fn(loss_fn)
            self._losses = {name: partial(loss_fn, config=actor) for name, actor in self._actors.items()}
            self._losses[BASE] = loss_fn

        def use(self, name: str) -> None:
            self.adapters.activate(name)
            self.loss_fn = self._losses[name]

        def train_mini_batch(self, data: Any) -> Any:
            self.use(tu.pop(data, key=ADAPTER, default=BASE))
            return super().train_mini_batch(data)

        def infer_batch(self, data: Any) -> Any:
            self.use(tu.pop(data, key=ADAPTER, default=BASE))
            return super().infer_batch(data)

        def save_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> None:
            with self.adapters.alone():
                super().save_checkpoint(local_path, *args, **kwargs)
            self.adapters.finish(Path(local_path))

        def load_checkpoint(self, *args: Any, **kwargs: Any) -> None:
            with self.adapters.alone():
                super().load_checkpoint(*args, **kwargs)

    class WorkerWithAdapters(base):  # type: ignore[misc]
        """verl's `ActorRolloutRefWorker`, with the rollout servers of every policy."""

        rollout: Any
        base_sync_done: bool

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def init_model(self) -> None:
            actors = {name: omega_conf_to_dataclass(with_lines(self.config, lines[name]).actor) for name in lines}
            self.actor_worker_cls = partial(ActorWithAdapters, actors=actors)
            super().init_model()
            model = self.actor.model_config
            for actor in actors.values():
                actor.model_config = model
            rollout, size = self.rollout, replicas_of(self.config.rollout, self.world_size)
            self._rollouts = {BASE: rollout}
            for place, name in enumerate(lines, 1):
                config = with_lines(self.config, lines[name], 0 if apart else place * size, name).rollout
                self._rollouts[name] = numbered_rollout(rollout, config, self.rank)
            # Servers that keep adapters have loaded what these stand on, which never changes.
            self.base_sync_done = self.base_sync_done or apart

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def use_policy(self, name: str) -> None:
            """Save or load this policy's adapter from now on."""
            self.actor.use(name)

        @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
        async def update_weights(self, global_steps: int | None = None, mode: str = "auto") -> Any:
            """As verl's, with the weights of each policy to its own servers, verl's own last."""
            for name in reversed(self._rollouts):
                self.actor.use(name)
                self.rollout = self._rollouts[name]
                metrics = await super().update_weights(global_steps=global_steps, mode=mode)
            return metrics

    WorkerWithAdapters.__name__ = base.__name__
    return WorkerWithAdapters
