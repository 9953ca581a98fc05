"""Tools as the policy sees them, and the calls that it writes."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

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


def parse(text: str, tools: Mapping[str, Tool]) -> list[Call] | str | Problem:
    """The calls of a turn, or its final answer; linear in the length of the text.

    Calls in tags count before an answer in tags, because they were to be answered first. Without tags a turn is JSON of
    one call, or plain words: a tool and its arguments in order, of which the last takes the words that are left.
    """
    visible = text[-LONGEST:].rpartition("</think>")[2].strip()
    found = [part.partition(CLOSE)[0] for part in visible.split(OPEN)[1:] if CLOSE in part]
    if found:
        return _all([_written(each, tools) for each in found])
    start = visible.rfind(ANSWER_OPEN)
    if start >= 0:
        return visible[start + len(ANSWER_OPEN) :].partition(ANSWER_CLOSE)[0].strip()
    if visible.startswith("{"):
        return _all([_written(visible, tools)])
    words = visible.split()
    if words[:1] == [ANSWER]:
        return " ".join(words[1:])
    if words and words[0] in tools:
        return _all([_spoken(words, tools[words[0]])])
    return Problem(f"no tool was called; there are {_names(tools)}")


def _all(calls: list[Call | Problem]) -> list[Call] | Problem:
    problem = next((call for call in calls if isinstance(call, Problem)), None)
    return problem or [call for call in calls if isinstance(call, Call)]


def _written(text: str, tools: Mapping[str, Tool]) -> Call | Problem:
    try:
        said = read_json(text)
    except ValueError:
        return Problem("the call is no JSON")
    if not isinstance(said, dict) or not isinstance(said.get("name"), str):
        return Problem("a call is an object with `name` and `arguments`")
    arguments = said.get("arguments", {})
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


def _typed(word: str, kind: Any) -> Any:
    """A word as the value that its schema asks for; left as it is where it is none."""
    wanted = kind.get("type") if isinstance(kind, Mapping) else None
    if wanted in ("integer", "number", "boolean"):
        try:
            return read_json(word)
        except ValueError:
            return word
    return word


def _names(tools: Collection[str]) -> str:
    return ", ".join(tools)
