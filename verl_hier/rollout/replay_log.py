"""The answers that the worker of a fork is given again: those of its source up to the fork, in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from verl_hier.environments.base import StepResult
from verl_hier.errors import RolloutError
from verl_hier.graph.nodes import Node, RolloutGraph


@dataclass(frozen=True)
class Event:
    """One answer to a worker: a node for a turn or a piece of it, a step for a reset (no action) or an action.

    Attributes:
        writer: the turn that wrote the action; None for an action before the first turn.
    """

    node: Node | None = None
    action: str | None = None
    step: StepResult | None = None
    writer: Node | None = None


class ReplayLog:
    """Recorded answers, given one after the other.

    Args:
        events: the answers.
        worker: name of the worker's class, for errors.
    """

    def __init__(self, events: Iterable[Event], worker: str) -> None:
        self._events = list(events)
        self._worker = worker
        self._position = 0

    @property
    def goes_on(self) -> bool:
        """Whether an answer is left."""
        return self._position < len(self._events)

    @property
    def left(self) -> list[Event]:
        """The answers that are still to be given."""
        return self._events[self._position :]

    def step(self, action: str | None) -> StepResult:
        """The environment's answer to an action, None for the reset.

        Raises:
            RolloutError: when the worker acts differently than before.
        """
        event = self._events[self._position]
        if event.step is None or event.action != action:
            raise RolloutError(
                f"worker {self._worker} did not repeat itself when an episode was forked (it wanted {action!r}); its "
                "coroutine must depend on `episode` alone."
            )
        self._position += 1
        return event.step

    def node(self, prompt: list[int], graph: RolloutGraph) -> Node:
        """The node that was sampled after a prompt.

        Raises:
            RolloutError: when the worker builds another prompt than before.
        """
        event = self._events[self._position]
        if event.node is None or prompt != graph.prompt(event.node.id):
            raise RolloutError(
                f"worker {self._worker} built another prompt when an episode was forked; its coroutine must depend on "
                "`episode` alone."
            )
        self._position += 1
        return event.node

    def cut(self, node: Node, first: Node) -> None:
        """`node` was cut and `first` is its first part now; an answer that was given already is not given again."""
        given = any(event.node is node for event in self._events[: self._position])
        insert_before(self._events, node, first)
        self._position += given


def insert_before(events: list[Event], node: Node, first: Node) -> None:
    """Put the first part of a node that was cut before each event of it."""
    for place in reversed([place for place, event in enumerate(events) if event.node is node]):
        events.insert(place, Event(node=first))
