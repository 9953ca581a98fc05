"""Run scripts for an environment: results are remembered, and a machine without a sandbox is refused early."""

from __future__ import annotations

import functools

from verl_hier.errors import RecipeError
from verl_hier.sandbox.local import run_python
from verl_hier.sandbox.provider import Outcome, SandboxError, SandboxLimits

KEPT_OUTCOMES = 2048
WALL_PER_CPU = 3
"""Wall seconds for each second of processor time, so that a busy machine does not make a script fail."""


@functools.lru_cache(KEPT_OUTCOMES)
def run_once(code: str, cpu_s: int, memory_mb: int, echo: bool = False) -> Outcome:
    """The outcome of a script. Equal scripts have equal outcomes, so the latest ones are remembered."""
    return run_python(code, SandboxLimits(cpu_s=cpu_s, wall_s=WALL_PER_CPU * cpu_s, memory_mb=memory_mb), echo)


@functools.cache
def require_sandbox(name: str) -> None:
    """Check once that this machine can run scripts.

    Args:
        name: the environment that needs them, for the error.

    Raises:
        RecipeError: when no sandbox can be set up.
    """
    try:
        run_python("")
    except SandboxError as error:
        raise RecipeError(f"hier.environment.name: {name} cannot run scripts on this machine: {error}") from error
