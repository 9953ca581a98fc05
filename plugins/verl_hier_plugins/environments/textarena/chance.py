"""Separate random states for each game, because TextArena draws from Python's and numpy's global generators."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Iterator

import numpy as np


class Chance:
    """The state of the global generators for one game."""

    def __init__(self, *names: object) -> None:
        """A new state; equal names give equal states."""
        draws = random.Random("/".join(map(str, names)))
        self._numpy = np.random.RandomState(draws.getrandbits(31)).get_state()
        self._python = draws.getstate()

    @contextlib.contextmanager
    def at_play(self) -> Iterator[None]:
        """Set the global generators to this game's state; afterwards keep their state and restore the previous one."""
        python, legacy = random.getstate(), np.random.get_state()
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        try:
            yield
        finally:
            self._python, self._numpy = random.getstate(), np.random.get_state()
            random.setstate(python)
            np.random.set_state(legacy)

    def __deepcopy__(self, memo: dict[int, object]) -> Chance:
        """A copy that continues independently."""
        # The states are replaced and never modified, so sharing them is safe, and copying them would be slow.
        return copy.copy(self)
