"""How many calls of a pool may be in flight."""

from __future__ import annotations

import asyncio
import time


class Slots:
    """Slots for calls in flight, `async with slots:` around each call; who waits for one is served in order.

    A slot is taken before the time limit of its call begins, and given back before a call that failed is made again, so
    waiting is charged to no call and no call waits for itself.
    """

    def __init__(self, most: int, counts: dict[str, int]) -> None:
        """
        Args:
            most: number of slots.
            counts: keeps `most_in_flight`, the most slots taken at once, and `waited_ms`, what all calls waited
            together.
        """
        self._free = asyncio.Semaphore(most)
        self._counts = counts
        self._taken = 0

    async def __aenter__(self) -> None:
        if self._free.locked():
            began = time.monotonic()
            await self._free.acquire()
            self._counts["waited_ms"] += round(1e3 * (time.monotonic() - began))
        else:
            await self._free.acquire()
        self._taken += 1
        self._counts["most_in_flight"] = max(self._counts["most_in_flight"], self._taken)

    async def __aexit__(self, *error: object) -> None:
        self._taken -= 1
        self._free.release()
