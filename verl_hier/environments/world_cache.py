"""Worlds that are costly to make, shared by all environments of a process; the ones used last are kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class WorldCache(Generic[T]):
    """At most so many worlds, and at most so many of the states that they have discovered.

    Environments that still play a world which was dropped keep it alive themselves.
    """

    def __init__(self, worlds: int, states: int, states_of: Callable[[T], int]) -> None:
        """
        Args:
            worlds: most worlds that are kept.
            states: most states that all of them may hold together; the one used last is kept whatever it holds.
            states_of: how many states a world holds now.
        """
        self._worlds = worlds
        self._states = states
        self._states_of = states_of
        self._kept: OrderedDict[str, T] = OrderedDict()

    def get(self, key: str, make: Callable[[], T]) -> T:
        """The world of a key, made when it is not there."""
        if key not in self._kept:
            self._kept[key] = make()
        self._kept.move_to_end(key)
        while len(self._kept) > self._worlds or (len(self._kept) > 1 and self._held() > self._states):
            self._kept.popitem(last=False)
        return self._kept[key]

    def _held(self) -> int:
        return sum(map(self._states_of, self._kept.values()))
