"""A counting world that misbehaves on command; the pool's tests run it in real processes."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass

from verl_hier.environments.base import Environment, StepResult
from verl_hier.errors import RecipeError


@dataclass(frozen=True)
class Options:
    """What this world can do wrong."""

    can_fork: bool = True
    deterministic: bool = True
    refuse: bool = False
    says_process: bool = False


class Counter(Environment):
    """Counts `add` commands; `raise`, `hang`, `spin`, `die`, `exit` and `lie` are what they say."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.total = 0

    def reset(self, task, seed):
        if self.options.refuse:
            raise RecipeError("hier.environment: this world is not installed; pip install it.")
        self.total = task["start"] + seed
        return self._step("ready")

    def _step(self, note=""):
        noise = "" if self.options.deterministic else f" {random.random()}"
        noise += f" in {os.getpid()}" if self.options.says_process else ""
        return StepResult(
            text=f"{note} {self.total}{noise}", anchor=str(self.total), admissible=("add",), info={"pid": os.getpid()}
        )

    def step(self, action):
        if action == "raise":
            raise ValueError("the world is broken")
        if action == "hang":
            time.sleep(1000)
        if action == "spin":
            while True:
                pass
        if action == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "exit":
            raise SystemExit(3)
        if action == "lie":
            return "not a step"
        if action == "slow":
            time.sleep(0.3)
        if action not in ("add", "slow"):
            info = {"pid": os.getpid()}
            return StepResult(text="what?", valid=False, anchor=str(self.total), admissible=("add",), info=info)
        self.total += 1
        return self._step("now")

    def fork(self):
        if not self.options.can_fork:
            return None
        copy = Counter(self.options)
        copy.total = self.total
        return copy


def build(options: Options) -> Counter:
    """The factory."""
    return Counter(options)
