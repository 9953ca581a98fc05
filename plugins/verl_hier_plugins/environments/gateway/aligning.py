"""Whether a request continues a conversation, however its client has rendered what was said.

Clients send a conversation back in other words than it was held in: arguments of calls in another order or as text,
white space and thoughts dropped, neighbouring messages merged, a stop string put back, reminders added or taken away.
An answer of the policy that has calls is known by their ids, which were made here; any other message by its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verl_hier.environments.thoughts import without_thoughts
from verl_hier_plugins.environments.gateway.messages import Message


@dataclass(frozen=True)
class Place:
    """A message as it is compared.

    Attributes:
        role: of the message.
        text: what it says, without white space at its ends and those of lines, empty lines, thoughts of an assistant,
            and reminders.
        ids: of calls, see `Message.ids`.
        own: whether the policy said it.
    """

    role: str
    text: str
    ids: tuple[str, ...]
    own: bool = False

    @property
    def says_nothing(self) -> bool:
        """Whether it is no more than reminders."""
        return not self.text and self.role in ("system", "user")


def place_of(message: Message, reminders: Sequence[str], own: bool = False) -> Place:
    """A message as it is compared."""
    text = without_thoughts(message.text) if message.role == "assistant" else _without(message.text, reminders)
    # Messages are merged with more or fewer empty lines between them.
    lines = "\n".join(line.rstrip() for line in text.split("\n") if line.strip())
    return Place(message.role, lines.strip(), message.ids, own)


def new_in(
    held: Sequence[Place], sent: Sequence[Place], messages: Sequence[Message], stops: Sequence[str]
) -> list[Message] | None:
    """What a request adds to a conversation, or None where it changes it or adds nothing.

    Args:
        held: the conversation.
        sent: the messages of the request, in place of which `messages` are returned.
        messages: the same messages.
        stops: strings at which the answers ended; a client may put one back behind its answer.
    """
    walk = _Walk(sent, stops)
    for place in held:
        if not place.says_nothing and not walk.passes(place):
            return None
    rest = walk.rest
    new = [Message(rest.role, rest.text, "", rest.text, rest.ids)] if rest is not None and rest.text else []
    return [*new, *messages[walk.taken :]] or None


class _Walk:
    """Goes through the messages of a request.

    Attributes:
        taken: messages of the request that are passed.
        rest: what the last of them says beside what is passed.
    """

    def __init__(self, sent: Sequence[Place], stops: Sequence[str]) -> None:
        self.taken = 0
        self.rest: Place | None = None
        self._sent = sent
        self._stops = stops

    def passes(self, place: Place) -> bool:
        """Whether the request goes on with a message of the conversation."""
        here = self._here()
        if here is None or here.role != place.role:
            return False
        if place.own and place.ids:
            # What came back of it does not matter, beside other answers that were merged with it.
            left = tuple(each for each in here.ids if each not in place.ids)
            self.rest = Place(here.role, here.text, left) if left else None
            return len(left) < len(here.ids)
        if place.role == "tool" and place.ids != here.ids:
            return False
        behind = self._behind(place, here.text)
        if behind is None:
            return self._split(place, here)
        self.rest = Place(here.role, behind, here.ids) if behind else None
        return True

    def _here(self) -> Place | None:
        while self.rest is None and self.taken < len(self._sent):
            here, self.taken = self._sent[self.taken], self.taken + 1
            if not here.says_nothing:
                self.rest = here
        return self.rest

    def _behind(self, place: Place, text: str) -> str | None:
        """What follows a message's text in another that begins with it; None where none does."""
        if not text.startswith(place.text):
            return None
        behind = text[len(place.text) :]
        if place.own:
            ended = (stop for stop in self._stops if behind.lstrip().startswith(stop.strip()))
            behind = next((behind.lstrip()[len(stop.strip()) :] for stop in ended), behind)
        # Messages are merged by lines; what goes on within a line is a change.
        return behind.strip() if not behind or (behind[0] == "\n" and place.text) else None

    def _split(self, place: Place, here: Place) -> bool:
        """Whether a message has come back as several."""
        if place.own or not here.text or not place.text.startswith(f"{here.text}\n"):
            return False
        self.rest = None
        return self.passes(Place(place.role, place.text[len(here.text) :].strip(), place.ids))


def _without(text: str, tags: Sequence[str]) -> str:
    """A text without what stands between `<tag>` and `</tag>`."""
    for tag in tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        first, *others = text.split(opening)
        kept = [first]
        for other in others:
            _, closed, behind = other.partition(closing)
            kept.append(behind if closed else f"{opening}{other}")
        text = "".join(kept)
    return text
