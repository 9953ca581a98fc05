"""What is stored of a step: the rollout workers write it while the trainer goes on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from verl_hier.graph.columnar.held import Written
from verl_hier.recipe.schema import HierConfig
from verl_hier.training.step import TrainingStep
from verl_hier.training.store import StepInStore, Writer, drawn


class StoreMixin:
    """The steps of a trainer in the store of its recipe (`hier.store`)."""

    hier: HierConfig
    global_steps: int
    _writers: list[Writer]
    _in_store: StepInStore | None = None

    def _write_by(self, workers: Iterable[Any]) -> None:
        """Let these rollout workers (`HierAgentLoopWorker`) write."""
        self._writers = [partial(_future, worker.store_rollouts) for worker in workers]

    def _begin_store(self, done: Mapping[str, Mapping[str, Any]], *, again: bool) -> None:
        """Let the rollout workers begin to write the step, where the recipe wants it.

        Args:
            done: tags of the tasks that the step is done with, by their uids.
            again: whether these are of a further update of the same step, whose tasks add to those before.
        """
        store, step = self.hier.store, self.global_steps
        if store.path is None:
            return
        chosen = {
            uid: step % store.every == 0 and (store.share == 1 or drawn(tag["index"], step) < store.share)
            for uid, tag in done.items()
        }
        if again and self._in_store is not None:
            self._in_store.add(chosen, self._writers)
            return
        started = StepInStore.begin(store.path, step, chosen, self._writers)
        if step % store.every == 0:
            self._in_store = started

    def _end_store(self, updates: Sequence[TrainingStep]) -> dict[str, float]:
        """Wait until the step is written, and add the credit of its updates; returns metrics of it."""
        if self._in_store is None:
            return {}
        writing, self._in_store = self._in_store, None
        credit = {uid: explained for step in updates for uid, explained in step.credit.items()}
        return writing.finish(credit, self.hier.store.max_gib)

    def _store_validation(self, uids: Sequence[str]) -> None:
        """Write the rollouts of a validation, where the recipe wants them."""
        store = self.hier.store
        if store.path is not None and store.validation:
            folder = os.path.join(store.path, "validation")
            StepInStore.begin(folder, self.global_steps, dict.fromkeys(uids, True), self._writers).finish({})


def _future(method: Any, *args: Any) -> Future[Written]:
    """A call of an actor's method as a future."""
    found: Future[Written] = method.remote(*args).future()
    return found


__all__ = ["StoreMixin"]
