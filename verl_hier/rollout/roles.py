"""The roles of a worker: who may take a turn in its episodes, and on which level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_hier.errors import PluginError, did_you_mean
from verl_hier.host.specs import WorkerSpec


@dataclass(frozen=True)
class Roles:
    """What a worker says about itself, held against what it does.

    Attributes:
        worker: its name.
        levels: role to level, 0 for the highest.
    """

    worker: str
    levels: Mapping[str, int]

    @classmethod
    def of(cls, spec: WorkerSpec, options: Any) -> Roles:
        """The roles of a registered worker with its options."""
        return cls(spec.name, spec.levels(options))

    def level(self, role: str, given: int | None) -> int:
        """The level of a role.

        Args:
            role: whose context or turn it is.
            given: the level that the worker names itself; None when it names none.

        Raises:
            PluginError: when the worker does not declare the role, or declares it on another level.
        """
        if role not in self.levels:
            known = ", ".join(f"{name} (level {level})" for name, level in self.levels.items()) or "none"
            raise PluginError(
                f"worker {self.worker!r} uses the role {role!r}{did_you_mean(role, self.levels)}, which its WorkerSpec "
                f"does not declare; with these options its roles are: {known}."
            )
        level = self.levels[role]
        if given not in (None, level):
            raise PluginError(
                f"worker {self.worker!r} puts the role {role!r} on level {given}, and its WorkerSpec on level {level}; "
                "leave out `level`, which the spec decides."
            )
        return level
