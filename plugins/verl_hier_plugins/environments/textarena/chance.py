"""Chance of one game, apart from everybody else's: TextArena draws from Python's and numpy's global generators."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Iterator

import numpy as np


class Chance:
    """The state in which the global generators are while this game draws, and at no other time."""

    def __init__(self, *names: object) -> None:
        """A fresh state; equal names make equal ones."""
        draws = random.Random("/".join(map(str, names)))
        self._numpy = np.random.RandomState(draws.getrandbits(31)).get_state()
        self._python = draws.getstate()

    @contextlib.contextmanager
    def at_play(self) -> Iterator[None]:
        """Global generators that go on where this game left them, and are put back afterwards."""
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
        """Another game's chance that goes on from here by itself."""
        # The states are replaced, never changed, so sharing them is safe, and copying them would be slow.
        return copy.copy(self)
