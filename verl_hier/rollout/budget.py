"""The budget of one task: every sampler is held to it and can read what is left."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, fields

_OF_A_TURN = ("turns", "tokens", "environment_calls")


@dataclass(frozen=True)
class BudgetOptions:
    """Limits of the rollout of one task in one step; null for no limit. No limit is ever exceeded."""

    tokens: int | None = None
    """Generated tokens."""
    turns: int | None = None
    """Turns, or pieces of turns where a sampler branches inside them."""
    environment_calls: int | None = None
    """Actions in environments. Actions that are replayed for a fork are not counted."""
    leaves: int | None = None
    """Episodes to train."""
    wall_s: float | None = None
    """Seconds. The only limit that makes a rollout depend on the speed of the machine, and so not repeatable."""

    def __post_init__(self) -> None:
        for field in fields(self):
            limit = getattr(self, field.name)
            if limit is not None and limit <= 0:
                raise ValueError(f"{field.name} must be positive, got {limit}; omit it for no limit")


class BudgetSpent(Exception):
    """Raised to a sampler that starts or forks an episode beyond the budget; it ends the rollout without an error."""


class Budget:
    """What the rollout of one task has spent, what is reserved for turns under way, and what is left.

    Attributes:
        limits: the recipe's limits.
        used: amount spent so far, by the name of the limit.
    """

    def __init__(self, limits: BudgetOptions) -> None:
        self.limits = limits
        self.used: dict[str, float] = {"tokens": 0, "turns": 0, "environment_calls": 0, "leaves": 0}
        self._reserved: dict[str, float] = dict.fromkeys(_OF_A_TURN, 0)
        self._grants = 0
        self._returned = asyncio.Event()
        self._started = time.monotonic()

    @property
    def shared(self) -> bool:
        """Whether episodes compete for a limited amount, so that the order in which they are served matters."""
        return any(getattr(self.limits, name) is not None for name in _OF_A_TURN)

    def left(self, name: str) -> float:
        """What is neither spent nor reserved of a limit; infinite without a limit."""
        limit = getattr(self.limits, name)
        if limit is None:
            return math.inf
        used = time.monotonic() - self._started if name == "wall_s" else self.used[name]
        return max(0.0, float(limit) - used - self._reserved.get(name, 0))

    @property
    def turns_left(self) -> float:
        """How many turns can be granted side by side now; infinite without limits."""
        return 0 if self.left("wall_s") <= 0 else min(self.left(name) for name in _OF_A_TURN)

    async def grant(self, episodes: int, most_tokens: int) -> list[Grant]:
        """Reserve the next turn of `episodes` episodes, in equal shares of what is left.

        When the budget cannot serve all of them, it first waits for turns under way to return what they did not use.

        Args:
            episodes: how many take a turn side by side.
            most_tokens: tokens that a turn may have at most, whatever is left.

        Returns:
            One grant for each episode that can be served, so fewer than `episodes` when the budget ends. Each must be
            left after its turn.
        """
        while self._grants and self.turns_left < episodes:
            self._returned.clear()
            await self._returned.wait()
        served = int(min(episodes, self.turns_left))
        if not served:
            return []
        most = {"turns": 1.0, "tokens": float(most_tokens), "environment_calls": math.inf}
        share = {name: min(self.left(name) // served, most[name]) for name in most if self.limited(name)}
        return [Grant(self, dict(share)) for _ in range(served)]

    def spend_call(self) -> bool:
        """Spend an environment call outside of a turn; False, and nothing is spent, when none is left."""
        if self.left("environment_calls") < 1:
            return False
        self.used["environment_calls"] += 1
        return True

    def limited(self, name: str) -> bool:
        """Whether there is a limit of this name."""
        return getattr(self.limits, name) is not None

    def report(self) -> dict[str, list[float]]:
        """Name to `[used, limit]` of each limited amount."""
        used = {**self.used, "wall_s": time.monotonic() - self._started}
        names = [field.name for field in fields(self.limits) if self.limited(field.name)]
        return {name: [float(used[name]), float(getattr(self.limits, name))] for name in names}

    def _reserve(self, amounts: dict[str, float]) -> None:
        self._grants += 1
        for name, amount in amounts.items():
            self._reserved[name] += amount

    def _return(self, amounts: dict[str, float]) -> None:
        self._grants -= 1
        for name, amount in amounts.items():
            self._reserved[name] -= amount
        self._returned.set()

    def _spend(self, name: str, amount: int, reserved: dict[str, float]) -> None:
        self.used[name] += amount
        if name in reserved:
            reserved[name] -= amount
            self._reserved[name] -= amount


class Grant:
    """What one episode may spend on its next turn; a context manager that returns the unused part when it is left.

    Args:
        budget: pays for it.
        amounts: reserved amount by the name of the limit; amounts without a limit are not named.
    """

    def __init__(self, budget: Budget, amounts: dict[str, float]) -> None:
        self._budget = budget
        self._amounts = amounts
        self._kept = False
        budget._reserve(amounts)

    def __enter__(self) -> Grant:
        return self

    def __exit__(self, *_: object) -> None:
        if self._kept:
            self._kept = False
        else:
            self._budget._return(self._amounts)

    def kept(self) -> Grant:
        """The grant, which is left once more before it returns anything: the turn goes on without who asked for it."""
        self._kept = True
        return self

    @property
    def tokens(self) -> int | None:
        """Tokens that the turn may still generate, None for no limit."""
        return int(self._amounts["tokens"]) if "tokens" in self._amounts else None

    def spend_turn(self, tokens: int) -> None:
        """Spend the turn and the tokens that it generated."""
        self._budget._spend("turns", 1, self._amounts)
        self._budget._spend("tokens", tokens, self._amounts)

    def spend_call(self) -> bool:
        """Spend an environment call; False, and nothing is spent, when none is left."""
        if self._amounts.get("environment_calls", 1) < 1:
            return False
        self._budget._spend("environment_calls", 1, self._amounts)
        return True
