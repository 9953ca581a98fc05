"""A world whose answers depend on what it was asked alone, played again from a stored rollout: nobody is asked anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verl_hier.environments.base import StepResult
from verl_hier.environments.pool import EnvironmentFailure
from verl_hier.environments.wire import from_step, to_step
from verl_hier.errors import GraphError
from verl_hier.graph.nodes import Node, RolloutGraph
from verl_hier.graph.records import ANSWERS, RESET
from verl_hier.host.specs import Fork


def keep_reset(graph: RolloutGraph, step: StepResult) -> None:
    """Store the answer to the reset, which all episodes of a task share."""
    if RESET not in graph.request:
        graph.request[RESET] = _said(step)


def keep_answer(graph: RolloutGraph, node: Node, action: str, step: StepResult) -> None:
    """Store an answer with the last turn before it; one with what JSON cannot say has the world asked again instead."""
    said = _said(step)
    if said is None:
        graph.request[RESET] = None
    else:
        node.decision[ANSWERS] = [*node.decision.get(ANSWERS, ()), [action, said]]


def _said(step: StepResult) -> dict[str, Any] | None:
    try:
        return from_step(step)
    except (TypeError, ValueError):  # a picture in the `info` of a tool of verl, for instance
        return None


def kept_answer(node: Node, number: int, action: str) -> StepResult | None:
    """The stored answer to an action after a turn that an earlier step has sampled; None where there is none.

    Args:
        node: the turn.
        number: how many answers the worker has got since.
        action: what it does now.
    """
    answers = node.decision.get(ANSWERS, ())
    return to_step(answers[number][1]) if number < len(answers) and answers[number][0] == action else None


class RecordedWorld:
    """See `rollout.task.Environments`: answers what a stored rollout was answered, by the actions since the reset."""

    forks: Fork = "recorded"

    def __init__(self, graph: RolloutGraph) -> None:
        """
        Args:
            graph: with the answers of a world whose `fork` is `recorded`.

        Raises:
            GraphError: when what it stores is no answer.
        """
        try:
            self._reset = to_step(graph.request[RESET])
            self._answers: dict[tuple[str, ...], StepResult] = {}
            for episode in range(len(graph.episodes)):
                done: tuple[str, ...] = ()
                for node in graph.path(episode):
                    for action, step in graph.nodes[node].decision.get(ANSWERS, ()):
                        done = (*done, str(action))
                        self._answers[done] = to_step(step)
        except (TypeError, ValueError) as error:
            raise GraphError(
                f"the graph of task {graph.task.get('uid')} stores an answer of its world that is none: {error}."
            ) from error

    @staticmethod
    def is_in(graph: RolloutGraph) -> bool:
        """Whether a graph has the answers of its world."""
        return graph.request.get(RESET) is not None

    async def open(self, task: Mapping[str, Any], seed: int) -> tuple[RecordedHandle, StepResult]:
        """See `Environments.open`."""
        return RecordedHandle(self._answers), self._reset

    async def resume(
        self, task: Mapping[str, Any], seed: int, actions: Sequence[str], steps: Sequence[StepResult]
    ) -> RecordedHandle:
        """See `Environments.resume`."""
        return RecordedHandle(self._answers, tuple(actions))


class RecordedHandle:
    """See `rollout.task.EnvironmentHandle`."""

    def __init__(self, answers: Mapping[tuple[str, ...], StepResult], done: tuple[str, ...] = ()) -> None:
        self._answers = answers
        self._done = done

    async def step(self, action: str) -> StepResult:
        """The stored answer.

        Raises:
            EnvironmentFailure: when the stored rollout did not do this here.
        """
        done = (*self._done, action)
        if done not in self._answers:
            raise EnvironmentFailure("replay_mismatch", f"the stored rollout has no answer to {action!r} there")
        self._done = done
        return self._answers[done]

    async def fork(self) -> RecordedHandle:
        """See `EnvironmentHandle.fork`."""
        return RecordedHandle(self._answers, self._done)

    async def close(self) -> None:
        """Nothing is open."""
