"""Anthropic's messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from verl_hier_plugins.environments.gateway.answers import PolicyAnswer
from verl_hier_plugins.environments.gateway.demands import Demand
from verl_hier_plugins.environments.gateway.dialects import reading
from verl_hier_plugins.environments.gateway.dialects.events import event
from verl_hier_plugins.environments.gateway.heard import Heard
from verl_hier_plugins.environments.gateway.messages import Message, PolicyRequest, RefusedRequest, Toolbox, message_of

ROLES = ("user", "assistant", "system")
TEXTS = ("text",)
THOUGHTS = ("thinking", "redacted_thinking")
"""Parts that come back from other models; the policy reads the tokens of its own thoughts as it wrote them."""
SERVED = ("web_search", "web_fetch", "code_execution", "tool_search", "mcp_toolset", "advisor")
"""Beginnings of the types of tools that an endpoint runs itself; the policy has none, and learns of none."""
CHOICES = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}
FINISHES = {"stop": "end_turn", "string": "stop_sequence", "length": "max_tokens", "calls": "tool_use"}
KINDS = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large", 503: "overloaded_error"}


def read(body: Any, agent: str, most_characters: int, heard: Heard | None = None) -> PolicyRequest:
    """See `Dialect.read`; each result of a tool is a message of its own, as it is in other dialects."""
    heard = heard or Heard()
    body = reading.sound(body, heard)
    given = reading.some(body.get("messages"), "messages")
    parts = reading.parts_of(body, "messages", "tools", "system")
    messages = [*heard.once(_instructions, [body.get("system")])]
    messages += reading.messages_of(heard.sent("messages", given), reading.alone, _read_messages, parts)
    if not messages:
        raise RefusedRequest("the messages say nothing.")
    tools = heard.once(_tools, [body.get("tools")])
    request = PolicyRequest(
        tuple(messages),
        tools,
        agent,
        reading.stops(body.get("stop_sequences"), "stop_sequences"),
        reading.most_tokens(body, "max_tokens"),
        reading.model_of(body),
        reading.streams(body),
        demand=_demand(body, tools),
    )
    return reading.fitting(request, most_characters)


def _demand(body: Mapping[str, Any], tools: Toolbox) -> Demand:
    chosen = body.get("tool_choice") or {"type": "auto"}
    kind = chosen.get("type") if isinstance(chosen, Mapping) else None
    if not isinstance(kind, str) or kind not in CHOICES:
        raise RefusedRequest(f"`tool_choice` has to be an object with a `type` of {', '.join(CHOICES)}.")
    config = body.get("output_config")
    form = config.get("format") if isinstance(config, Mapping) else body.get("output_format")
    return reading.demand_of(
        tools,
        CHOICES[kind],
        [chosen.get("name")] if kind == "tool" else None,
        bool(chosen.get("disable_parallel_tool_use")),
        reading.schema_of(form, "output_config.format"),
    )


def _instructions(given: Any) -> list[Message]:
    system = reading.text_of(given, "`system`", TEXTS, "\n")
    return [message_of("system", system)] if system else []


def _read_messages(group: Sequence[Any], place: str) -> reading.Read:
    (given,) = group
    parts = reading.parts_of(given, "content")
    content = given.get("content") if isinstance(given, Mapping) else None
    for part in content if isinstance(content, list) else ():
        parts = reading.parts_of(part, "content", before=parts)
    return [*_messages(given, f"message {place}")], parts


def _messages(given: Any, where: str) -> Iterator[Message]:
    if not isinstance(given, Mapping) or not isinstance(given.get("role"), str) or given["role"] not in ROLES:
        raise RefusedRequest(f"{where} has to be an object with a `role` of {', '.join(ROLES)}.")
    role, content = given["role"], given.get("content")
    if not isinstance(content, list):
        yield message_of(role, reading.text_of(content, where, TEXTS))
        return
    texts: list[str] = []
    calls: list[tuple[str, str, Any]] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if role == "user" and kind == "tool_result":
            if texts:
                yield message_of(role, "\n".join(texts))
                texts = []
            yield _result(part, where)
        elif role == "assistant" and kind == "tool_use":
            calls.append(_call(part))
        elif role == "assistant" and kind in THOUGHTS:
            continue
        else:
            texts.append(reading.part_text(part, where, TEXTS))
    if texts or calls:
        yield message_of(role, "\n".join(texts), calls)


def _call(part: Mapping[str, Any]) -> tuple[str, str, Any]:
    return str(part.get("id") or ""), str(part.get("name") or ""), reading.arguments_of(part.get("input"))


def _result(part: Mapping[str, Any], where: str) -> Message:
    text = reading.text_of(part.get("content"), f"a result in {where}", TEXTS, "\n")
    return message_of("tool", text, result_of=str(part.get("tool_use_id") or ""))


def _tools(given: Any) -> Toolbox:
    found = Toolbox()
    for each in reading.objects(given, "tools"):
        kind = each.get("type")
        if isinstance(kind, str) and kind.startswith(SERVED):
            continue
        if kind not in (None, "custom"):
            raise RefusedRequest(f"the tool {each.get('name')!r:.60} of type {kind!r:.60} has no `input_schema`.")
        tool = reading.tool_of(each.get("name"), each.get("description"), each.get("input_schema"))
        found[tool.name] = tool
    return found


def whole(request: PolicyRequest, answers: Sequence[PolicyAnswer]) -> dict[str, Any]:
    """See `Dialect.whole`."""
    (answer,) = answers
    content: list[dict[str, Any]] = [{"type": "text", "text": answer.text, "citations": None}] if answer.text else []
    for call in answer.calls:
        content.append({"type": "tool_use", "id": call.identity, "name": call.name, "input": dict(call.arguments)})
    return {
        "id": f"msg_{answer.number}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": content,
        "stop_reason": FINISHES[answer.finish],
        "stop_sequence": answer.stop or None,
        "usage": {
            "input_tokens": answer.usage.prompt,
            "output_tokens": answer.usage.answer,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        },
    }


def opening(request: PolicyRequest) -> Iterator[bytes]:
    """Nothing: the first event says the tokens of the prompt."""
    return iter(())


def waiting(request: PolicyRequest, number: int) -> bytes:
    """A `ping`, which may come at any place."""
    return event({"type": "ping"}, "ping")


def events(request: PolicyRequest, answers: Sequence[PolicyAnswer]) -> Iterator[bytes]:
    """`message_start`, each part of the content in three events, `message_delta` with the usage, `message_stop`."""
    body = whole(request, answers)

    def said(name: str, **more: Any) -> bytes:
        return event({"type": name, **more}, name)

    started = {**body["usage"], "output_tokens": 0}
    yield said(
        "message_start", message={**body, "content": [], "stop_reason": None, "stop_sequence": None, "usage": started}
    )
    for place, block in enumerate(body["content"]):
        if block["type"] == "text":
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            written = json.dumps(block["input"], ensure_ascii=False)
            empty, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": written}
        yield said("content_block_start", index=place, content_block=empty)
        yield said("content_block_delta", index=place, delta=delta)
        yield said("content_block_stop", index=place)
    ended = {name: body[name] for name in ("stop_reason", "stop_sequence")}
    yield said("message_delta", delta=ended, usage=body["usage"])
    yield said("message_stop")


def said(refused: RefusedRequest) -> dict[str, Any]:
    """An error as clients of Anthropic read it; by these words they know that a conversation is to be shortened."""
    kind = KINDS.get(refused.status, "invalid_request_error")
    sentence = f"prompt is too long: {refused}" if refused.too_long else str(refused)
    return {"type": "error", "error": {"type": kind, "message": sentence}, "request_id": None}


def broken(request: PolicyRequest, refused: RefusedRequest) -> Iterator[bytes]:
    """An `error`."""
    yield event(said(refused), "error")
