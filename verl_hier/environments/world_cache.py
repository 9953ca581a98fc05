"""A cache of generated worlds for all environments of a process; the least recently used are dropped first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class WorldCache(Generic[T]):
    """Limited by the number of worlds and by the number of states that they have discovered.

    An environment that still uses a dropped world keeps its own reference to it.
    """

    def __init__(self, worlds: int, states: int, states_of: Callable[[T], int]) -> None:
        """
        Args:
            worlds: maximum number of worlds.
            states: maximum number of states in all worlds together; the world used last is always kept.
            states_of: the number of states that a world has discovered.
        """
        self._worlds = worlds
        self._states = states
        self._states_of = states_of
        self._kept: OrderedDict[str, T] = OrderedDict()

    def get(self, key: str, make: Callable[[], T]) -> T:
        """The world of a key; made when it is not cached."""
        if key not in self._kept:
            self._kept[key] = make()
        self._kept.move_to_end(key)
        while len(self._kept) > self._worlds or (len(self._kept) > 1 and self._held() > self._states):
            self._kept.popitem(last=False)
        return self._kept[key]

    def _held(self) -> int:
        return sum(map(self._states_of, self._kept.values()))
