"""Errors that a user can act on. Their text is the interface: what is wrong, and which recipe line cures it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HierError(Exception):
    """Base of all errors that the command line prints as one sentence, without a traceback."""

    exit_code = 2
    """What the command line ends with."""


class RecipeError(HierError):
    """A recipe asks for something that cannot be run; the message names the line to change."""


class PluginError(HierError):
    """A plugin failed to load, clashes with another one, or is unknown; the message names its distribution."""


class GraphError(HierError):
    """A rollout graph breaks an invariant of its schema, or was written by a newer schema version."""


class FileError(HierError):
    """A file is damaged, too large, nested too deeply or not a regular file; the message names it."""


class CreditError(HierError):
    """An estimator was given arrays that it cannot credit: a missing column, a NaN reward, a wrong shape."""


class RolloutError(HierError):
    """A rollout cannot go on: the server is gone, or no episode of the batch survived."""


class RunEnded(HierError):
    """A training run failed or was interrupted; the message says how to go on with it."""

    def __init__(self, message: str, exit_code: int) -> None:
        """
        Args:
            message: the sentence.
            exit_code: that of verl's process, or 128 + n for a signal.
        """
        super().__init__(message)
        self.exit_code = exit_code


def first_line(error: BaseException) -> str:
    """What an error of another package says, without the lines below and the full stop: fit for a sentence of ours."""
    return next((line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()), type(error).__name__)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' (did you mean X?)' when a known word is close, else an empty string."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
