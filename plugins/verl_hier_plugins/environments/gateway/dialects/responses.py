"""OpenAI's responses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from verl_hier_plugins.environments.gateway.answers import AnsweredCall, PolicyAnswer
from verl_hier_plugins.environments.gateway.demands import Demand
from verl_hier_plugins.environments.gateway.dialects import chat, reading
from verl_hier_plugins.environments.gateway.dialects.events import event
from verl_hier_plugins.environments.gateway.heard import Heard
from verl_hier_plugins.environments.gateway.messages import Message, PolicyRequest, RefusedRequest, Toolbox, message_of

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
TEXTS = ("input_text", "output_text", "text", "refusal")
NOT_DONE = {
    "background": "answers while its client waits; ask without `background`",
    "conversation": "keeps no conversations beside `previous_response_id`",
    "prompt": "has no templates of prompts; send `instructions` and `input`",
}
SERVED = ("web_search", "file_search", "code_interpreter", "image_generation", "mcp", "tool_search")
"""Beginnings of the types of tools that an endpoint runs itself; the policy has none, and learns of none."""
CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
RESULTS = ("function_call_output", "custom_tool_call_output")
FREE = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""Arguments of a tool that takes a text: one."""
REPEATED = ("instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "previous_response_id", "tools")


@dataclass(frozen=True)
class _Asked:
    """What is kept of a request until it is answered.

    Attributes:
        identity: of the response.
        repeated: fields of the request that the response repeats.
        namespaces: of tools that have one, by name.
        free: names of the tools that take a text.
        sequence: numbers the events.
        said: the messages, without the instructions, which the next response does not inherit.
        kept: see `Heard.responses`.
    """

    identity: str
    repeated: Mapping[str, Any]
    namespaces: Mapping[str, str]
    free: frozenset[str]
    said: Sequence[Message]
    kept: dict[str, Sequence[Message]]
    sequence: Iterator[int] = field(default_factory=count)


@dataclass
class _Box:
    """The tools of a request, the namespaces of those that have one, those that take a text, and how many parts."""

    tools: Toolbox = field(default_factory=Toolbox)
    namespaces: dict[str, str] = field(default_factory=dict)
    free: set[str] = field(default_factory=set)
    parts: int = 0


def read(body: Any, agent: str, most_characters: int, heard: Heard | None = None) -> PolicyRequest:
    """See `Dialect.read`."""
    heard = heard or Heard()
    body, kept = reading.sound(body, heard), heard.responses
    for name, sentence in NOT_DONE.items():
        if body.get(name):
            raise RefusedRequest(f"this endpoint {sentence}.")
    given = body.get("input")
    items: Any = [{"role": "user", "content": given}] if isinstance(given, str) else reading.objects(given, "input")
    box = heard.once(_toolbox, [body.get("tools")])
    parts = reading.parts_of(body, "input", before=box.parts)
    read = reading.messages_of(heard.sent("input", items), _groups, _read_items, parts)
    said = [*_earlier(body.get("previous_response_id"), kept), *read]
    if not said:
        raise RefusedRequest("`input` has to be a text or a list with at least one item.")
    instructions = reading.text_of(body.get("instructions"), "`instructions`", TEXTS)
    request = PolicyRequest(
        (message_of("system", instructions), *said) if instructions else tuple(said),
        box.tools,
        agent,
        (),
        reading.most_tokens(body, "max_output_tokens"),
        reading.model_of(body),
        reading.streams(body),
        demand=_demand(body, box.tools),
    )
    # The same whatever was asked beside it, so that an agent that is run again reads the same.
    name, number = f"resp_{request.digest[:24]}", 0
    while (identity := f"{name}_{number}") in kept:
        number += 1
    kept[identity] = ()
    repeated = {each: body[each] for each in REPEATED if body.get(each) is not None}
    asked = _Asked(identity, repeated, box.namespaces, frozenset(box.free), said, kept)
    return reading.fitting(request.with_state(asked), most_characters)


def _demand(body: Mapping[str, Any], tools: Toolbox) -> Demand:
    chosen, names = body.get("tool_choice") or "auto", None
    if isinstance(chosen, Mapping):
        several = chosen.get("type") == "allowed_tools"
        listed = reading.objects(chosen.get("tools") if several else [chosen], "tool_choice")
        names, chosen = [each.get("name") for each in listed], chosen.get("mode") if several else "required"
    said = body.get("text")
    form = reading.schema_of(said.get("format") if isinstance(said, Mapping) else None, "text.format")
    return reading.demand_of(tools, chosen, names, body.get("parallel_tool_calls") is False, form)


def _earlier(identity: Any, kept: Mapping[str, Sequence[Message]]) -> Sequence[Message]:
    if identity is None:
        return ()
    if not isinstance(identity, str) or not kept.get(identity):
        raise RefusedRequest(f"there is no response {identity!r:.80} in this episode; see `previous_response_id`.", 404)
    return kept[identity]


def _groups(items: Sequence[Mapping[str, Any]], start: int) -> reading.Groups:
    """The items that are one message each: a text of the assistant and the calls behind it, or else one alone."""
    said: list[Mapping[str, Any]] = []
    first = start
    for place in range(start, len(items)):
        item = items[place]
        kind = item.get("type", "message")
        if kind == "reasoning":
            continue
        calls = isinstance(kind, str) and kind in CALLS
        if said and not calls:
            yield first, said
            said = []
        if calls or (kind == "message" and item.get("role") == "assistant"):
            first = first if said else place
            said.append(item)
        else:
            yield place, (item,)
    if said:
        yield first, said


def _read_items(items: Sequence[Any], place: str) -> reading.Read:
    parts, where = 0, f"item {place}"
    for item in items:
        parts = reading.parts_of(item, "content", "output", before=parts)
    first, kind = items[0], items[0].get("type", "message")
    if isinstance(kind, str) and kind in CALLS:
        return [message_of("assistant", "", [_call(item) for item in items])], parts
    if kind == "message":
        role = first.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise RefusedRequest(f"{where} has to have a `role` of {', '.join(ROLES)}.")
        content = reading.text_of(first.get("content"), where, TEXTS)
        return [message_of(ROLES[role], content, [_call(item) for item in items[1:]])], parts
    if kind in RESULTS:
        output = reading.text_of(first.get("output"), f"the `output` of {where}", TEXTS)
        return [message_of("tool", output, result_of=str(first.get("call_id") or ""))], parts
    raise RefusedRequest(f"{where} is of type {kind!r:.60}, which this endpoint does not know.")


def _call(item: Mapping[str, Any]) -> tuple[str, str, Any]:
    kind = item["type"]
    given = item.get(CALLS[kind])
    arguments = reading.arguments_of(given) if kind == "function_call" else {"input": given}
    return str(item.get("call_id") or ""), str(item.get("name") or ""), arguments


def _toolbox(given: Any) -> _Box:
    box = _Box()
    _add_tools(box, given)
    return box


def _add_tools(box: _Box, given: Any, space: str = "") -> None:
    box.parts = reading.parts_of({"tools": given}, "tools", before=box.parts)
    for each in reading.objects(given, "tools"):
        kind = each.get("type")
        if kind == "namespace" and not space:
            _add_tools(box, each.get("tools"), str(each.get("name") or ""))
            continue
        if isinstance(kind, str) and kind.startswith(SERVED):
            continue
        if kind not in ("function", "custom"):
            raise RefusedRequest(f"a tool is of type {kind!r:.60}; `function` and `custom` are known here.")
        schema = FREE if kind == "custom" else each.get("parameters")
        tool = reading.tool_of(each.get("name"), each.get("description"), schema)
        box.tools[tool.name] = tool
        if space:
            box.namespaces[tool.name] = space
        if kind == "custom":
            box.free.add(tool.name)


def whole(request: PolicyRequest, answers: Sequence[PolicyAnswer]) -> dict[str, Any]:
    """See `Dialect.whole`; the response can be continued from now on."""
    (answer,) = answers
    asked: _Asked = request.state
    asked.kept[asked.identity] = (*asked.said, answer.message)
    usage = {
        "input_tokens": answer.usage.prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": answer.usage.answer,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.usage.prompt + answer.usage.answer,
    }
    output = [_item(request, answer, call) for call in answer.calls]
    if answer.text or not output:
        output.insert(0, _text_item(answer))
    if answer.finish == "length":
        ended = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    else:
        ended = {"status": "completed"}
    return {**_response(request), **request.state.repeated, **ended, "output": output, "usage": usage}


def _response(request: PolicyRequest) -> dict[str, Any]:
    """A response that has not ended; of the request, tools and all, the one that has ended says again what it was."""
    return {
        "id": request.state.identity,
        "object": "response",
        "created_at": 1,
        "model": request.model,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "output": [],
        "instructions": None,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "tool_choice": "auto",
        "tools": [],
        "metadata": {},
        "temperature": None,
        "top_p": None,
        "usage": None,
    }


def _text_item(answer: PolicyAnswer) -> dict[str, Any]:
    content = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
    status = "incomplete" if answer.finish == "length" else "completed"
    return {
        "id": f"msg_{answer.number}", "type": "message", "role": "assistant", "status": status, "content": [content]
    }  # fmt: skip


def _item(request: PolicyRequest, answer: PolicyAnswer, call: AnsweredCall) -> dict[str, Any]:
    kind, said = "function_call", json.dumps(call.arguments, ensure_ascii=False)
    if call.name in request.state.free:
        given = call.arguments.get("input")
        kind, said = "custom_tool_call", given if isinstance(given, str) else said
    item = {"id": call.identity.replace("call_", "fc_", 1), "type": kind, "status": "completed"}
    item |= {"call_id": call.identity, "name": call.name, CALLS[kind]: said}
    space = request.state.namespaces.get(call.name)
    return item | {"namespace": space} if space else item


def opening(request: PolicyRequest) -> Iterator[bytes]:
    """That the response is under way."""
    for name in ("created", "in_progress"):
        yield _event(request, f"response.{name}", response=_response(request))


def waiting(request: PolicyRequest, number: int) -> bytes:
    """That it still is; clients take a comment for silence."""
    return _event(request, "response.in_progress", response=_response(request))


def events(request: PolicyRequest, answers: Sequence[PolicyAnswer]) -> Iterator[bytes]:
    """Each item in events of its own, and the whole response."""
    body = whole(request, answers)
    for place, item in enumerate(body["output"]):
        here = {"output_index": place, "item_id": item["id"]}
        text = item["type"] == "message"
        field = "content" if text else CALLS[item["type"]]
        begun = {**item, "status": "in_progress", field: [] if text else ""}
        yield _event(request, "response.output_item.added", output_index=place, item=begun)
        if text:
            yield from _text_events(request, item["content"][0], {**here, "content_index": 0})
        else:
            name = "function_call_arguments" if item["type"] == "function_call" else "custom_tool_call_input"
            yield _event(request, f"response.{name}.delta", **here, delta=item[field])
            yield _event(request, f"response.{name}.done", **here, **{field: item[field], "name": item["name"]})
        yield _event(request, "response.output_item.done", output_index=place, item=item)
    yield _event(request, f"response.{body['status']}", response=body)


def _text_events(request: PolicyRequest, part: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[bytes]:
    said = {**here, "logprobs": []}
    yield _event(request, "response.content_part.added", **here, part={**part, "text": ""})
    yield _event(request, "response.output_text.delta", **said, delta=part["text"])
    yield _event(request, "response.output_text.done", **said, text=part["text"])
    yield _event(request, "response.content_part.done", **here, part=part)


def _event(request: PolicyRequest, name: str, /, **said: Any) -> bytes:
    return event({"type": name, "sequence_number": next(request.state.sequence), **said}, name)


def said(refused: RefusedRequest) -> dict[str, Any]:
    """An error as clients of OpenAI read it."""
    return chat.said(refused)


def broken(request: PolicyRequest, refused: RefusedRequest) -> Iterator[bytes]:
    """A response that has failed."""
    code = "context_length_exceeded" if refused.too_long else "server_error"
    failed = {"status": "failed", "error": {"code": code, "message": str(refused)}}
    yield _event(request, "response.failed", response=_response(request) | failed)
