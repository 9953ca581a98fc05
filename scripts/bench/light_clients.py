"""Light clients of agent programs: coroutines that speak HTTP in three dialects, and nothing else.

Each plays one growing conversation with tools: a system message, a task, and turns of a call and its result. What the
policy says to which client, and for how long it is waited for, is known to both sides beforehand.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WORDS = [
    "the",
    "file",
    "has",
    "three",
    "lines",
    "and",
    "one",
    "of",
    "them",
    "is",
    "not",
    "what",
    "the",
    "test",
    "of",
    "this",
    "module",
    "expects",
    "from",
    "it",
]
DIALECTS = ("chat", "messages", "responses")
PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}


@dataclass(frozen=True)
class Load:
    """What the clients do.

    Attributes:
        clients: how many there are.
        turns: requests of each.
        tools: of each conversation.
        system, tool, result: characters of its system message, of each tool, and of each result of one.
        wait_s: seconds that the policy takes on average.
    """

    clients: int = 256
    turns: int = 12
    tools: int = 12
    system: int = 6000
    tool: int = 1200
    result: int = 2000
    wait_s: float = 1.5

    def waits(self, client: int) -> list[float]:
        """Seconds that the policy takes for each turn of a client."""
        chance = random.Random(client)
        return [self.wait_s * (0.5 + chance.random()) for _ in range(self.turns)]

    def says(self, turn: int) -> str:
        """What the policy says in a turn."""
        if turn + 1 >= self.turns:
            return "it is done"
        call = {"name": f"tool_{turn % self.tools}", "arguments": {"path": f"src/part_{turn}.py", "limit": 200}}
        return f"I look at part {turn}.\n<tool_call>{json.dumps(call)}</tool_call>"


def words(count: int, seed: object) -> str:
    """A text of about so many characters."""
    chance = random.Random(str(seed))
    return " ".join(chance.choices(WORDS, k=max(1, count // 5)))[:count]


@dataclass
class Client:
    """One client.

    Attributes:
        number: names it.
        load: what it does.
        waits: seconds of each request beyond what the policy took.
        sent: bytes of each request.
    """

    number: int
    load: Load
    waits: list[float] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)

    @property
    def dialect(self) -> str:
        return DIALECTS[self.number % len(DIALECTS)]

    @property
    def streams(self) -> bool:
        """Whether its answers come as events: those of every other client do."""
        return self.number // len(DIALECTS) % 2 == 0

    async def play(self, port: int, key: str) -> None:
        """Make all requests, one behind the other, on one connection."""
        policy_s = self.load.waits(self.number)
        body = self._first()
        head = f"POST {PATHS[self.dialect]} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
        try:
            for turn in range(self.load.turns):
                data = json.dumps(body).encode()
                began = time.perf_counter()
                writer.write(
                    f"{head}Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
                )
                said = await _answered(reader)
                self.waits.append(time.perf_counter() - began - policy_s[turn])
                self.sent.append(len(data))
                self._go_on(body, _whole(self.dialect, said) if self.streams else json.loads(said), turn)
        finally:
            writer.close()

    def _first(self) -> dict[str, Any]:
        system, task = words(self.load.system, "system"), words(300, self.number)
        schema = {
            "type": "object",
            "properties": {"path": {"type": "string", "description": words(120, "path")}, "limit": {"type": "integer"}},
            "required": ["path"],
        }
        named = [(f"tool_{each}", words(self.load.tool - 300, each)) for each in range(self.load.tools)]
        body: dict[str, Any] = {"model": "policy", "stream": self.streams}
        if self.dialect == "chat":
            functions = [{"name": name, "description": text, "parameters": schema} for name, text in named]
            body["tools"] = [{"type": "function", "function": each} for each in functions]
            body["messages"] = [{"role": "system", "content": system}, {"role": "user", "content": task}]
        elif self.dialect == "messages":
            body["tools"] = [{"name": name, "description": text, "input_schema": schema} for name, text in named]
            body |= {"system": [{"type": "text", "text": system}], "max_tokens": 4096}
            body["messages"] = [{"role": "user", "content": [{"type": "text", "text": task}]}]
        else:
            common = {"type": "function", "parameters": schema, "strict": False}
            body["tools"] = [{**common, "name": name, "description": text} for name, text in named]
            text = {"type": "input_text", "text": task}
            body |= {"instructions": system, "input": [{"type": "message", "role": "user", "content": [text]}]}
        return body

    def _go_on(self, body: dict[str, Any], said: Mapping[str, Any], turn: int) -> None:
        """Add an answer and the results of its calls to a conversation."""
        result = words(self.load.result, f"{self.number} {turn}")
        if self.dialect == "chat":
            message = said["choices"][0]["message"]
            ids = [call["id"] for call in message.get("tool_calls") or ()]
            results = [{"role": "tool", "tool_call_id": each, "content": result} for each in ids]
            body["messages"] += [message, *results]
        elif self.dialect == "messages":
            parts = said["content"]
            ids = [part["id"] for part in parts if part["type"] == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": each, "content": result} for each in ids]
            body["messages"] += [{"role": "assistant", "content": parts}, {"role": "user", "content": results}]
        else:
            ids = [item["call_id"] for item in said["output"] if item["type"] == "function_call"]
            results = [{"type": "function_call_output", "call_id": each, "output": result} for each in ids]
            body["input"] += [*said["output"], *results]
        if len(ids) != int(turn + 1 < self.load.turns):
            raise RuntimeError(f"turn {turn} of a client of {self.dialect} has {len(ids)} calls")


async def _answered(reader: asyncio.StreamReader) -> bytes:
    """The body of an answer."""
    status = await reader.readline()
    length, chunked = 0, False
    while (line := await reader.readline()).strip():
        name, _, value = line.decode().lower().partition(":")
        length = int(value) if name == "content-length" else length
        chunked = chunked or (name == "transfer-encoding" and "chunked" in value)
    body = b""
    if chunked:
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    else:
        body = await reader.readexactly(length)
    if b" 200 " not in status:
        raise RuntimeError(f"{status!r}: {body[:500]!r}")
    return body


def _whole(dialect: str, stream: bytes) -> dict[str, Any]:
    """An answer that came as events, as it comes without."""
    lines = [line[6:] for line in stream.split(b"\n") if line.startswith(b"data: ") and line != b"data: [DONE]"]
    events = [json.loads(line) for line in lines]
    if dialect == "responses":
        return dict(events[-1]["response"])
    return _of_chunks(events) if dialect == "chat" else _of_parts(events)


def _of_chunks(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for delta in (choice["delta"] for event in events for choice in event["choices"]):
        message["content"] += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            calls = message.setdefault("tool_calls", [])
            if call["index"] == len(calls):
                calls.append({"id": call["id"], "type": "function", "function": {**call["function"]}})
            else:
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return {"choices": [{"message": message}]}


def _of_parts(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            parts.append({**event["content_block"]})
        elif event["type"] == "content_block_delta" and parts[-1]["type"] == "text":
            parts[-1]["text"] += event["delta"]["text"]
        elif event["type"] == "content_block_delta":
            parts[-1]["input"] = json.loads(event["delta"]["partial_json"])
    return {"content": parts}
