"""What the dialects have in common: how strictly a body is read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from verl_hier.text import read_json
from verl_hier_plugins.environments.gateway.demands import Demand
from verl_hier_plugins.environments.gateway.heard import Heard, Sent
from verl_hier_plugins.environments.gateway.messages import Message, PolicyRequest, RefusedRequest, without_keys
from verl_hier_plugins.environments.mcp.tools import Tool, sound_schema

MOST_PARTS = 2000
"""Messages, their parts and calls, and tools of a request together: also those without a character are work."""
MOST_TOKENS = 2**31
"""Of a limit of tokens that a client may name; a larger one says no more than this."""
MOST_STOPS = 16


def sound(body: Any, heard: Heard) -> Mapping[str, Any]:
    """The body of a request, in which no text has half a character or the key of an episode.

    Raises:
        RefusedRequest: when it is no object, or nested too deeply.
    """
    if not isinstance(body, dict):
        raise RefusedRequest("the body of a request is a JSON object.")
    try:
        return heard.sound(body)
    except ValueError as error:
        raise RefusedRequest(f"the body of a request is {error}.") from error


def some(given: Any, name: str) -> list[Any]:
    """A list with something in it.

    Raises:
        RefusedRequest: when it is none.
    """
    if not isinstance(given, list) or not given:
        raise RefusedRequest(f"`{name}` has to be a list with at least one message.")
    return given


Read = tuple[Sequence[Message], int]
"""What an element of a request is read as: its messages, and the number of its parts."""


def parts_of(thing: Any, *lists: str, before: int = 0) -> int:
    """How many elements some lists of a thing have, and those before it.

    Raises:
        RefusedRequest: when they are too many to be read.
    """
    if isinstance(thing, dict):
        before += sum(len(each) for each in map(thing.get, lists) if isinstance(each, list))
    return few(before)


def few(parts: int) -> int:
    """A number of parts that are read.

    Raises:
        RefusedRequest: when they are too many.
    """
    if parts > MOST_PARTS:
        raise RefusedRequest(
            f"the request has too many messages, parts of messages, calls and tools; at most {MOST_PARTS} are read.",
            too_long=True,
        )
    return parts


Groups = Iterable[tuple[int, Sequence[Any]]]
"""Elements of a request that are read together, each with the place of the first."""


def alone(given: Sequence[Any], start: int) -> Groups:
    """Elements from a place on in groups of one each."""
    return ((place, (given[place],)) for place in range(start, len(given)))


def messages_of(
    sent: Sent, groups: Callable[[Sequence[Any], int], Groups], read: Callable[[Sequence[Any], str], Read], parts: int
) -> list[Message]:
    """The messages of a list of a request, of which those are read that were not sent before.

    Args:
        sent: the list.
        groups: its groups from a place on.
        read: reads the elements of a group, whose place names it in sentences.
        parts: that were counted already.

    Raises:
        RefusedRequest: when there are too many parts.
    """
    parts += sum(count for _, _, count in sent.read)
    for place, group in groups(sent.sound, sent.start):
        found, count = read(group, str(place))
        parts = few(parts + count)
        sent.read.append((place + len(group), found, count))
    return [message for _, found, _ in sent.read for message in found]


def text_of(content: Any, where: str, kinds: Collection[str], between: str = "") -> str:
    """The text of a message, which may come in parts.

    Args:
        content: a text, or a list of parts.
        where: names the message in a sentence.
        kinds: types of the parts that are texts.
        between: what stands between two parts.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RefusedRequest(f"the `content` of {where} has to be a text or a list of text parts.")
    return between.join(part_text(part, where, kinds) for part in content)


def part_text(part: Any, where: str, kinds: Collection[str]) -> str:
    """The text of a part of a message."""
    if isinstance(part, Mapping) and part.get("type") in kinds and isinstance(part.get("type"), str):
        text = part.get("refusal") if part["type"] == "refusal" else part.get("text")
        if isinstance(text, str):
            return text
    raise RefusedRequest(f"{where} has a part that is no text, and this policy reads text only.")


def arguments_of(given: Any) -> Any:
    """The arguments of a call: what is written, where they are JSON, or else the text."""
    given = given or "{}"
    with contextlib.suppress(ValueError):  # the policy reads what was written
        return without_keys(read_json(given)) if isinstance(given, str) else given
    return given


