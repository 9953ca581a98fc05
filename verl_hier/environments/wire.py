"""Messages between the pool and its processes: a length and JSON. A world can therefore say nothing but data.

A process runs code of a world, and what that is made to do by a policy's actions is not known. What it answers is
checked on the pool's end: kinds, finite numbers, whole characters, and sizes, so that no answer can fill the memory or
the prompts.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any

from verl_hier.environments.base import StepResult
from verl_hier.environments.reward_values import reward_of
from verl_hier.text import repaired

HEADER = struct.Struct("!Q")
LONGEST_TEXT = 200_000
"""Characters of an observation; the rest is cut off."""
LONGEST_ANCHOR = 10_000
"""Characters; a longer anchor is replaced by its hash, which is equal where the anchor is."""
LONGEST_ERROR = 2_000
"""Characters of the text of an exception."""
LARGEST_INFO = 2**22
"""Bytes of a step's `info` as JSON."""
LARGEST_MESSAGE = 2**28
"""Bytes; a replay answers with all of its steps."""
CUT = " […]"


def pack(message: Any) -> bytes:
    """One message as bytes.

    Raises:
        TypeError: for what JSON cannot say.
    """
    body = _ENCODER.encode(message).encode()
    return HEADER.pack(len(body)) + body


def unpack(body: bytes) -> Any:
    """The message of a body that follows a header, its texts `repaired`.

    Raises:
        ValueError: for a body that is no message.
    """
    try:
        message = json.loads(str(body, "utf-8"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    # Only an escape can stand for half a character in bytes that are UTF-8.
    return repaired(message) if b"\\ud" in body or b"\\uD" in body else message


def cut(text: str, most: int) -> str:
    """A text of at most `most` characters, which ends with a sign where it was cut."""
    return text if len(text) <= most else text[: max(most - len(CUT), 0)] + CUT[:most]


def from_step(step: StepResult) -> dict[str, Any]:
    """A step as JSON can say it, without what is the default.

    Raises:
        TypeError: for a value of another kind than the step's class says.
        ValueError: for a reward that is not finite or above a million, or an `info` that is too large
            or nested too deeply.
    """
    anchor = step.anchor
    if isinstance(anchor, str) and len(anchor) > LONGEST_ANCHOR:
        anchor = hashlib.sha256(anchor.encode("utf-8", "replace")).hexdigest()
    info = json.dumps(dict(step.info), default=_plain)
    if len(info) > LARGEST_INFO:
        raise ValueError(f"the `info` of a step has {len(info)} bytes as JSON, more than {LARGEST_INFO}")
    said = {
        "text": cut(step.text, LONGEST_TEXT) if isinstance(step.text, str) else step.text,
        "reward": _plain(step.reward),
        "done": _plain(step.done),
        "truncated": _plain(step.truncated),
        "valid": _plain(step.valid),
        "admissible": _within(step.admissible),
        "anchor": anchor,
        "info": json.loads(info),
        "rewards": {agent: _plain(amount) for agent, amount in step.rewards.items()},
    }
    to_step(said)
    said = repaired(said)
    return {name: value for name, value in said.items() if name not in _DEFAULTS or value != _DEFAULTS[name]}


def to_step(said: Any) -> StepResult:
    """The step that a process answered with; what it does not say has its default.

    Raises:
        TypeError: for what is no step.
        ValueError: for a reward that is not finite or above a million, or an `info` that is nested too
            deeply.
    """
    if not isinstance(said, dict):
        raise TypeError(f"a step is a mapping, not {type(said).__name__}")
    if "text" not in said:
        raise TypeError("a step has a `text`")
    for name, value in said.items():
        kind, words = _KINDS.get(name, ((), "left out"))
        if not isinstance(value, kind):
            raise TypeError(f"the `{name}` of a step has to be {words}, got {value!r:.60}")
    if "reward" in said:
        reward_of("the `reward` of a step", said["reward"])
    for agent, reward in said.get("rewards", {}).items():
        reward_of(f"the reward of {agent!r} in a step", reward)
    if not all(isinstance(each, str) for each in said.get("admissible", ())):
        raise TypeError("the `admissible` of a step has to be texts")
    won = said.get("info", {}).get("won")
    # A text such as "no" would be true, and with it the success of the episode.
    if not (won is None or (isinstance(won, int | float) and won in (0, 1))):
        raise TypeError(f"the `won` in the `info` of a step has to be true or false, got {won!r:.60}")
    said = repaired(said)
    return StepResult(**{**said, "admissible": tuple(said["admissible"])} if "admissible" in said else said)


def _within(texts: Any) -> list[Any]:
    """The first of the admissible actions that have no more than `LONGEST_TEXT` characters together."""
    kept: list[Any] = []
    room = LONGEST_TEXT
    for text in texts:
        room -= len(text)
        if room < 0:
            break
        kept.append(text)
    return kept


def _plain(value: Any) -> Any:
    """Numbers of numpy as Python's; tuples and the like as lists.

    Raises:
        TypeError: for what JSON cannot say.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"JSON cannot say a {type(value).__name__}: {value!r:.60}")


_KINDS: dict[str, tuple[Any, str]] = {
    "text": (str, "a text"),
    "reward": (int | float, "a number"),
    "done": (bool, "a bool"),
    "truncated": (bool, "a bool"),
    "valid": (bool, "a bool"),
    "admissible": (list, "a list of texts"),
    "anchor": (str | None, "a text or None"),
    "info": (dict, "a mapping"),
    "rewards": (dict, "a mapping"),
}
_DEFAULTS: dict[str, Any] = {**vars(StepResult("")), "admissible": []}
del _DEFAULTS["text"]
_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_plain)
