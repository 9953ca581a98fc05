"""What a turn of the policy is as an answer to a request, whatever the dialect."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from verl_hier.environments.thoughts import blank_thoughts
from verl_hier_plugins.environments.gateway.messages import Message, PolicyRequest, message_of
from verl_hier_plugins.environments.mcp.tools import OPEN, Turn, read_turn

CUT = "\x03"
"""Ends an action that its token limit has cut, so that the client reads that it is no whole one."""
COUNTS = "\x04"
"""Begins the numbers of tokens of the prompt and of the turn, with which the worker ends an action."""
_COUNTS = re.compile(r"(\d{1,12}),(\d{1,12})(?:,(\[.*\]))?\Z", re.ASCII | re.DOTALL)
FULL = "\x05"
"""The action of a worker whose context has no room for an answer."""
Logprob = tuple[str, float]
"""A token of an answer as text, and log p of it."""
Finish = Literal["stop", "string", "length", "calls"]
"""Why an answer ends: it is whole, it came to a `stop` string, its token limit cut it, or it waits for its calls."""


@dataclass(frozen=True)
class Usage:
    """Numbers of tokens of the prompt of a request and of its answer."""

    prompt: int
    answer: int


@dataclass(frozen=True)
class AnsweredCall:
    """A call of an answer."""

    identity: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class PolicyAnswer:
    """What the client is answered.

    Attributes:
        number: names the answer; no other one of the episode has it.
        text: what it says beside its calls.
        calls: its calls.
        finish: why it ends.
        stop: the string that it came to.
        usage: its numbers of tokens.
        logprobs: of its tokens, None where they were not asked for or are not known.
        message: the same as a message of the conversation.
        valid: False where the policy wrote a call that is none.
    """

    number: str
    text: str
    calls: tuple[AnsweredCall, ...]
    finish: Finish
    stop: str
    usage: Usage
    message: Message
    valid: bool
    logprobs: tuple[Logprob, ...] | None = None


def counted(action: str) -> tuple[str, Usage | None, tuple[Logprob, ...] | None]:
    """An action without what its worker has added: the numbers of tokens, and the log-probs if they were asked for."""
    text, sign, added = action.rpartition(COUNTS)
    found = _COUNTS.match(added) if sign else None
    if found is None:
        return action, None, None
    try:
        logprobs = tuple((str(token), float(p)) for token, p in json.loads(found[3])) if found[3] else None
    except (ValueError, TypeError):
        return action, None, None
    return text, Usage(int(found[1]), int(found[2])), logprobs


def answer_to(
    request: PolicyRequest,
    action: str,
    number: int | str,
    plain: bool = False,
    usage: Usage | None = None,
    logprobs: tuple[Logprob, ...] | None = None,
) -> PolicyAnswer:
    """The answer that the text of a turn is.

    Args:
        request: what was asked.
        action: the text, which ends with `CUT` where its token limit cut it.
        number: names the answer and its calls, so no other answer of the episode has it.
        plain: whether plain words are a call.
        usage: its numbers of tokens; None where its worker counts none, and characters are taken for tokens.
        logprobs: of its tokens.
    """
    if usage is None:
        usage = Usage(sum(len(message.content) for message in request.messages), len(action))
    text, stopped_at = action.removesuffix(CUT), ""
    finish: Finish = "length" if action.endswith(CUT) else "stop"
    for stop in request.stop:
        text, stopped, _ = text.partition(stop)
        finish, stopped_at = ("string", stop) if stopped else (finish, stopped_at)
    text, calls, valid = _calls(text, request, number, plain, cut=finish == "length")
    message = message_of("assistant", text, [(call.identity, call.name, call.arguments) for call in calls])
    finish = "calls" if calls else finish
    return PolicyAnswer(str(number), text, calls, finish, stopped_at, usage, message, valid, logprobs)


def _calls(
    text: str, request: PolicyRequest, number: int | str, plain: bool, cut: bool
) -> tuple[str, tuple[AnsweredCall, ...], bool]:
    """Text, calls and validity of an answer."""
    turn = read_turn(text, request.tools, plain) if request.tools else Turn("", text)
    found = turn.found if isinstance(turn.found, list) else []
    if cut:
        # A call of a turn that is cut may be half of what the policy wanted, and clients repair and carry out halves.
        opened = _opened(text) if request.tools else -1
        return text if opened < 0 else text[:opened].strip(), (), bool(found) or opened < 0
    if not found:
        said, fits = request.demand.read(text)
        return said, (), fits and (not request.tools or _opened(text) < 0)
    if not request.demand.allows({call.name for call in found}):
        return text, (), False
    kept = found[:1] if request.demand.one else found
    calls = (AnsweredCall(f"call_{number}_{place}", call.name, call.arguments) for place, call in enumerate(kept))
    return turn.before.strip(), tuple(calls), kept == found


def _opened(text: str) -> int:
    """Where the first call begins that is no thought; -1 where there is none."""
    return blank_thoughts(text).find(OPEN) if OPEN in text else -1
