"""The Java machine of a process, which all its episodes share: starting one takes half a second and 150 MB."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from verl_hier.errors import RecipeError

IDLE = 64
"""Games of one kind that are kept for the next episodes; loading one takes up to a tenth of a second."""


Kind = TypeVar("Kind", bound="JavaMachine")


class JavaMachine:
    """A Java machine with the games of one archive, and those of them that no episode plays.

    It ends with this process, because it reads from a pipe of it. The package py4j has to be there.

    Attributes:
        jvm: gives the archive's classes, by the names of their packages.
    """

    def __init__(self, name: str, archive: str, folder: str, memory_mb: int, settings: Sequence[str] = ()) -> None:
        """
        Args:
            name: the environment, for errors.
            archive: path of the Java archive.
            folder: where the machine runs.
            memory_mb: the most memory that it takes.
            settings: further options of the machine.

        Raises:
            RecipeError: when there is no Java.
        """
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

        if shutil.which("java") is None:
            raise RecipeError(
                f"hier.environment.name: {name} needs Java, and there is no `java` on the PATH; install one, "
                "with `apt-get install default-jre-headless` or from adoptium.net."
            )
        # JAVA_TOOL_OPTIONS of the user are heard too.
        port, self._process = launch_gateway(
            classpath=archive, die_on_exit=True, cwd=folder, javaopts=[f"-Xmx{memory_mb}m", *settings], return_proc=True
        )
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port), java_process=self._process)
        self.jvm: Any = gateway.jvm
        self._idle: defaultdict[Hashable, list[Any]] = defaultdict(list)

    @property
    def alive(self) -> bool:
        """Whether the machine still runs."""
        return self._process.poll() is None

    def take(self, kind: Hashable, make: Callable[[], Any]) -> Any:
        """A game of a kind that nobody plays: Java's object.

        Args:
            kind: what makes two games exchangeable.
            make: makes one.
        """
        idle = self._idle[kind]
        return idle.pop() if idle else make()

    def give_back(self, kind: Hashable, played: Any) -> None:
        """The game is not played any more."""
        if len(self._idle[kind]) < IDLE:
            self._idle[kind].append(played)


class Machines(Generic[Kind]):
    """The machines of this process with one archive, by their memory; one that has died is started anew."""

    def __init__(self, start: Callable[[int], Kind]) -> None:
        """
        Args:
            start: starts a machine with so many MB.
        """
        self._start = start
        self._started: dict[int, Kind] = {}

    def __call__(self, memory_mb: int) -> Kind:
        """The machine with this memory."""
        if memory_mb not in self._started or not self._started[memory_mb].alive:
            self._started[memory_mb] = self._start(memory_mb)
        return self._started[memory_mb]
