"""Errors that a user can act on. Their text is the interface: what is wrong, and which recipe line cures it."""

from __future__ import annotations

import difflib
import errno
import os
import re
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says where a file cannot grow: the disk is full, or the user's quota or limit is reached."""
LONGEST_LINE = 1000
"""Characters of what is quoted of another package's error."""
MAKE_ROOM = "make room there, or write to another disk"
_FULL_IN_WORDS = re.compile(
    "|".join(
        [
            *(re.escape(os.strerror(number)) for number in FULL),
            # torch says no more than that a file of a checkpoint has become shorter than what was written to it.
            *(r"PytorchStreamWriter failed writing", r"inline_container\.cc.*unexpected pos", "iostream error"),
        ]
    )
)


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


def disk_full(error: BaseException) -> str | None:
    """What the system said, when an error or one of its causes is that a file could not grow; else None."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while isinstance(cause, BaseException) and cause not in seen:
        seen.append(cause)
        if isinstance(cause, OSError) and cause.errno in FULL:
            return os.strerror(cause.errno)
        found = None if isinstance(cause, OSError) else _FULL_IN_WORDS.search(str(cause))
        if found:
            return found[0]
        # An error that Ray has carried from another process keeps the original in `cause`.
        cause = cause.__cause__ or getattr(cause, "cause", None) or cause.__context__
    return None


def refusal(error: OSError) -> str:
    """Why the system refused to read or write a file, and what to do where the disk is full; fit for a sentence."""
    said = error.strerror or str(error)
    return f"{os.strerror(error.errno)}; {MAKE_ROOM}" if error.errno in FULL else said


def first_line(error: BaseException) -> str:
    """What an error of another package says, without the lines below and the full stop: fit for a sentence of ours.

    A line may hold what a server has answered, so it is cut at `LONGEST_LINE` characters.
    """
    line = next((line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…"


def raised(error: BaseException) -> str:
    """Type and first line of what a user's code raised, and where: `ValueError: no such room (rooms.py:12)`."""
    said, name = first_line(error), type(error).__name__
    return f"{name if said == name else f'{name}: {said}'}{raised_at(error)}"


def raised_at(error: BaseException) -> str:
    """' (file:line)' of the deepest line that is the user's, or else of the one that our code called; else ''."""
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno or 0))
    last = max((place for place, (file, _) in enumerate(frames) if _within(file, _HERE)), default=-1)
    below = [(file, line) for file, line in frames[last + 1 :] if os.path.isfile(file)]
    theirs = [frame for frame in below if is_users(frame[0])]
    found = theirs[-1:] or below[:1]
    return f" ({shown_path(found[0][0])}:{found[0][1]})" if found else ""


def is_users(file: str) -> bool:
    """Whether a source file is a user's: neither Python's, nor of an installed package, nor of verl-hier."""
    if file.startswith("<") or not _INSTALLED.isdisjoint(Path(file).parts):
        return False
    return not any(_within(file, folder) for folder in (_HERE, *_PYTHON))


def shown_path(file: str) -> str:
    """A path as a user would type it: below the working directory without that."""
    return os.path.relpath(file) if _within(file, os.getcwd()) else file


def _within(file: str, folder: str) -> bool:
    return os.path.abspath(file).startswith(os.path.join(folder, ""))


_INSTALLED = {"site-packages", "dist-packages", "verl_hier_plugins"}
_HERE = os.path.dirname(os.path.abspath(__file__))
_PYTHON = (os.path.dirname(os.__file__), os.path.join(sys.base_prefix, "lib"))


def did_you_mean(word: object, known: Iterable[object]) -> str:
    """' (did you mean X?)' when a known word is close, else an empty string; numbers and other values as text."""
    close = difflib.get_close_matches(str(word), [str(each) for each in known], n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
