"""Format checks: reward functions for a turn, or for an episode, of which they read what was generated last."""

from __future__ import annotations

import re
from functools import lru_cache

from verl_hier.rollout.rewards import RatedEpisode, RatedTurn

Rated = RatedEpisode | RatedTurn


def matches(rated: Rated, pattern: str) -> float:
    """1 when a regular expression matches the whole text, else 0; `.` matches line breaks too.

    Args:
        rated: the turn or episode.
        pattern: the regular expression, in Python's syntax.
    """
    return float(_compiled(pattern).fullmatch(rated.text.strip()) is not None)


def has_tags(rated: Rated, tags: tuple[str, ...] | list[str]) -> float:
    """The share of tags that are there exactly once, opened, then closed, and each after the one before.

    Args:
        rated: the turn or episode.
        tags: names without brackets, in order: `[think, action]` wants `<think>…</think>…<action>…</action>`.
    """
    place, right = 0, 0
    for tag in tags:
        opened, closed = f"<{tag}>", f"</{tag}>"
        start = rated.text.find(opened, place)
        stop = rated.text.find(closed, start)
        if 0 <= start < stop and rated.text.count(opened) == rated.text.count(closed) == 1:
            right += 1
            place = stop + len(closed)
    return right / len(tags) if tags else 1.0


def short(rated: Rated, characters: int) -> float:
    """1 up to a number of characters, then falling to 0 at twice as many.

    Args:
        rated: the turn or episode.
        characters: length that has the whole reward.
    """
    return max(0.0, min(1.0, 2.0 - len(rated.text) / characters))


def valid(rated: Rated) -> float:
    """1 when the environment and the worker accepted the turn, else 0; for an episode the share of its turns."""
    if isinstance(rated, RatedTurn):
        return float(rated.valid)
    return sum(turn.valid for turn in rated.turns) / len(rated.turns)


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.DOTALL)
