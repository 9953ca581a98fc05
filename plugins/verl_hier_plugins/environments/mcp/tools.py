"""Tools as the policy sees them, and the calls that it writes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from verl_hier.environments.thoughts import blank_thoughts, json_object_end
from verl_hier.text import read_json

OPEN, CLOSE = "<tool_call>", "</tool_call>"
ANSWER_OPEN, ANSWER_CLOSE = "<answer>", "</answer>"
ANSWER = "answer"
LONGEST = 20_000
"""Characters of a turn that are read."""
HERMES = (
    "Call a tool with <tool_call>"
    '{"name": …, "arguments": {…}}'
    "</tool_call>; when you are done, say <answer>your answer</answer>."
)
_FORM = "a call is an object with `name` and `arguments`"
_BESIDE = {"name", "id", "type"}
"""What a call may have that names no arguments."""
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class Tool:
    """A tool of the server.

    Attributes:
        name: its name.
        description: what it does.
        schema: JSON schema of its arguments, an object.
        read_only: whether the server says that it changes nothing.
        destructive: whether the server says that it destroys something.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    read_only: bool
    destructive: bool

    def without(self, argument: str) -> Tool:
        """The tool without an argument that the policy does not see."""
        kept = {name: value for name, value in self.schema.get("properties", {}).items() if name != argument}
        needed = [name for name in self.schema.get("required", ()) if name != argument]
        schema = {**self.schema, "properties": kept, "required": needed}
        return Tool(self.name, self.description, schema, self.read_only, self.destructive)

    def shown(self) -> str:
        """One line of JSON, as chat templates of models show tools."""
        function = {"name": self.name, "description": self.description, "parameters": self.schema}
        return json.dumps({"type": "function", "function": function}, ensure_ascii=False)

    def plainly(self) -> str:
        """Its name and the names of its arguments."""
        return " ".join((self.name, *(f"<{name}>" for name in self.schema.get("properties", {}))))


