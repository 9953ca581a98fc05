"""What the rollout of one task may cost. Every sampler is held to it, and reads off it what is left."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class BudgetOptions:
    """Limits of one task in one step, null for none. A limit is never exceeded: what would, does not happen.

    Attributes:
        tokens: generated tokens.
        turns: turns, or pieces of turns where a sampler branches inside them.
        environment_calls: actions that episodes take in their worlds; the replay of actions for a fork is not counted.
        leaves: episodes to train.
        wall_s: seconds. The only limit that makes a rollout depend on the machine, and so not repeatable.
    """

    tokens: int | None = None
    turns: int | None = None
    environment_calls: int | None = None
    leaves: int | None = None
    wall_s: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            limit = getattr(self, field.name)
            if limit is not None and limit <= 0:
                raise ValueError(f"{field.name} must be positive, got {limit}; omit it for no limit")


class BudgetSpent(Exception):
    """Raised to a sampler that starts or forks an episode beyond the budget; ends the rollout in peace."""


@dataclass
class Grant:
    """What one episode may spend on its next turn; None is no limit."""

    tokens: int | None = None
    environment_calls: int | None = None


class Budget:
    """The ledger of one task.

    Attributes:
        limits: the recipe's.
        used: amount of each limit's name that was spent so far.
    """

    def __init__(self, limits: BudgetOptions) -> None:
        self.limits = limits
        self.used: dict[str, float] = {"tokens": 0, "turns": 0, "environment_calls": 0, "leaves": 0}
        self._started = time.monotonic()

    @property
    def shared(self) -> bool:
        """Whether episodes compete for something, so that the order in which they are served matters."""
        return any(getattr(self.limits, name) is not None for name in ("tokens", "turns", "environment_calls"))

    def left(self, name: str) -> float:
        """What is left of a limit; infinite without one."""
        limit = getattr(self.limits, name)
        if limit is None:
            return float("inf")
        used = time.monotonic() - self._started if name == "wall_s" else self.used[name]
        return max(0.0, float(limit) - used)

    @property
    def spent(self) -> bool:
        """Whether no further turn can be made."""
        return any(self.left(name) <= 0 for name in ("tokens", "turns", "environment_calls", "wall_s"))

    def grants(self, episodes: int) -> list[Grant]:
        """Equal shares of what is left for the next turn of so many episodes; fewer when not each can have one.

        The unused part of a share goes back by itself: only what is spent is charged.
        """
        if self.spent:
            return []
        served = int(min(episodes, self.left("turns"), self.left("tokens"), self.left("environment_calls")))
        return [Grant(self._share("tokens", served), self._share("environment_calls", served)) for _ in range(served)]

    def charge(self, name: str, amount: float) -> None:
        """Note what was spent."""
        self.used[name] += amount

    def call(self, grant: Grant) -> bool:
        """Charge one environment call; False, and nothing is charged, when the grant has none left."""
        if grant.environment_calls is not None:
            if grant.environment_calls < 1:
                return False
            grant.environment_calls -= 1
        self.charge("environment_calls", 1)
        return True

    def report(self) -> dict[str, list[float]]:
        """Name to `[used, limit]` of what is limited."""
        names = [field.name for field in fields(self.limits) if getattr(self.limits, field.name) is not None]
        used = {**self.used, "wall_s": time.monotonic() - self._started}
        return {name: [float(used[name]), float(getattr(self.limits, name))] for name in names}

    def _share(self, name: str, among: int) -> int | None:
        return None if getattr(self.limits, name) is None else int(self.left(name) // among)
