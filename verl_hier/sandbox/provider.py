"""What a sandbox for model-written Python offers: run one script under limits and report what came of it.

The built-in provider is `verl_hier.sandbox.local`. A container or a remote service can take its place: it has to
implement `SandboxProvider`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Kind = Literal["ok", "error", "timeout", "memory", "output", "killed"]


class SandboxError(RuntimeError):
    """The sandbox itself could not be set up; the script is not to blame. Inside an environment the episode is lost."""


@dataclass(frozen=True)
class SandboxLimits:
    """The resources that a script may use."""

    cpu_s: int = 2
    """Processor time of each process in whole seconds."""
    wall_s: float = 5.0
    """Seconds from the script's start to its end."""
    memory_mb: int = 256
    """Address space of each process in MiB; the interpreter itself takes about 30."""
    processes: int = 1
    """Processes and threads at a time, including the script's own."""
    files_mb: int = 4
    """Size of one file, and with a private root of all files together, in MiB."""
    output_bytes: int = 65536
    """Bytes written to standard output and standard error together."""
    namespaces: bool = True
    """Whether to try Linux namespaces at all; without them only the weaker isolation layers remain."""

    def __post_init__(self) -> None:
        for name in ("cpu_s", "wall_s", "processes", "files_mb", "output_bytes"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.memory_mb < 64:
            raise ValueError(f"memory_mb must be at least 64, got {self.memory_mb}")


@dataclass(frozen=True)
class Outcome:
    """The result of a script.

    Attributes:
        kind: `ok`; `error` (an exception or a non-zero exit status); `timeout` (processor or wall time); `memory`
            (an uncaught MemoryError); `output` (it wrote more than it may); `killed` (any other signal).
        stdout: standard output, up to the limit.
        stderr: the last 4000 characters of standard error.
        status: exit status, or the negated number of the signal that ended the script.
        cpu_s: processor seconds that the script took.
        wall_s: seconds that the call took.
        layers: the isolation layers that were active.
    """

    kind: Kind
    stdout: str
    stderr: str
    status: int
    cpu_s: float
    wall_s: float
    layers: tuple[str, ...]


class SandboxProvider(Protocol):
    """Runs scripts. Implementations are synchronous and may be called from several threads."""

    def run_python(self, code: str, limits: SandboxLimits | None = None, echo: bool = False) -> Outcome:
        """Run a script and wait for its end.

        Args:
            code: any text; what is not Python gives an `error`.
            limits: the defaults of `SandboxLimits` when None.
            echo: whether to print the value of a last line that is an expression, as Python's prompt does.

        Returns:
            The outcome. A script cannot make this raise.

        Raises:
            SandboxError: when no sandbox can be set up.
        """
        ...
