"""Numbers and truth values that strangers say: worlds, servers and reward functions. Texts are neither."""

from __future__ import annotations

from typing import Any

LARGEST_REWARD = 1e6
"""Largest amount of a reward, above or below 0; the sums of an episode's rewards and their squares stay far from where
floats end."""


def reward_of(what: str, value: Any) -> float:
    """A reward as a float.

    Args:
        what: whose reward it is, the first words of the error.
        value: a number of Python, numpy or torch; truth values count as 0 and 1.

    Raises:
        TypeError: for a text, and for what is no number.
        ValueError: for a number that is not finite, or whose amount is above `LARGEST_REWARD`.
    """
    try:
        number = None if isinstance(value, str | bytes) else float(value)
    except OverflowError:
        number = float("inf")
    except (TypeError, ValueError, RuntimeError):
        number = None
    if number is None:
        raise TypeError(f"{what} has to be a number, got {value!r:.60}")
    # Written so that nan is outside.
    if not -LARGEST_REWARD <= number <= LARGEST_REWARD:
        raise ValueError(
            f"{what} is {value!r:.60}, which is no finite number from {-LARGEST_REWARD:g} to {LARGEST_REWARD:g}"
        )
    return number


def truth_of(what: str, value: Any) -> bool:
    """A truth value that a stranger says; None, which leaves it out, is false.

    Raises:
        TypeError: for everything else than true, false, 0, 1 and None, such as the text `false`.
    """
    if value is None:
        return False
    if not isinstance(value, str | bytes) and getattr(value, "shape", ()) == () and value in (0, 1):
        return bool(value)
    raise TypeError(f"{what} has to be true or false, got {value!r:.60}")
