"""Rollouts that wait in a rollout worker for the step that trains them, and are written there."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from verl_hier.errors import first_line, refusal
from verl_hier.graph.columnar.encode import Whole, encode_whole, uid_of
from verl_hier.graph.columnar.writing import write_tasks
from verl_hier.graph.nodes import RolloutGraph
from verl_hier.graph.steps import step_folder

Edit = Callable[[RolloutGraph], object]


@dataclass(frozen=True)
class Written:
    """What a worker has written of a step.

    Attributes:
        tasks: how many tasks.
        problem: a sentence on why the others are missing, None when it held no others.
    """

    tasks: int
    problem: str | None = None


class HeldRollouts:
    """Rollouts in columns, by the uid of their task. It is used in one thread, which is not that of an event loop."""

    def __init__(self) -> None:
        self._tasks: dict[str, Whole | str] = {}

    def keep(self, graph: RolloutGraph, edit: Edit | None = None) -> None:
        """Hold a rollout until it is written or forgotten.

        Args:
            graph: of one task; it must not change meanwhile.
            edit: may change a copy of the graph, which is held in place of it.
        """
        uid = uid_of(graph)
        if edit is not None:
            graph = pickle.loads(pickle.dumps(graph))
            edit(graph)
        try:
            self._tasks[uid] = encode_whole([graph])
        except (TypeError, ValueError, OverflowError) as error:  # a plugin left something in `extra` or `decision`
            self._tasks[uid] = first_line(error)

    def write(self, store: str, step: int, tasks: Mapping[str, bool], writer: str) -> Written:
        """Write some of the rollouts that are held, and hold neither them nor those that are not to be written.

        Args:
            store: folder of the steps.
            step: trainer step that trained them.
            tasks: uid to whether the task is written; those that are not held here are left to other workers.
            writer: part of the names of the files; no other writer of the step has it.
        """
        held = {uid: self._tasks.pop(uid) for uid in sorted(tasks) if uid in self._tasks}
        chosen = [task for uid, task in held.items() if tasks[uid]]
        whole = [task for task in chosen if isinstance(task, Whole)]
        reasons = [task for task in chosen if isinstance(task, str)]
        folder = step_folder(store, step)
        try:
            count = write_tasks(folder, step, whole, writer)
        except OSError as error:
            count, reasons = 0, [refusal(error), *reasons]
        return Written(count, f"cannot write rollout graphs to {folder}: {reasons[0]}." if reasons else None)
