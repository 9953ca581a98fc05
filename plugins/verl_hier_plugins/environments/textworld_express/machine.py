"""The Java machine of a process, which all its episodes share: starting one takes half a second and 150 MB."""

from __future__ import annotations

import functools
import shutil
from collections import defaultdict
from typing import Any

from verl_hier.errors import RecipeError

IDLE = 64
"""Games of one kind that are kept for the next episodes; loading one takes up to a tenth of a second."""


class Machine:
    """One Java machine, and the games on it that no episode plays.

    It ends with this process, because it reads from a pipe of it.
    """

    def __init__(self, memory_mb: int) -> None:
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
        from textworld_express.constants import BASEPATH, JAR_PATH

        if shutil.which("java") is None:
            raise RecipeError(
                "hier.environment.name: textworld_express needs Java, and there is no `java` on the PATH; install one, "
                "with `apt-get install default-jre-headless` or from adoptium.net."
            )
        # JAVA_TOOL_OPTIONS of the user are heard too.
        port, self._process = launch_gateway(
            classpath=JAR_PATH, die_on_exit=True, cwd=BASEPATH, javaopts=[f"-Xmx{memory_mb}m"], return_proc=True
        )
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port), java_process=self._process)
        self._idle: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)

    @property
    def alive(self) -> bool:
        """Whether the machine still runs."""
        return self._process.poll() is None

    def take(self, game: str, settings: str) -> Any:
        """A game that nobody plays: Java's object, which is reset by `generateNewGameJSON`.

        Raises:
            RecipeError: when the game refuses the settings.
        """
        if idle := self._idle[game, settings]:
            return idle.pop()
        found = self._gateway.jvm.textworldexpress.runtime.PythonInterface()
        if refusal := found.load(game, settings):
            raise RecipeError(f"hier.environment.settings: {game} refuses {settings!r}: {str(refusal).strip()}")
        return found

    def give_back(self, game: str, settings: str, played: Any) -> None:
        """The game is not played any more."""
        if len(self._idle[game, settings]) < IDLE:
            self._idle[game, settings].append(played)


@functools.cache
def _started() -> dict[int, Machine]:
    """By memory."""
    return {}


def machine(memory_mb: int) -> Machine:
    """The machine of this process; a new one where it has died.

    Raises:
        RecipeError: when there is no Java.
    """
    started = _started()
    if memory_mb not in started or not started[memory_mb].alive:
        started[memory_mb] = Machine(memory_mb)
    return started[memory_mb]
