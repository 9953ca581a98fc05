"""The least that an endpoint of three dialects does: it reads the JSON of a request, waits, and writes an answer.

It is the measure of what the gateway adds: the same HTTP server library, the same bodies, the same answers, and nothing
that is known of a conversation.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from aiohttp import web

MOST_BYTES = 2**23
Says = Callable[[str], Awaitable[str]]
"""What the policy says to the client with a key, once it has said it."""


def _read(path: str, body: Mapping[str, Any]) -> int:
    """The characters of a prompt, whose texts are put together as for a chat template."""
    texts: list[str] = []
    for each in [body.get("system"), body.get("instructions"), *(body.get("messages") or body.get("input") or ())]:
        given = each.get("content", each.get("output")) if isinstance(each, dict) else each
        for part in given if isinstance(given, list) else [given]:
            texts.append(part.get("text", "") if isinstance(part, dict) else part or "")
    return len("\n".join(map(str, texts))) + len(json.dumps(body.get("tools", ())))


def _chat(number: int, text: str, calls: list[Any], usage: Mapping[str, int]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if calls:
        message["tool_calls"] = [
            {"id": f"call_{number}_{place}", "type": "function", "function": call} for place, call in enumerate(calls)
        ]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop", "logprobs": None}
    used = {"prompt_tokens": usage["input"], "completion_tokens": usage["output"]}
    head = {"id": f"chatcmpl-{number}", "created": 1, "model": "policy", "object": "chat.completion"}
    return {**head, "choices": [choice], "usage": {**used, "total_tokens": sum(usage.values())}}


def _chat_events(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    choice = body["choices"][0]
    head = {**body, "object": "chat.completion.chunk"}

    def chunk(delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]}

    yield chunk({"role": "assistant", "content": ""})
    yield chunk({"content": choice["message"]["content"]})
    for place, call in enumerate(choice["message"].get("tool_calls", ())):
        named = {**call["function"], "arguments": ""}
        yield chunk({"tool_calls": [{**call, "index": place, "function": named}]})
        yield chunk({"tool_calls": [{"index": place, "function": {"arguments": call["function"]["arguments"]}}]})
    yield chunk({}, choice["finish_reason"])


def _messages(number: int, text: str, calls: list[Any], usage: Mapping[str, int]) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    for place, call in enumerate(calls):
        given = json.loads(call["arguments"])
        content.append({"type": "tool_use", "id": f"call_{number}_{place}", "name": call["name"], "input": given})
    return {
        "id": f"msg_{number}", "type": "message", "role": "assistant", "model": "policy", "content": content,
        "stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": usage["input"], "output_tokens": usage["output"]},
    }  # fmt: skip


def _message_events(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"type": "message_start", "message": {**body, "content": [], "stop_reason": None}}
    for place, block in enumerate(body["content"]):
        if block["type"] == "text":
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            empty = {**block, "input": {}}
        yield {"type": "content_block_start", "index": place, "content_block": empty}
        yield {"type": "content_block_delta", "index": place, "delta": delta}
        yield {"type": "content_block_stop", "index": place}
    ended = {"stop_reason": body["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": body["usage"]}
    yield {"type": "message_stop"}


def _responses(number: int, text: str, calls: list[Any], usage: Mapping[str, int]) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    if text:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        output.append(
            {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
        )
    for place, call in enumerate(calls):
        ids = {"id": f"fc_{number}_{place}", "call_id": f"call_{number}_{place}"}
        output.append({**ids, "type": "function_call", "status": "completed", **call})
    return {
        "id": f"resp_{number}", "object": "response", "created_at": 1, "model": "policy", "status": "completed",
        "error": None, "incomplete_details": None, "instructions": None, "output": output, "parallel_tool_calls": True,
        "tool_choice": "auto", "tools": [],
        "usage": {
            "input_tokens": usage["input"], "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage["output"], "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": sum(usage.values()),
        },
    }  # fmt: skip


def _response_events(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name in ("created", "in_progress"):
        yield {"type": f"response.{name}", "response": {**body, "status": "in_progress", "output": [], "usage": None}}
    for place, item in enumerate(body["output"]):
        here = {"output_index": place, "item_id": item["id"]}
        field = "content" if item["type"] == "message" else "arguments"
        yield {"type": "response.output_item.added", "output_index": place, "item": {**item, field: item[field][:0]}}
        if item["type"] == "message":
            (part,) = item["content"]
            here["content_index"] = 0
            yield {"type": "response.content_part.added", **here, "part": {**part, "text": ""}}
            yield {"type": "response.output_text.delta", **here, "delta": part["text"], "logprobs": []}
            yield {"type": "response.output_text.done", **here, "text": part["text"], "logprobs": []}
            yield {"type": "response.content_part.done", **here, "part": part}
        else:
            yield {"type": "response.function_call_arguments.delta", **here, "delta": item[field]}
            yield {"type": "response.function_call_arguments.done", **here, field: item[field], "name": item["name"]}
        yield {"type": "response.output_item.done", "output_index": place, "item": item}
    yield {"type": "response.completed", "response": body}


WRITERS = {
    "/v1/chat/completions": (_chat, _chat_events),
    "/v1/messages": (_messages, _message_events),
    "/v1/responses": (_responses, _response_events),
}


@asynccontextmanager
async def serving(says: Says) -> AsyncIterator[int]:
    """An endpoint at a free port; yields the port."""
    numbers = count()

    async def answer(request: web.Request) -> web.StreamResponse:
        key = request.headers.get("Authorization", "").removeprefix("Bearer ") or request.headers.get("x-api-key", "")
        data = await request.read()
        body = json.loads(data)
        prompt, (write, events) = _read(request.path, body), WRITERS[request.path]
        number = next(numbers)
        said = await says(key)
        text, *called = said.split("<tool_call>")
        found = [json.loads(each.partition("</tool_call>")[0]) for each in called]
        calls = [{"name": each["name"], "arguments": json.dumps(each["arguments"])} for each in found]
        whole = write(number, text.strip(), calls, {"input": prompt, "output": len(said)})
        if not body.get("stream"):
            return web.json_response(whole)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        written = []
        for sequence, each in enumerate(events(whole)):
            name = f"event: {each['type']}\n" if "type" in each else ""
            if name and "response" in each["type"]:
                each["sequence_number"] = sequence
            written.append(f"{name}data: {json.dumps(each)}\n\n")
        ended = ["data: [DONE]\n\n"] if events is _chat_events else []
        await response.write_eof("".join([*written, *ended]).encode())
        return response

    app = web.Application(client_max_size=MOST_BYTES)
    for path in WRITERS:
        app.router.add_post(path, answer)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
