"""Which answer of the policy a new conversation comes of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal

from verl_hier_plugins.environments.gateway.messages import Message, PolicyRequest

Kind = Literal["spawned", "handed", "compacted"]
"""`spawned`: a call of the answer began it, and its result is awaited. `handed`: it goes on with the messages of
another conversation under other instructions or with other tools. `compacted`: it begins with the answer in place of
what was said before."""
SHORTEST = 12
"""Characters of an argument by which a conversation is known to come of it wherever it stands; a shorter one has to be
lines of its own, because it stands in many a text."""
SHORTEST_SUMMARY = 16
MOST_OPEN = 64
"""Texts of open answers that are looked for in a new conversation, the latest first."""
_QUOTED = re.compile(r"\"([^\"\n]{4,2000})\"|'([^'\n]{4,2000})'")


@dataclass(frozen=True)
class Parent:
    """The answer that a conversation comes of.

    Attributes:
        kind: how it comes of it.
        context, answer: the conversation of the answer, and the place of the answer in the episode.
        tool: name of the call; empty where it is none.
    """

    kind: Kind
    context: int
    answer: int
    tool: str = ""


@dataclass
class Answer:
    """An answer of the policy.

    Attributes:
        context, answer: see `Parent`.
        asked: the request that it answers.
        reply: the answer.
        open: whether its conversation has not gone on behind it.
        taken: calls of which a conversation came already, each the tool and a text.
    """

    context: int
    answer: int
    asked: PolicyRequest
    reply: Message
    open: bool = True
    taken: list[tuple[str, str]] = field(default_factory=list)

    def texts(self) -> Iterator[tuple[str, str]]:
        """Tool and text of what a conversation may begin with; in code, what stands in quotes."""
        for tool, arguments in self.reply.arguments:
            yield from ((tool, each.strip()) for each in arguments)
        if not self.reply.arguments:
            for found in _QUOTED.finditer(self.reply.text):
                yield "", (found[1] or found[2]).strip()


def parent_of(request: PolicyRequest, answers: Sequence[Answer]) -> Parent | None:
    """The answer that a new conversation comes of, or None.

    Args:
        request: the first request of the conversation.
        answers: those of the episode, in order.
    """
    if request.above:
        answers = [answer for answer in answers if answer.asked.thread == request.above]
    own = {answer.reply.text.strip() for answer in answers}
    # A turn of the assistant that its program made up opens a conversation, too.
    before = takewhile(lambda message: message.role != "assistant" or message.text.strip() not in own, request.messages)
    opening = "\n".join(["", *(message.content for message in before if message.role == "user"), ""])
    best: tuple[tuple[bool, int, int], Answer, tuple[str, str]] | None = None
    looked = 0
    # Where the program says whose agent it is, that one need not wait for it.
    for answer in (each for each in reversed(answers) if each.open or request.above):
        begun = list(answer.taken)
        for place, text in enumerate(answer.texts()):
            looked += 1
            sought = text[1] if len(text[1]) >= SHORTEST else f"\n{text[1]}\n"
            if looked > MOST_OPEN or not text[1] or sought not in opening:
                continue
            fresh = text not in begun
            if not fresh:
                begun.remove(text)
            # Of twins that say the same, the one without a conversation, and the first.
            rank = (fresh, len(text[1]), -place)
            if best is None or rank > best[0]:
                best = rank, answer, text
    if best is not None:
        _, answer, text = best
        answer.taken.append(text)
        return Parent("spawned", answer.context, answer.answer, text[0])
    if request.above:
        last = next((answer for answer in reversed(answers) if answer.reply.ids), None)
        return None if last is None else Parent("spawned", last.context, last.answer)
    return _handed(request, answers) or _compacted(request, answers)


def _handed(request: PolicyRequest, answers: Sequence[Answer]) -> Parent | None:
    ids = {each for message in request.messages if message.role == "assistant" for each in message.ids}
    for answer in reversed(answers):
        # Under the same instructions and with the same tools the conversation itself was changed.
        if ids.intersection(answer.reply.ids) and _setting(request) != _setting(answer.asked):
            return Parent("handed", answer.context, answer.answer)
    return None


def _setting(request: PolicyRequest) -> tuple[str, list[str]]:
    return request.toolbox, [message.content.strip() for message in request.messages if message.role == "system"]


def _compacted(request: PolicyRequest, answers: Sequence[Answer]) -> Parent | None:
    heard = "\n".join(message.content for message in request.messages if message.role == "user")
    quoted = "\n".join(message.content for message in request.messages if message.role == "assistant")
    for answer in reversed(answers[-MOST_OPEN:]):
        text = answer.reply.text.strip()
        if answer.asked.agent != request.agent or answer.reply.ids or len(text) < SHORTEST_SUMMARY:
            continue
        # As a turn of the assistant it is a summary only if it was asked for without the tools; else it is a turn kept.
        if text in heard or (text in quoted and request.tools and not answer.asked.tools):
            return Parent("compacted", answer.context, answer.answer)
    return None
