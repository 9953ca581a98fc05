"""Schedules map the trainer's step to the levels and roles that are trained in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from verl_hier.graph.nodes import Node

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from verl_hier.graph.turn_table import TurnTable


@dataclass(frozen=True)
class Phase:
    """The turns that are trained in one step.

    Attributes:
        name: for logs and metrics.
        levels: levels that learn, None for all.
        roles: roles that learn, None for all.
        weights: (level, weight) of levels that learn with a loss weight other than 1. It multiplies the policy loss of
            their tokens after the loss weighting of `hier.guards`; with a small one a level is nearly frozen.
    """

    name: str
    levels: frozenset[int] | None = None
    roles: frozenset[str] | None = None
    weights: tuple[tuple[int, float], ...] = ()

    def trains(self, node: Node) -> bool:
        """Whether a turn is trained in this phase."""
        return self.learns(node.role, node.level)

    def learns(self, role: str, level: int) -> bool:
        """Whether the turns of a role on a level are trained in this phase."""
        return (self.levels is None or level in self.levels) and (self.roles is None or role in self.roles)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form, as it travels with the tasks and stays in the rollout graph."""
        weights = {"weights": {str(level): weight for level, weight in self.weights}} if self.weights else {}
        return {
            "name": self.name,
            "levels": None if self.levels is None else sorted(self.levels),
            "roles": None if self.roles is None else sorted(self.roles),
            **weights,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Phase:
        """Inverse of `to_dict`; an empty dictionary is the phase in which all learn."""
        levels, roles = data.get("levels"), data.get("roles")
        return cls(
            data.get("name", "joint"),
            None if levels is None else frozenset(levels),
            None if roles is None else frozenset(roles),
            tuple((int(level), float(weight)) for level, weight in data.get("weights", {}).items()),
        )


_PHASE = "hier/schedule/phase/"


def phase_metrics(phase: str, known: Iterable[str]) -> dict[str, float]:
    """The phase of a step as metrics, which are numbers: 1 for `phase`, 0 for the other names of `known`."""
    return {f"hier/schedule/phase/{name}": float(name == phase) for name in sorted({phase, *known})}


def phase_of(metrics: Mapping[str, Any]) -> str:
    """The phase that `phase_metrics` wrote; empty when there is none."""
    found = (name for name, value in metrics.items() if name.startswith(_PHASE) and value)
    return next(found, "").removeprefix(_PHASE)


class Schedule(ABC):
    """Decides the phase of a step, and keeps the statistics of a method that cross steps. Its state is part of the
    checkpoint.

    Attributes:
        reads_losses: whether `learned` is to be called, which costs a forward pass over the batch in each step.
    """

    reads_losses = False

    @abstractmethod
    def phase(self, step: int) -> Phase:
        """The phase of trainer step `step` (1-based)."""

    def episodes(self, step: int, tasks: Sequence[int], n: int) -> list[int] | None:
        """The number of episodes of each task of a step; None: all have what the recipe says.

        With `hier.refill` it is asked again in the same step, for one further task at a time.

        Args:
            step: trainer step.
            tasks: numbers of the tasks in the data set.
            n: `actor_rollout_ref.rollout.n`.
        """
        return None

    def told(self, step: int, tasks: Sequence[int]) -> list[dict[str, Any]] | None:
        """What the workers of each task of a step are told, which they read as `episode.told`; None: nothing.

        It is JSON-able, travels with the task and is stored with its rollout, so keep it small. For evaluations see
        `told_in_evaluation`. With `hier.refill` it is asked again in the same step, for one further task at a time.

        Args:
            step: trainer step.
            tasks: numbers of the tasks in the data set.
        """
        return None

    def told_in_evaluation(self, tasks: Sequence[int]) -> list[dict[str, Any]] | None:
        """What the workers of each task of an evaluation are told, as `told`: in the validations of a run, and by
        `verl-hier eval` of a run with the state of its newest checkpoint. None: nothing, so that the policy alone is
        measured.

        Args:
            tasks: numbers of the tasks in the data set of the evaluation, which is not that of training.
        """
        return None

    def table_ready(self, table: TurnTable, step: int) -> dict[str, float]:
        """Receive the turn table of a step before the estimator: add the columns that `ScheduleSpec.provides` names,
        made of the statistics of earlier steps, then take this step into account.

        Returns:
            metrics, `hier/…`.
        """
        return {}

    def learned(self, group: NDArray[np.int64], losses: NDArray[np.float64], step: int) -> None:  # noqa: B027
        """Receive what the update of a step has left of the loss; only with `reads_losses`.

        Args:
            group: (R,) task of each trained row, as in the turn table.
            losses: (R,) mean clipped loss of the tokens of each row under the updated policy.
            step: trainer step.
        """

    def observe(self, step: int, metrics: dict[str, Any]) -> None:  # noqa: B027 - optional
        """Receive the metrics of a finished step; for schedules that react to them."""

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state for the checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - optional
        """Restore the state of a checkpoint."""