@dataclass(frozen=True)
class Call:
    """A call of a tool."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Problem:
    """Why a turn is no action, as the policy reads it."""

    text: str


def tool_of(tool: Any) -> Tool:
    """A tool as the server lists it; one without a schema takes no arguments."""
    hints = tool.annotations
    return Tool(
        tool.name,
        tool.description or "",
        sound_schema(tool.input_schema),
        read_only=bool(hints and hints.read_only_hint),
        destructive=bool(hints and hints.destructive_hint),
    )


def sound_schema(schema: Any) -> Mapping[str, Any]:
    """A schema whose `properties` are an object and whose `required` is a list, whatever a server says."""
    if not isinstance(schema, Mapping) or not schema:
        return {"type": "object", "properties": {}}
    faults: dict[str, Any] = {}
    if not isinstance(schema.get("properties", {}), Mapping):
        faults["properties"] = {}
    if not isinstance(schema.get("required", []), list):
        faults["required"] = []
    return {**schema, **faults} if faults else schema


@dataclass(frozen=True)
class Turn:
    """What a turn says, as it is read.

    Attributes:
        found: its calls, its final answer, or why it is neither.
        before: the text before its first call, thoughts included; all of it where there is no call.
    """

    found: list[Call] | str | Problem
    before: str


def parse(text: str, tools: Mapping[str, Tool], plain: bool = False) -> list[Call] | str | Problem:
    """The calls of a turn, or its final answer; see `read_turn`."""
    return read_turn(text, tools, plain).found


def read_turn(text: str, tools: Mapping[str, Tool], plain: bool = False) -> Turn:
    """Read a turn; linear in the length of the text.

    Thoughts hold neither calls nor answers. Calls in tags count before an answer in tags, because they were to be
    answered first; one that is broken, or has no end tag, makes the turn none. Without tags a turn is JSON of one call,
    or plain words: a tool and its arguments in order, of which the last takes the words that are left.

    Args:
        text: the turn; its last `LONGEST` characters are read.
        tools: by name.
        plain: whether the form is plain words. In the form with tags a text may be prose that begins with a tool's
            name, so plain words are a call only where they are as short as one, and no sentence.
    """
    visible = blank_thoughts(text)[-LONGEST:]
    skipped = max(0, len(text) - LONGEST)
    begin, found = _in_tags(visible, tools)
    if found:
        return Turn(_all(found), text[: skipped + begin])
    begin, said = skipped + len(visible) - len(visible.lstrip()), visible.strip()
    start = said.rfind(ANSWER_OPEN, json_object_end(said, 0) or 0)
    if start >= 0:
        return Turn(said[start + len(ANSWER_OPEN) :].partition(ANSWER_CLOSE)[0].strip(), text)
    if said.startswith("{"):
        return Turn(_all([_written(said, tools)]), text[:begin])
    words = said.split()
    if words[:1] == [ANSWER]:
        return Turn(" ".join(words[1:]), text)
    if words and words[0] in tools and (plain or _is_short(words, tools[words[0]])):
        return Turn(_all([_spoken(words, tools[words[0]])]), text[:begin])
    return Turn(Problem(f"no tool was called; there are {_names(tools)}"), text)


def _in_tags(visible: str, tools: Mapping[str, Tool]) -> tuple[int, list[Call | Problem]]:
    """Where the first call in tags begins, and all of them. A tag without an end and without JSON is prose."""
    found: list[Call | Problem] = []
    first, place = -1, 0
    while (start := visible.find(OPEN, place)) >= 0:
        inside = start + len(OPEN)
        # An end tag within a string of the object does not end the call.
        read = json_object_end(visible, inside)
        place = read or inside
        end, following = visible.find(CLOSE, place), visible.find(OPEN, place)
        if end < 0 or 0 <= following < end:
            if read is None and not visible[inside : inside + 100].lstrip().startswith("{"):
                continue
            found.append(Problem(f"a call has no end, which is {CLOSE}"))
        else:
            found.append(_written(visible[inside:end].strip(), tools))
            place = end + len(CLOSE)
        first = start if first < 0 else first
    return first, found


def _all(calls: list[Call | Problem]) -> list[Call] | Problem:
    problem = next((call for call in calls if isinstance(call, Problem)), None)
    return problem or [call for call in calls if isinstance(call, Call)]


def _written(text: str, tools: Mapping[str, Tool]) -> Call | Problem:
    try:
        said = read_json(text)
    except ValueError:
        return Problem("the call is no JSON")
    if not isinstance(said, dict) or not isinstance(said.get("name"), str):
        return Problem(_FORM)
    arguments = said.get("arguments", said.get("parameters"))
    if arguments is None and not {"arguments", "parameters"} & set(said):
        # A tool without arguments may be called without them; anything else is some other object that has a name.
        arguments = {} if set(said) <= _BESIDE else None
    if not isinstance(arguments, dict):
        return Problem("the `arguments` of a call are an object")
    if said["name"] not in tools:
        return Problem(f"there is no tool {said['name']!r:.60}; there are {_names(tools)}")
    return Call(said["name"], arguments)


def _spoken(words: list[str], tool: Tool) -> Call | Problem:
    names = list(tool.schema.get("properties", {}))
    values = words[1:]
    if len(values) > len(names) > 0:
        values = [*values[: len(names) - 1], " ".join(values[len(names) - 1 :])]
    if len(values) > len(names):
        return Problem(f"say {tool.plainly()}")
    kinds = tool.schema.get("properties", {})
    return Call(tool.name, {name: _typed(v, kinds[name]) for name, v in zip(names, values, strict=False)})


def _is_short(words: list[str], tool: Tool) -> bool:
    """Whether words have one for each argument, or one more, of the types that it asks for, and end no sentence."""
    call, kinds = _spoken(words, tool), tool.schema.get("properties", {})
    return (
        isinstance(call, Call)
        and len(words) <= len(kinds) + 2
        and not words[-1].endswith((".", "!", "?", ":", ",", ";"))
        and all(_fits(value, kinds[name]) for name, value in call.arguments.items())
    )


def _fits(value: Any, kind: Any) -> bool:
    wanted = kind.get("type") if isinstance(kind, Mapping) else None
    return not isinstance(value, str) or wanted not in ("integer", "number", "boolean")


def _typed(word: str, kind: Any) -> Any:
    """A word as the number or truth value that its schema asks for; left as it is where it is none."""
    wanted = kind.get("type") if isinstance(kind, Mapping) else None
    if wanted == "boolean":
        return {"true": True, "false": False}.get(word, word)
    if wanted not in ("integer", "number") or not _NUMBER.fullmatch(word):
        return word
    try:
        value = json.loads(word)
    except ValueError:  # an integer of thousands of digits
        return word
    return value if math.isfinite(value) else word


def _names(tools: Collection[str]) -> str:
    return ", ".join(tools)
