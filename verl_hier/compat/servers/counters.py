"""The rollout servers' own counters as metrics of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ray

COUNTERS = ("requests", "prompt_tokens", "cached_tokens", "prefill_tokens", "decode_tokens", "generated_tokens")
"""Running totals that become metrics, as far as a server has them."""

Statistics = Callable[[], list[Mapping[str, Any]]]


def read_servers(handles: Iterable[Any]) -> Statistics:
    """A function that reads all servers that have `statistics`, in one round trip."""
    asked = [handle for handle in handles if hasattr(handle, "statistics")]
    return lambda: ray.get([handle.statistics.remote() for handle in asked]) if asked else []


class ServerCounters:
    """Differences of the servers' running totals between steps, without the requests of validation.

    Args:
        read: the present totals, one mapping a server; an empty list when no server counts.
    """

    def __init__(self, read: Statistics) -> None:
        self._read = read
        self._last: dict[str, float] = {}
        self._since: dict[str, float] = {}
        self.skip()

    def skip(self) -> None:
        """Leave out what was counted since the last call of `look` or `skip`."""
        self._last = self._totals()

    def look(self) -> None:
        """Add what was counted since the last call of `look` or `skip`."""
        now = self._totals()
        for name, total in now.items():
            self._since[name] = self._since.get(name, 0.0) + total - self._last.get(name, 0.0)
        self._last = now

    def metrics(self) -> dict[str, float]:
        """`hier/server/<counter>` since the last call, and the share of prompt tokens that came from the cache."""
        self.look()
        since, self._since = self._since, {}
        metrics = {f"hier/server/{name}": value for name, value in since.items()}
        if since.get("prompt_tokens"):
            metrics["hier/server/prefix_hit"] = since.get("cached_tokens", 0.0) / since["prompt_tokens"]
        return metrics

    def _totals(self) -> dict[str, float]:
        totals: dict[str, float] = {}
        for server in self._read():
            for name in COUNTERS:
                if name in server:
                    totals[name] = totals.get(name, 0.0) + float(server[name])
        return totals
