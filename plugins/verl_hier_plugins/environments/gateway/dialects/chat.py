"""OpenAI's chat completions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from verl_hier_plugins.environments.gateway.answers import PolicyAnswer, Usage
from verl_hier_plugins.environments.gateway.dialects import reading
from verl_hier_plugins.environments.gateway.dialects.events import COMMENT, DONE, event
from verl_hier_plugins.environments.gateway.messages import Kept, Message, PolicyRequest, RefusedRequest, message_of
from verl_hier_plugins.environments.mcp.tools import Tool

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
NOT_DONE = {
    "logprobs": "returns no log-probs; ask without `logprobs`",
    "functions": "knows `tools` in place of the older `functions`",
    "audio": "speaks text only",
}
"""Fields of a request that would change what is answered, and are refused rather than ignored."""
TEXTS = ("text", "refusal")
FINISHES = {"stop": "stop", "string": "stop", "length": "length", "calls": "tool_calls"}


def read(body: Any, agent: str, most_characters: int, kept: Kept | None = None) -> PolicyRequest:
    """See `Dialect.read`."""
    body = reading.sound(body)
    for name, sentence in NOT_DONE.items():
        if body.get(name):
            raise RefusedRequest(f"this endpoint {sentence}.")
    if body.get("n", 1) not in (None, 1):
        raise RefusedRequest("this endpoint gives one answer a request; ask with n=1, as often as you like.")
    form = body.get("response_format")
    if isinstance(form, Mapping) and form.get("type") != "text":
        raise RefusedRequest(
            "this endpoint forces no format on an answer; ask without `response_format`, or by a tool."
        )
    given = reading.some(body.get("messages"), "messages")
    reading.refuse_many(body, *given, lists=("messages", "tools", "content", "tool_calls"))
    more = body.get("stream_options") or {}
    if not isinstance(more, Mapping):
        raise RefusedRequest("`stream_options` has to be an object.")
    request = PolicyRequest(
        tuple(_message(each, f"message {place}") for place, each in enumerate(given)),
        {} if body.get("tool_choice") == "none" else _tools(body.get("tools")),
        agent,
        reading.stops(body.get("stop")),
        reading.most_tokens(body, "max_completion_tokens", "max_tokens"),
        reading.model_of(body),
        reading.streams(body),
        bool(more.get("include_usage")),
    )
    return reading.fitting(request, most_characters)


def _message(given: Any, where: str) -> Message:
    if not isinstance(given, Mapping) or not isinstance(given.get("role"), str) or given["role"] not in ROLES:
        raise RefusedRequest(f"{where} has to be an object with a `role` of {', '.join(ROLES)}.")
    role = ROLES[given["role"]]
    text = reading.text_of(given.get("content"), where, TEXTS)
    calls = given.get("tool_calls") or []
    if not calls or role != "assistant":
        return message_of(role, text, result_of=str(given.get("tool_call_id") or ""))
    if not isinstance(calls, list):
        raise RefusedRequest(f"the `tool_calls` of {where} have to be a list.")
    return message_of(role, text, [_call(each, where) for each in calls])


def _call(given: Any, where: str) -> tuple[str, str, Any]:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping):
        raise RefusedRequest(f"a call in `tool_calls` of {where} has no `function`.")
    arguments = reading.arguments_of(function.get("arguments"))
    return str(given.get("id") or ""), str(function.get("name") or ""), arguments


def _tools(given: Any) -> dict[str, Tool]:
    found = {}
    for each in reading.objects(given, "tools"):
        function = each.get("function") if each.get("type") == "function" else None
        if not isinstance(function, Mapping):
            raise RefusedRequest("each of `tools` has to be of type `function`.")
        tool = reading.tool_of(function.get("name"), function.get("description"), function.get("parameters"))
        found[tool.name] = tool
    return found


def whole(request: PolicyRequest, answers: Sequence[PolicyAnswer]) -> dict[str, Any]:
    """See `Dialect.whole`."""
    (answer,) = answers
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.calls:
        calls = [{"id": call.identity, "type": "function", "function": function} for call, function in _called(answer)]
        message |= {"content": answer.text or None, "tool_calls": calls}
    choice = {"index": 0, "message": message, "finish_reason": FINISHES[answer.finish], "logprobs": None}
    return {**_head(request, answer), "object": "chat.completion", "choices": [choice], "usage": _usage(answer.usage)}


def _called(answer: PolicyAnswer) -> Iterator[tuple[Any, dict[str, str]]]:
    for call in answer.calls:
        yield call, {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}


def _head(request: PolicyRequest, answer: PolicyAnswer) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.number}", "created": 1, "model": request.model}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.answer,
        "total_tokens": usage.prompt + usage.answer,
    }


def opening(request: PolicyRequest) -> Iterator[bytes]:
    """Nothing."""
    return iter(())


def waiting(request: PolicyRequest, number: int) -> bytes:
    """A comment."""
    return COMMENT


def events(request: PolicyRequest, answers: Sequence[PolicyAnswer]) -> Iterator[bytes]:
    """The role, the text, each call's name and its arguments, the reason of the end, the usage if it is asked for."""
    (answer,) = answers
    head = {**_head(request, answer), "object": "chat.completion.chunk"}

    def chunk(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        return event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]})

    yield chunk({"role": "assistant", "content": ""})
    if answer.text:
        yield chunk({"content": answer.text})
    for place, (call, function) in enumerate(_called(answer)):
        named = {"name": call.name, "arguments": ""}
        yield chunk({"tool_calls": [{"index": place, "id": call.identity, "type": "function", "function": named}]})
        yield chunk({"tool_calls": [{"index": place, "function": {"arguments": function["arguments"]}}]})
    yield chunk({}, FINISHES[answer.finish])
    if request.stream_usage:
        yield event({**head, "choices": [], "usage": _usage(answer.usage)})
    yield DONE


def said(refused: RefusedRequest) -> dict[str, Any]:
    """An error as clients of OpenAI read it."""
    kind = "authentication_error" if refused.status == 401 else "invalid_request_error"
    code = "context_length_exceeded" if refused.too_long else None
    return {"error": {"message": str(refused), "type": kind, "param": None, "code": code}}


def broken(request: PolicyRequest, refused: RefusedRequest) -> Iterator[bytes]:
    """The error in place of an answer."""
    yield event(said(refused))
    yield DONE
