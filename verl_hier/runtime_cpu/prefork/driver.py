"""The driver's side: makes the template, and tells Ray of it."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SWITCH = "VERL_HIER_PREFORK"
"""Variable that switches this off when it is 0."""
MODULES = (
    "torch.distributed.fsdp",
    "tensordict",
    "pyarrow.parquet",
    "pandas",
    "datasets",
    "transformers.models.auto.modeling_auto",
    "transformers.models.qwen2.modeling_qwen2",
    "peft",
    "hydra",
    "aiohttp",
    "fastapi",
    "torchdata.stateful_dataloader",
)
"""What verl imports, and takes longest. Neither verl nor Ray, whose C++ part reads the cluster's settings when it is
imported, so that a worker has to import it by itself."""
_HOOK = "RAY_RUNTIME_ENV_HOOK"
_DRIVER = "verl.trainer.main_ppo"

_address: str | None = None
"""The template's socket in the driver; None in other processes."""
_started: Template | None = None


class Template:
    """A process that imports what verl needs and forks; it ends with this one."""

    def __init__(self, modules: Sequence[str] = MODULES) -> None:
        """
        Args:
            modules: what it imports.
        """
        with listen() as listener:
            self.address: str = listener.getsockname()
            number = listener.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.template", str(number), *modules],
                # The template reads from this pipe, which ends when this process does.
                stdin=subprocess.PIPE,
                pass_fds=[number],
            )

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def end(self) -> None:
        """End it; the workers stay."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def listen() -> socket.socket:
    """A socket in a folder of its own, bound before the imports, so that a worker that asks early waits for them."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(Path(tempfile.mkdtemp(prefix="verl-hier-")) / "template"))
    listener.listen(256)
    return listener


def python(address: str) -> str:
    """What Ray has to run in place of the Python interpreter, for forks of the template at this address."""
    # Neither the site packages nor this package: the script has to start in a few milliseconds.
    script = Path(__file__).with_name("worker.py")
    return shlex.join([sys.executable, "-I", "-S", str(script), address, sys.executable])


def is_switched_off() -> bool:
    """Whether the user wants no template, or has a hook of their own in its place."""
    return os.environ.get(SWITCH) == "0" or _HOOK in os.environ


def start_in_driver() -> None:
    """Start a template if this process is the driver of `python -m verl.trainer.main_ppo`, and has none yet."""
    if sys.orig_argv[1:3] == ["-m", _DRIVER] and not is_switched_off():
        global _started
        _started = Template()
        _announce(_started.address)


def fork_template(modules: Sequence[str] = MODULES) -> None:
    """Import what verl needs, and leave a fork of this process as the template; returns in this process alone.

    The driver needs these modules too, so that they are imported once for itself and all of its workers.

    Raises:
        SystemExit: in a fork, at its end.
    """
    # Here, because every process that imports verl imports this module.
    from verl_hier.runtime_cpu.prefork import template

    given = dict(os.environ)
    listener = listen()
    template.import_all(modules)
    ends, held = os.pipe()
    if os.fork() == 0:
        # The pipe ends when the driver does, which keeps its other end until then.
        os.close(held)
        os.dup2(ends, 0)
        os.close(ends)
        template.serve(listener, given)
        sys.exit()
    os.close(ends)
    _announce(listener.getsockname())
    listener.close()


def _announce(address: str) -> None:
    global _address
    _address = address
    os.environ[_HOOK] = f"{__name__}.with_template"


def with_template(runtime_env: dict[str, Any] | None) -> dict[str, Any] | None:
    """Ray's hook on the runtime environment of a job (`RAY_RUNTIME_ENV_HOOK`), called by `ray.init`."""
    # The processes below this one inherit the variable, but not the template.
    os.environ.pop(_HOOK, None)
    if _address is None or (runtime_env or {}).get("py_executable"):
        return runtime_env
    return {**(runtime_env or {}), "py_executable": python(_address)}