def tool_of(name: Any, description: Any, schema: Any) -> Tool:
    """A tool.

    Raises:
        RefusedRequest: when it has no name, or its arguments no names.
    """
    if not isinstance(name, str):
        raise RefusedRequest("each of `tools` has to have a `name`.")
    if isinstance(schema, Mapping) and not isinstance(schema.get("properties", {}), Mapping):
        raise RefusedRequest(f"the parameters of tool {name!r:.60} have no `properties`.")
    return Tool(name, str(description or ""), sound_schema(schema), read_only=False, destructive=False)


def objects(given: Any, name: str) -> Sequence[Mapping[str, Any]]:
    """A list of objects; nothing where nothing is given."""
    if given in (None, [], ()):
        return ()
    if not isinstance(given, list):
        raise RefusedRequest(f"`{name}` has to be a list.")
    if not all(isinstance(each, dict) for each in given):
        raise RefusedRequest(f"each of `{name}` has to be an object.")
    return given


def stops(given: Any, name: str = "stop") -> tuple[str, ...]:
    """Strings that end an answer."""
    stop = [given] if isinstance(given, str) else given or []
    if not isinstance(stop, list) or len(stop) > MOST_STOPS or not all(isinstance(each, str) and each for each in stop):
        raise RefusedRequest(f"`{name}` has to be a text or a list of at most {MOST_STOPS} texts.")
    return tuple(stop)


def most_tokens(body: Mapping[str, Any], *names: str) -> int | None:
    """The limit of an answer, by the first of the names that is given."""
    name = next((name for name in names if body.get(name) is not None), None)
    given = None if name is None else body[name]
    if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given < 1):
        raise RefusedRequest(f"`{name}` has to be a whole number of at least 1.")
    return None if given is None else min(given, MOST_TOKENS)


def streams(body: Mapping[str, Any]) -> bool:
    """Whether the answer is sent as events."""
    if body.get("stream") not in (None, True, False):
        raise RefusedRequest("`stream` has to be true or false.")
    return bool(body.get("stream"))


def model_of(body: Mapping[str, Any]) -> str:
    """Name of the model, which the answer repeats."""
    return str(body.get("model") or "policy")[:200]


def fitting(request: PolicyRequest, most_characters: int) -> PolicyRequest:
    """A request that is not too long.

    Raises:
        RefusedRequest: for one that is.
    """
    if request.characters > most_characters:
        raise RefusedRequest(
            f"the messages have {request.characters} characters, more than the {most_characters} of "
            "hier.environment.request_characters.",
            too_long=True,
        )
    return request


def demand_of(
    tools: Mapping[str, Tool], calls: Any, names: Any, one: bool = False, form: Mapping[str, Any] | None = None
) -> Demand:
    """What a request wants of its answer.

    Args:
        tools: that it has.
        calls: `auto`, `none` or `required`.
        names: the tools that may be called; None for all.
        one: whether one call is all that may be made.
        form: schema of the JSON that is wanted.

    Raises:
        RefusedRequest: when there is nothing to call, or no tool of a name.
    """
    if calls not in ("auto", "none", "required"):
        raise RefusedRequest("`tool_choice` has to be that tools may, must or must not be called, or one of the tools.")
    if names is not None and not (isinstance(names, list) and names and all(isinstance(each, str) for each in names)):
        raise RefusedRequest("`tool_choice` has to name tools.")
    for name in names or ():
        if name not in tools:
            raise RefusedRequest(f"`tool_choice` names {name!r:.60}, which is none of `tools`.")
    if not tools:
        if calls == "required":
            raise RefusedRequest("`tool_choice` wants a call, and there are no `tools`.")
        return Demand(json=form)
    return Demand(calls, None if names is None else tuple(names), one, form)


def schema_of(form: Any, name: str, held: str | None = None) -> Mapping[str, Any] | None:
    """The schema of the JSON that an answer has to be; None where any text will do.

    Args:
        form: `{type: text | json_object | json_schema, …}`.
        name: of the field, for sentences.
        held: the field in which the schema stands beside its name; None where it stands in the form itself.

    Raises:
        RefusedRequest: for a form that is none, or another one.
    """
    if form is None:
        return None
    kind = form.get("type") if isinstance(form, Mapping) else None
    if kind in ("text", "json_object"):
        return None if kind == "text" else {}
    holder = form.get(held) if held and isinstance(form, Mapping) else form
    schema = holder.get("schema") if isinstance(holder, Mapping) else None
    if kind != "json_schema" or not isinstance(schema, Mapping):
        raise RefusedRequest(f"`{name}` has to be of type text, json_object or json_schema with a `schema`.")
    return schema
