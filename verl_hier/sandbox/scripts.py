"""Run scripts for an environment, in the sandbox that the recipe names; refused early if that promises too little."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Collection
from importlib.metadata import EntryPoint

from verl_hier.errors import RecipeError
from verl_hier.installed import points_of
from verl_hier.sandbox.provider import Outcome, Promise, SandboxError, SandboxLimits, SandboxProvider

KEPT_OUTCOMES = 2048
WALL_PER_CPU = 3
"""Wall seconds for each second of processor time, so that a busy machine does not make a script fail."""

PROVIDER_VARIABLE = "VERL_HIER_SANDBOX"
"""Environment variable with the provider's name, through which it reaches the processes of environments."""

GROUP = "verl_hier.sandboxes"
"""The group of entry points that name the providers of installed packages."""
LOCAL = "local"
"""The name of the built-in one."""


def provider() -> SandboxProvider:
    """This process's sandbox, as `choose` named it; the built-in one otherwise."""
    return _made(os.environ.get(PROVIDER_VARIABLE, LOCAL))


def choose(name: str, required: Collection[Promise]) -> None:
    """Use a provider in this process and in those that it starts from now on.

    Args:
        name: an entry point of the group `verl_hier.sandboxes`, or `package.module:function`: a function without
            arguments that returns a `SandboxProvider`.
        required: what it must promise.

    Raises:
        RecipeError: when it cannot be made, or promises less.
    """
    os.environ[PROVIDER_VARIABLE] = name
    if not required:
        return
    try:
        missing = sorted(set(required) - provider().promises())
    except SandboxError as error:
        raise RecipeError(f"hier.sandbox.require: no sandbox can be set up on this machine: {error}") from error
    if missing:
        raise RecipeError(
            f"hier.sandbox.require: on this machine the sandbox does not protect {' and '.join(missing)}; "
            "`verl-hier doctor` says which layers are missing, and SECURITY.md where they can be had."
        )


@functools.cache
def _made(name: str) -> SandboxProvider:
    module, _, function = name.partition(":")
    known = installed()
    try:
        made: SandboxProvider = (
            known[name].load() if name in known else getattr(importlib.import_module(module), function)
        )()
    except (ImportError, AttributeError, ValueError) as error:
        raise RecipeError(
            f"hier.sandbox.provider: {name!r} is neither an installed sandbox ({', '.join(sorted(known)) or 'none'}) "
            f"nor a function `package.module:function` ({error})."
        ) from error
    return made


def installed() -> dict[str, EntryPoint]:
    """The providers of installed packages by name, unread."""
    return {point.name: point for point in points_of(GROUP)}


class _NotSettled(Exception):
    """Another run may have another outcome, so this one is not kept."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.cause)
        self.outcome = outcome


def run_once(code: str, cpu_s: int, memory_mb: int, echo: bool = False) -> Outcome:
    """The outcome of a script. Equal scripts have equal outcomes, so the latest ones are remembered.

    A script that the machine may have ended, by wall time or a signal, is run a second time, and is not remembered.
    """
    for _ in range(2):
        try:
            return _kept(code, cpu_s, memory_mb, echo)
        except _NotSettled as ended:
            outcome = ended.outcome
    return outcome


@functools.lru_cache(KEPT_OUTCOMES)
def _kept(code: str, cpu_s: int, memory_mb: int, echo: bool) -> Outcome:
    limits = SandboxLimits(cpu_s=cpu_s, wall_s=WALL_PER_CPU * cpu_s, memory_mb=memory_mb)
    outcome = provider().run_python(code, limits, echo)
    if outcome.cause in ("wall", "signal"):
        raise _NotSettled(outcome)
    return outcome


@functools.cache
def require_sandbox(name: str) -> None:
    """Check once that this machine can run scripts.

    Args:
        name: the environment that needs them, for the error.

    Raises:
        RecipeError: when no sandbox can be set up.
    """
    try:
        provider().run_python("")
    except SandboxError as error:
        raise RecipeError(f"hier.environment.name: {name} cannot run scripts on this machine: {error}") from error
