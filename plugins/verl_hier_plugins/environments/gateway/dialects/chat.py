"""OpenAI's chat completions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from verl_hier_plugins.environments.gateway.answers import PolicyAnswer
from verl_hier_plugins.environments.gateway.demands import Demand
from verl_hier_plugins.environments.gateway.dialects import reading
from verl_hier_plugins.environments.gateway.dialects.events import COMMENT, DONE, event
from verl_hier_plugins.environments.gateway.heard import Heard
from verl_hier_plugins.environments.gateway.messages import Message, PolicyRequest, RefusedRequest, Toolbox, message_of

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
NOT_DONE = {
    "functions": "knows `tools` in place of the older `functions`",
    "audio": "speaks text only",
    "top_logprobs": "returns log-probs of the tokens that the policy wrote alone; ask without `top_logprobs`",
}
"""Fields of a request that would change what is answered, and are refused rather than ignored."""
MOST_CHOICES = 16
TEXTS = ("text", "refusal")
FINISHES = {"stop": "stop", "string": "stop", "length": "length", "calls": "tool_calls"}


def read(body: Any, agent: str, most_characters: int, heard: Heard | None = None) -> PolicyRequest:
    """See `Dialect.read`."""
    heard = heard or Heard()
    body = reading.sound(body, heard)
    for name, sentence in NOT_DONE.items():
        if body.get(name):
            raise RefusedRequest(f"this endpoint {sentence}.")
    choices = 1 if body.get("n") is None else body["n"]
    if isinstance(choices, bool) or not isinstance(choices, int) or not 1 <= choices <= MOST_CHOICES:
        raise RefusedRequest(f"`n` has to be a whole number from 1 to {MOST_CHOICES}.")
    given = reading.some(body.get("messages"), "messages")
    parts = reading.parts_of(body, "messages", "tools")
    more = body.get("stream_options") or {}
    if not isinstance(more, Mapping):
        raise RefusedRequest("`stream_options` has to be an object.")
    tools = heard.once(_tools, [body.get("tools")])
    request = PolicyRequest(
        tuple(reading.messages_of(heard.sent("messages", given), reading.alone, _read_message, parts)),
        tools,
        agent,
        reading.stops(body.get("stop")),
        reading.most_tokens(body, "max_completion_tokens", "max_tokens"),
        reading.model_of(body),
        reading.streams(body),
        bool(more.get("include_usage")),
        _demand(body, tools),
        choices,
        bool(body.get("logprobs")),
    )
    return reading.fitting(request, most_characters)


def _demand(body: Mapping[str, Any], tools: Toolbox) -> Demand:
    chosen, names = body.get("tool_choice") or "auto", None
    if isinstance(chosen, Mapping):
        allowed = chosen.get("allowed_tools")
        listed = allowed.get("tools") if isinstance(allowed, Mapping) else [chosen]
        chosen = allowed.get("mode") if isinstance(allowed, Mapping) else "required"
        functions = [each.get("function") for each in reading.objects(listed, "tool_choice")]
        names = [each.get("name") if isinstance(each, Mapping) else None for each in functions]
    form = reading.schema_of(body.get("response_format"), "response_format", "json_schema")
    return reading.demand_of(tools, chosen, names, body.get("parallel_tool_calls") is False, form)


def _read_message(group: Sequence[Any], place: str) -> reading.Read:
    (given,) = group
    parts = reading.parts_of(given, "content", "tool_calls")
    return [_message(given, f"message {place}")], parts


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


def _tools(given: Any) -> Toolbox:
    found = Toolbox()
    for each in reading.objects(given, "tools"):
        function = each.get("function") if each.get("type") == "function" else None
        if not isinstance(function, Mapping):
            raise RefusedRequest("each of `tools` has to be of type `function`.")
        tool = reading.tool_of(function.get("name"), function.get("description"), function.get("parameters"))
        found[tool.name] = tool
    return found


def whole(request: PolicyRequest, answers: Sequence[PolicyAnswer]) -> dict[str, Any]:
    """See `Dialect.whole`."""
    choices = []
    for place, answer in enumerate(answers):
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        if answer.calls:
            calls = [
                {"id": call.identity, "type": "function", "function": function} for call, function in _called(answer)
            ]
            message |= {"content": answer.text or None, "tool_calls": calls}
        ended = {"finish_reason": FINISHES[answer.finish], "logprobs": _logprobs(answer)}
        choices.append({"index": place, "message": message, **ended})
    return {**_head(request, answers), "object": "chat.completion", "choices": choices, "usage": _usage(answers)}


def _logprobs(answer: PolicyAnswer) -> dict[str, Any] | None:
    if answer.logprobs is None:
        return None
    said = [
        {"token": token, "logprob": logprob, "bytes": [*token.encode()], "top_logprobs": []}
        for token, logprob in answer.logprobs
    ]
    return {"content": said, "refusal": None}


def _called(answer: PolicyAnswer) -> Iterator[tuple[Any, dict[str, str]]]:
    for call in answer.calls:
        yield call, {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}


def _head(request: PolicyRequest, answers: Sequence[PolicyAnswer]) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answers[0].number}", "created": 1, "model": request.model}


def _usage(answers: Sequence[PolicyAnswer]) -> dict[str, Any]:
    prompt, written = answers[0].usage.prompt, sum(answer.usage.answer for answer in answers)
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def opening(request: PolicyRequest) -> Iterator[bytes]:
    """Nothing."""
    return iter(())


def waiting(request: PolicyRequest, number: int) -> bytes:
    """A comment."""
    return COMMENT


def events(request: PolicyRequest, answers: Sequence[PolicyAnswer]) -> Iterator[bytes]:
    """The role, the text, each call's name and its arguments, the reason of the end, the usage if it is asked for."""
    head = {**_head(request, answers), "object": "chat.completion.chunk"}

    def chunk(place: int, delta: Mapping[str, Any], finish: str | None = None, logprobs: Any = None) -> bytes:
        choice = {"index": place, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        return event({**head, "choices": [choice]})

    for place, answer in enumerate(answers):
        yield chunk(place, {"role": "assistant", "content": ""})
        if answer.text or answer.logprobs:
            yield chunk(place, {"content": answer.text}, logprobs=_logprobs(answer))
        for number, (call, function) in enumerate(_called(answer)):
            named = {"index": number, "id": call.identity, "type": "function"}
            yield chunk(place, {"tool_calls": [{**named, "function": {"name": call.name, "arguments": ""}}]})
            said = {"index": number, "function": {"arguments": function["arguments"]}}
            yield chunk(place, {"tool_calls": [said]})
        yield chunk(place, {}, FINISHES[answer.finish])
    if request.stream_usage:
        yield event({**head, "choices": [], "usage": _usage(answers)})
    yield DONE


def said(refused: RefusedRequest) -> dict[str, Any]:
    """An error as clients of OpenAI read it; some know by its words alone that a conversation is to be shortened."""
    sentence = f"The input exceeds the context window: {refused}" if refused.too_long else str(refused)
    kind = "authentication_error" if refused.status == 401 else "invalid_request_error"
    code = "context_length_exceeded" if refused.too_long else None
    return {"error": {"message": sentence, "type": kind, "param": None, "code": code}}


def broken(request: PolicyRequest, refused: RefusedRequest) -> Iterator[bytes]:
    """The error in place of an answer."""
    yield event(said(refused))
    yield DONE
