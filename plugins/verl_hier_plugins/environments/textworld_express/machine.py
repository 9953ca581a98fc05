"""TextWorldExpress on the Java machine of a process."""

from __future__ import annotations

from typing import Any

from verl_hier.environments.java import JavaMachine, Machines
from verl_hier.errors import RecipeError


class Machine(JavaMachine):
    """A Java machine with games of TextWorldExpress."""

    def __init__(self, memory_mb: int) -> None:
        from textworld_express.constants import BASEPATH, JAR_PATH

        super().__init__("textworld_express", JAR_PATH, BASEPATH, memory_mb)

    def game(self, name: str, settings: str) -> Any:
        """A game that nobody plays: Java's object, which is reset by `generateNewGameJSON`.

        Raises:
            RecipeError: when the game refuses the settings.
        """
        return self.take((name, settings), lambda: self._load(name, settings))

    def _load(self, name: str, settings: str) -> Any:
        found = self.jvm.textworldexpress.runtime.PythonInterface()
        if refusal := found.load(name, settings):
            raise RecipeError(f"hier.environment.settings: {name} refuses {settings!r}: {str(refusal).strip()}")
        return found


machine = Machines(Machine)
"""The machine of this process."""
