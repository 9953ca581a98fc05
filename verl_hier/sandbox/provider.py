"""What a sandbox for model-written Python offers: run one script under limits and report what came of it.

The built-in provider is `verl_hier.local_sandbox.local`. A container or a remote service can take its place: it has to
implement `SandboxProvider`, pass `verl_hier.testing.check_sandbox`, and be named by `hier.sandbox.provider`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Kind = Literal["ok", "error", "timeout", "memory", "output", "killed"]
Cause = Literal["exit", "cpu", "wall", "memory", "files", "output", "signal"]
Promise = Literal["network", "files", "processes", "memory"]
"""What a sandbox keeps a script from; SECURITY.md says how the built-in one does.

`network`: any connection, to this machine's own services too. `files`: reading files other than Python's standard
library, and changing any but its own. `processes`: reaching other processes, and leaving any behind. `memory`: using
memory that `memory_mb` and `files_mb` do not count.
"""


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
    """Address space of each process in MiB; the interpreter itself takes about 40."""
    processes: int = 1
    """Processes and threads at a time, including the script's own."""
    files_mb: int = 4
    """Size of one file, and of all files together, in MiB. Without a private root the sum is looked at twenty times a
    second, and a script that exceeds it is ended."""
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
            (an uncaught MemoryError); `output` (it wrote more than it may, to its streams or to files); `killed` (any
            other signal).
        stdout: standard output, up to the limit.
        stderr: the last 4000 characters of standard error.
        status: exit status, or the negated number of the signal that ended the script.
        cpu_s: processor seconds that the script took.
        wall_s: seconds that the call took.
        layers: the isolation layers that were active.
        cause: what ended the script. `wall` and `signal` may be due to the machine; the others are the script's own.
    """

    kind: Kind
    stdout: str
    stderr: str
    status: int
    cpu_s: float
    wall_s: float
    layers: tuple[str, ...]
    cause: Cause = "exit"


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

    def promises(self) -> frozenset[Promise]:
        """What this sandbox keeps scripts from, here and now.

        Raises:
            SandboxError: when no sandbox can be set up.
        """
        ...
