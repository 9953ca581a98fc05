"""Processes that work side by side for a command, and end with it."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Literal

LOOK_S = 1.0


def side_by_side(processes: int | None = None, start: Literal["spawn", "fork"] = "spawn") -> ProcessPoolExecutor:
    """A pool of processes that end when the one that began them is gone, even if it was killed.

    Those of the standard library finish their work first, so that a run of the trainer would go on for nobody.

    Args:
        processes: how many; one for each core when omitted.
        start: how they begin; `fork` is for work that neither uses threads nor torch.
    """
    return ProcessPoolExecutor(processes, get_context(start), _watch, (os.getpid(),))


def _watch(parent: int) -> None:
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()


def _leave_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os._exit(1)
