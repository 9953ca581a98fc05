"""A small world and small workers, rolled out by a scripted policy."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from verl_hier.environments.base import Environment, StepResult


class Corridor(Environment):
    """Positions 0..3; `right` moves on, the end wins. Any other action is invalid and costs 0.1."""

    def __init__(self, length: int = 3, break_at: int | None = None) -> None:
        self._length = length
        self._break_at = break_at
        self._at = 0

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        self._at = 0
        return self._answer(0.0, True)

    def step(self, action: str) -> StepResult:
        if action == "right":
            self._at += 1
        if self._at == self._break_at:
            raise RuntimeError("the floor broke")
        done = self._at >= self._length
        return self._answer(1.0 if done else (0.0 if action == "right" else -0.1), action == "right", done)

    def _answer(self, reward: float, valid: bool, done: bool = False) -> StepResult:
        return StepResult(
            f"at {self._at}", reward, done, valid=valid, anchor=str(self._at), info={"won": done, "overview": "hall"}
        )


@pytest.fixture
def run():
    return asyncio.run
