"""Which finished tasks of a step are trained, and how many further ones it samples in place of the others."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from verl_hier.credit.groups import equal_scores
from verl_hier.errors import RecipeError, RolloutError
from verl_hier.graph import RolloutGraph
from verl_hier.graph.success import WITHOUT_WORD, success_of
from verl_hier.training.options import RefillOptions

_EQUAL = 1e-9
"""What a product of a whole number and a share may be off by."""


@dataclass(frozen=True)
class Group:
    """A finished task, in the words in which its rollout worker describes it to the trainer.

    Attributes:
        scores: of its trained episodes, in the order of the graph.
        rows: number of rows that were cut from it.
        tokens: number of tokens that were generated for it.
    """

    scores: list[float]
    rows: int
    tokens: int

    @classmethod
    def of(cls, graph: RolloutGraph, rows: int, score: str) -> Group:
        """Describe a graph of which so many rows were cut. `score` and errors are those of `scores_of`."""
        return cls(scores_of(graph, score), rows, sum(len(node.action) for node in graph.nodes))

    @property
    def mean(self) -> float:
        """Mean of the scores, 0 without any."""
        return statistics.fmean(self.scores) if self.scores else 0.0

    @property
    def std(self) -> float:
        """Population standard deviation of the scores, exactly 0 where they are equal but for rounding."""
        if len(self.scores) < 2 or equal_scores(self.scores, np.zeros(len(self.scores), np.int64)).all():
            return 0.0
        return statistics.pstdev(self.scores)

    def dropped_by(self, options: RefillOptions) -> str | None:
        """The option that drops the task, `no_rows` where nothing of it can be trained, None when it passes."""
        if not self.rows:
            return "no_rows"
        if options.std_above is not None and len(self.scores) > 1 and self.std <= options.std_above:
            return "std_above"
        if options.mean_within is not None and not options.mean_within[0] <= self.mean <= options.mean_within[1]:
            return "mean_within"
        return None


def scores_of(graph: RolloutGraph, score: str) -> list[float]:
    """The score of each complete, trained episode that has a finite one.

    Args:
        graph: of one task.
        score: `return`, `success`, or the name of a number in `reward_info`.

    Raises:
        RecipeError: when there are such episodes and none of them has the score.
    """
    trained = [episode for episode in graph.complete() if episode.trained]
    if score == "return":
        return [episode.ret for episode in trained if math.isfinite(episode.ret)]
    if score == "success":
        # Who compares by success has a world that says `won`, though none of these episodes may have heard it.
        said = (success_of(episode.success, WITHOUT_WORD in graph.counts) for episode in trained)
        found = [float(success) for success in said if success is not None]
    else:
        scores = (episode.reward_info[score] for episode in trained if score in episode.reward_info)
        found = [value for value in scores if math.isfinite(value)]
    if trained and not found:
        known = sorted({name for episode in trained for name in episode.reward_info})
        raise RecipeError(
            f"hier.refill.score: no episode of the task reports {score!r}; use return"
            f"{''.join(f' or {name}' for name in known)}, or let the environment report it."
        )
    return found


def wanted_tasks(options: RefillOptions, tasks: int) -> int:
    """Tasks that have to pass before a step can train so many."""
    return math.ceil(tasks / options.best_share - _EQUAL)


def most_tasks(options: RefillOptions, tasks: int) -> int:
    """Tasks that a step which trains so many may sample in all."""
    return max(tasks, math.floor(options.limit * tasks + _EQUAL))


class StepTasks:
    """The tasks of one step. Which of them are trained depends on the order in which they were drawn, and never on the
    order in which they are finished.

    Every task that is dropped is replaced at once, so no more are sampled than have to be.
    """

    def __init__(self, options: RefillOptions, tasks: int, available: int) -> None:
        """
        Args:
            options: of the recipe.
            tasks: that the step trains.
            available: different tasks that there are.
        """
        self._options = options
        self._tasks = tasks
        self._most = max(tasks, min(most_tasks(options, tasks), available))
        self._groups: dict[str, Group] = {}
        self._reasons: dict[str, str] = {}

    def __contains__(self, task: str) -> bool:
        return task in self._groups

    def finish(self, task: str, group: Group) -> None:
        """Take note of a finished task."""
        self._groups[task] = group
        reason = group.dropped_by(self._options)
        if reason is not None:
            self._reasons[task] = reason

    def missing(self, drawn: int) -> int:
        """How many tasks have to be drawn now, after so many."""
        return max(0, min(wanted_tasks(self._options, self._tasks) + len(self._reasons), self._most) - drawn)

    def choose(self, drawn: Sequence[str]) -> list[str]:
        """The tasks to train, once all of them are finished. Where none passes, they are the first ones that
        made rows, as without refill.

        Args:
            drawn: all tasks of the step, in the order in which they were drawn.

        Raises:
            RolloutError: when fewer pass than the step trains, and `at_limit` is `raise`.
        """
        passed = [task for task in drawn if task not in self._reasons]
        if len(passed) < self._tasks and self._options.at_limit == "raise":
            raise RolloutError(
                f"{len(passed)} of the {len(drawn)} tasks that this step sampled passed hier.refill, and it trains "
                f"{self._tasks}; raise hier.refill.limit, or set hier.refill.at_limit to train."
            )
        if not passed:
            able = [task for task in drawn if self._groups[task].rows]
            return (able or list(drawn))[: self._tasks]
        rank = {task: getattr(self._groups[task], self._options.rank_by) for task in passed}
        # Of equal tasks the later one, as sorting upwards and dropping from the front leaves it.
        best = sorted(passed, key=lambda task: rank[task])[-self._best(len(passed)) :]
        return sorted(best, key=passed.index)

    def _best(self, passed: int) -> int:
        """How many of the tasks that passed are trained; at the limit the same share of fewer."""
        return min(self._tasks, passed - math.floor(passed * (1.0 - self._options.best_share) + _EQUAL))

    def metrics(self, drawn: Sequence[str], kept: Sequence[str]) -> dict[str, float]:
        """What the step did, `hier/refill/…`; the arguments are those, and the result, of `choose`."""
        dropped = set(drawn) - set(kept)
        reasons = Counter(self._reasons.get(task, "best_share") for task in dropped)
        scores = [score for task in drawn for score in self._groups[task].scores]
        passed = len(drawn) - len(self._reasons)
        metrics = {
            "hier/refill/tasks": float(len(drawn)),
            "hier/refill/batches": len(drawn) / self._tasks,
            "hier/refill/dropped": float(len(dropped)),
            "hier/refill/dropped_tokens": float(sum(self._groups[task].tokens for task in dropped)),
            "hier/refill/at_limit": float(passed < wanted_tasks(self._options, self._tasks)),
        }
        if scores:
            metrics["hier/refill/score_mean"] = statistics.fmean(scores)
        return metrics | {f"hier/refill/dropped_by/{name}": float(count) for name, count in sorted(reasons.items())}
