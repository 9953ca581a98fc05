"""What the clients of an episode have sent, so that of a request only what is new is read.

A client sends its tools and its whole conversation with each request. What it sent before is known by being equal, and
comparing texts is quick; what is new is checked, cleaned and read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from verl_hier.text import DEEPEST, repaired
from verl_hier_plugins.environments.gateway.messages import KEY, Message, without_keys

LISTS = ("messages", "input", "tools", "system")
"""Fields that come again with each request."""
MOST_LISTS = 8
"""Of each field, the latest ones: about as many conversations may go on side by side."""
MOST_MADE = 8192
"""Things that are held; then all are read once more."""
_ESCAPED = re.compile(rb"\\u(?:[dD][89a-fA-F]|00[2-7])")
"""Half a character in JSON, or a letter, digit or sign that needs no escape, as which a key could be written."""
Made = TypeVar("Made")


@dataclass
class Sent:
    """A list that was sent.

    Attributes:
        given: the list.
        sound: the same without what no text may have.
        size: bytes of its body.
        read: what it was read as: the place behind each group of elements, its messages, and its parts.
    """

    given: list[Any]
    sound: list[Any]
    size: int = 0
    read: list[tuple[int, Sequence[Message], int]] = field(default_factory=list)

    @property
    def start(self) -> int:
        """The place of the first element that is still to be read."""
        return self.read[-1][0] if self.read else 0

    def shared(self, given: Sequence[Any]) -> int:
        """How many elements another list begins with that this one begins with, too."""
        most = min(len(self.given), len(given))
        if self.given[:most] == given[:most]:
            return most
        return next((place for place in range(most) if self.given[place] != given[place]), most)

    def going_on(self, same: int, given: list[Any], sound: list[Any], size: int) -> Sent:
        """Another list, which shares its first elements with this one.

        A turn of an assistant at the end of those may have got further calls, and is read once more.
        """
        read = [each for each in self.read if each[0] <= same]
        if read and read[-1][1] and read[-1][1][-1].role == "assistant":
            read.pop()
        return Sent(self.given[:same] + given[same:], self.sound[:same] + sound, size, read)


class Body(dict[str, Any]):
    """The JSON of a request.

    Attributes:
        size: its bytes.
        plain: whether it was written without what could be half a character or the key of an episode.
    """

    def __init__(self, given: Mapping[str, Any], data: bytes) -> None:
        super().__init__(given)
        self.size = len(data)
        self.plain = KEY.encode() not in data and _ESCAPED.search(data) is None


class Heard:
    """See the module.

    Attributes:
        responses: conversations by the identity of their last answer, which a client may continue by that alone.
    """

    def __init__(self) -> None:
        self.responses: dict[str, Sequence[Message]] = {}
        self._sent: dict[str, list[Sent]] = {name: [] for name in LISTS}
        self._made: dict[tuple[Any, ...], tuple[tuple[Any, ...], Any]] = {}

    def new_bytes(self, body: Body) -> int:
        """About how many bytes of a body are new."""
        given = body.get("messages") or body.get("input")
        known = (*self._sent["messages"], *self._sent["input"]) if isinstance(given, list) else ()
        begun = (body.size - sent.size for sent in known if sent.shared(given or ()) == len(sent.given))
        return min(begun, default=body.size)

    def sound(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """A body without halves of characters and without keys of episodes.

        Lists that were sent before, and their elements, are the same objects as then.

        Raises:
            ValueError: when it is nested too deeply.
        """
        again = {name: body[name] for name in LISTS if isinstance(body.get(name), list)}
        rest = {name: value for name, value in body.items() if name not in again}
        size, plain = (body.size, body.plain) if isinstance(body, Body) else (0, False)
        sound = _deep if plain else _sound
        made = sound(rest)
        return made | {name: _sound_list(self._sent[name], given, size, sound) for name, given in again.items()}

    def sent(self, name: str, sound: list[Any]) -> Sent:
        """What is known of a list of a body, see `sound`."""
        known = reversed(self._sent[name])
        return next((sent for sent in known if sent.sound is sound), Sent(sound, sound))

    def once(self, make: Callable[..., Made], things: Sequence[Any], *more: Any) -> Made:
        """What a function makes of elements of a body, which is made once as long as they are the same objects.

        Args:
            make: the function, called with the things and what follows.
            things: the elements.
            more: what the result does not depend on, such as what errors name.
        """
        key = (make, *map(id, things))
        found = self._made.get(key)
        if found is None:
            if len(self._made) >= MOST_MADE:
                self._made.clear()
            # An identity is one for as long as its object is held.
            found = self._made[key] = (tuple(things), make(*things, *more))
        return found[1]  # type: ignore[no-any-return]


def _sound_list(known: list[Sent], given: list[Any], size: int, sound: Callable[[Any], Any]) -> list[Any]:
    """A list without what no text may have, of which only those elements are looked at that are new."""
    best, same = Sent([], []), 0
    for sent in reversed(known):
        shared = sent.shared(given)
        if shared > same:
            best, same = sent, shared
    if same == len(given) == len(best.given):
        return best.sound
    made = best.going_on(same, given, [sound(each) for each in given[same:]], size)
    if same and same == len(best.given):
        known.remove(best)
    known.append(made)
    del known[:-MOST_LISTS]
    return made.sound


def _sound(value: Any) -> Any:
    return without_keys(repaired(value))


def _deep(value: Any) -> Any:
    """A value that is nested no deeper than JSON of strangers may be."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEEPEST + 1):
        level = [
            each
            for item in level
            for each in (item.values() if type(item) is dict else item)
            if type(each) is dict or type(each) is list
        ]
        if not level:
            return value
    raise ValueError(f"nested more than {DEEPEST} levels")
