"""Schedules map the trainer's step to the levels and roles that are trained in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from verl_hier.graph.nodes import Node


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
    """Decides the phase of a step. Its state is part of the checkpoint."""

    @abstractmethod
    def phase(self, step: int) -> Phase:
        """The phase of trainer step `step` (1-based)."""

    def observe(self, step: int, metrics: dict[str, Any]) -> None:  # noqa: B027 - optional
        """Receive the metrics of a finished step; for schedules that react to them."""

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state for the checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - optional
        """Restore the state of a checkpoint."""
