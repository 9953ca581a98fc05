"""The driver's side: starts the template, and tells Ray of it."""

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

_template: Template | None = None


class Template:
    """The process that imports what verl needs and forks; it ends with this one."""

    def __init__(self, modules: Sequence[str] = MODULES) -> None:
        """
        Args:
            modules: what it imports.
        """
        self.address = str(Path(tempfile.mkdtemp(prefix="verl-hier-")) / "template")
        # Bound here, so that a worker that asks before the template is ready waits for it.
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.address)
            listener.listen(256)
            number = listener.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "verl_hier.runtime_cpu.prefork.template", str(number), *modules],
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

    def python(self) -> str:
        """What Ray has to run in place of the Python interpreter."""
        # Neither the site packages nor this package: the script has to start in a few milliseconds.
        script = Path(__file__).with_name("worker.py")
        return shlex.join([sys.executable, "-I", "-S", str(script), self.address, sys.executable])


def start_in_driver() -> None:
    """Start the template if this process is the driver of `python -m verl.trainer.main_ppo`."""
    global _template
    if sys.orig_argv[1:3] != ["-m", _DRIVER] or os.environ.get(SWITCH) == "0" or _HOOK in os.environ:
        return
    _template = Template()
    os.environ[_HOOK] = f"{__name__}.with_template"


def with_template(runtime_env: dict[str, Any] | None) -> dict[str, Any] | None:
    """Ray's hook on the runtime environment of a job (`RAY_RUNTIME_ENV_HOOK`), called by `ray.init`."""
    # The processes below this one inherit the variable, but not the template.
    os.environ.pop(_HOOK, None)
    if _template is None or (runtime_env or {}).get("py_executable"):
        return runtime_env
    return {**(runtime_env or {}), "py_executable": _template.python()}
