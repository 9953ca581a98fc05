"""Answers as server-sent events, in the form of OpenAI's chat completions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

HEARTBEAT_S = 5.0
"""Seconds between two comments, which keep a connection open while the policy is waited for."""
HEARTBEAT = b": waiting\n\n"
DONE = b"data: [DONE]\n\n"


def event(said: Mapping[str, Any]) -> bytes:
    """One event."""
    return b"data: " + json.dumps(said).encode() + b"\n\n"


def chat_events(body: Mapping[str, Any], usage: bool) -> Iterator[bytes]:
    """An answer as events: the role, the text, each call's name and its arguments, the reason of the end, the usage.

    Args:
        body: of the answer as a whole; see `verl_hier_plugins.environments.gateway.messages.reply_to`.
        usage: whether the last event before the end says the numbers of tokens.
    """
    head = {name: body[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    (choice,) = body["choices"]
    message = choice["message"]

    def chunk(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        return event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]})

    yield chunk({"role": "assistant", "content": ""})
    if message["content"]:
        yield chunk({"content": message["content"]})
    for place, call in enumerate(message.get("tool_calls", ())):
        function = {"name": call["function"]["name"], "arguments": ""}
        yield chunk({"tool_calls": [{"index": place, "id": call["id"], "type": "function", "function": function}]})
        said = {"arguments": call["function"]["arguments"]}
        yield chunk({"tool_calls": [{"index": place, "function": said}]})
    yield chunk({}, choice["finish_reason"])
    if usage:
        yield event({**head, "choices": [], "usage": body["usage"]})
    yield DONE
