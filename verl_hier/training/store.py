"""The store of a run, as its trainer sees it: rollout workers write the rollouts of a step, and the trainer its credit.

The workers write while the step goes on. The credit comes last and marks the step as whole.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from verl_hier.errors import GraphError, refusal
from verl_hier.graph.columnar.held import Written
from verl_hier.graph.columnar.writing import Explained, clear_step, write_credit
from verl_hier.graph.steps import keep_below, step_folder, write_card

logger = logging.getLogger(__name__)
Writer = Callable[[str, int, Mapping[str, bool], str], "Future[Written]"]
"""`HeldRollouts.write` of a rollout worker, wherever it runs."""


@dataclass
class StepInStore:
    """A step that rollout workers are writing.

    Attributes:
        store: folder of the steps.
        step: trainer step.
        tasks: how many tasks they were asked to write.
        answers: what each worker says when it has written its own.
        problem: a sentence on what has failed already.
        parts: how many updates of the step have added tasks.
    """

    store: str
    step: int
    tasks: int
    answers: list[Future[Written]] = field(default_factory=list)
    problem: str | None = None
    parts: int = 0

    @classmethod
    def begin(cls, store: str, step: int, tasks: Mapping[str, bool], writers: Sequence[Writer]) -> StepInStore:
        """Let the workers write a step, in place of what the store holds of it.

        Args:
            store: folder of the steps.
            step: trainer step.
            tasks: uid of each task that was trained or dropped to whether it is stored.
            writers: of all rollout workers; each of them writes what it holds, under the name of its place.
        """
        started = cls(store, step, 0)
        try:
            clear_step(step_folder(store, step))
        except OSError as error:
            started.problem = f"cannot write rollout graphs to {step_folder(store, step)}: {refusal(error)}."
        started.add(tasks, writers)
        return started

    def add(self, tasks: Mapping[str, bool], writers: Sequence[Writer]) -> None:
        """Let the workers write further tasks of the step, where verl trains it in several updates.

        Args:
            tasks, writers: see `begin`.
        """
        self.tasks += sum(tasks.values())
        if self.problem is not None:
            tasks = dict.fromkeys(tasks, False)
        part = f"_{self.parts}" if self.parts else ""
        self.answers += [
            write(self.store, self.step, tasks, f"worker{place}{part}") for place, write in enumerate(writers)
        ]
        self.parts += 1

    def finish(self, credit: Mapping[str, Explained], max_gib: float | None = None) -> dict[str, float]:
        """Wait for the workers and mark the step as whole; what fails costs the step in the store, not the run.

        Args:
            credit: see `write_credit`; of tasks that are not stored too.
            max_gib: see `StoreOptions`.

        Returns:
            `hier/store/failed` and `hier/store/missing`, the tasks that were to be written and are not.
        """
        found = [_answer(answer) for answer in self.answers]
        written = sum(each.tasks for each in found)
        missing = self.tasks - written
        problem = self.problem
        if problem is None and missing:
            # A worker that failed and held nothing of the step costs it nothing.
            lost = f"{missing} of {self.tasks} tasks of step {self.step} are lost with the worker that held them."
            problem = next((each.problem for each in found if each.problem), lost)
        if problem is None:
            problem = self._mark(credit, max_gib)
        if problem is not None:
            logger.warning("%s The run goes on without it (hier.store.path).", problem)
        return {"hier/store/failed": float(problem is not None), "hier/store/missing": float(missing)}

    def _mark(self, credit: Mapping[str, Explained], max_gib: float | None) -> str | None:
        """Write the last file, and remove the oldest steps; returns what went wrong."""
        folder = step_folder(self.store, self.step)
        try:
            write_credit(folder, self.step, self.tasks, credit)
            write_card(folder.parent)
            removed = keep_below(folder.parent, max_gib * 2**30) if max_gib else []
        except OSError as error:
            return f"cannot write rollout graphs to {folder}: {refusal(error)}."
        except GraphError as error:
            return str(error)
        if removed:
            logger.warning(
                "%s removed, because the store is too large with them (hier.store.max_gib).", ", ".join(removed)
            )
        return None


def _answer(answer: Future[Written]) -> Written:
    try:
        return answer.result()
    except Exception as error:  # of Ray: the process has ended
        return Written(0, f"a rollout worker is gone with the rollouts that it held ({type(error).__name__}).")


def drawn(task: object, step: int) -> float:
    """A number within [0, 1) for a task in a step, the same in every run of a seed.

    Args:
        task: its number in the data set.
        step: trainer step.
    """
    return zlib.crc32(f"{step} {task}".encode()) / 2**32
