"""Requests of clients, read strictly and answered in the words of OpenAI's chat completions."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_hier.environments.thoughts import blank_thoughts
from verl_hier.text import read_json, repaired
from verl_hier_plugins.environments.mcp.tools import CLOSE, OPEN, Tool, read_turn, sound_schema

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
NOT_DONE = {
    "logprobs": "returns no log-probs; ask without `logprobs`",
    "functions": "knows `tools` in place of the older `functions`",
    "audio": "speaks text only",
}
"""Fields of a request that would change what is answered, and are refused rather than ignored."""
MOST_PARTS = 2000
"""Messages, their parts and calls, and tools of a request together: also those without a character are work."""
MOST_TOKENS = 2**31
"""Of a limit of tokens that a client may name; a larger one says no more than this."""
SECRET = "[secret]"
KEY = "verl-hier-"
"""Begins the key of every episode, so that none passes, whichever episode's it is."""
_KEY = re.compile(rf"{KEY}[\w-]{{32}}", re.ASCII)
_CALL_ID = re.compile(r"\bcall_\w{1,80}", re.ASCII)
CUT = "\x03"
"""Ends an action that its token limit has cut, so that the client reads `finish_reason: length`."""
COUNTS = "\x04"
"""Begins the numbers of tokens of the prompt and of the turn, with which the worker ends an action."""
_COUNTS = re.compile(rf"{COUNTS}(\d{{1,12}}),(\d{{1,12}})\Z", re.ASCII)


class RefusedRequest(Exception):
    """A request that is not answered; its text is the sentence that the client reads.

    Attributes:
        status: of the HTTP response.
    """

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class Message:
    """One message of a conversation.

    Attributes:
        role: `system`, `user`, `assistant` or `tool`.
        content: its text as the policy reads it.
        same: what identifies it: equal for messages that a client may send back in another form.
        text: what it says beside its calls.
        ids: of its calls, or of the call that it is the result of; of an answer that comes back as text, those in it.
        arguments: name and texts of each of its calls; a conversation that a call begins quotes one of them.
    """

    role: str
    content: str
    same: str
    text: str = ""
    ids: tuple[str, ...] = ()
    arguments: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class ChatRequest:
    """What a client asks.

    Attributes:
        messages: the whole conversation.
        tools: by name.
        agent: who asks, by the header; empty where it says nothing.
        stop: strings that end the answer.
        max_tokens: limit of the answer, None for the recipe's.
        model: name that the answer repeats.
        stream: whether the answer is sent as events.
        stream_usage: whether the last of the events says the numbers of tokens.
    """

    messages: tuple[Message, ...]
    tools: Mapping[str, Tool]
    agent: str
    stop: tuple[str, ...]
    max_tokens: int | None
    model: str
    stream: bool = False
    stream_usage: bool = False

    @property
    def toolbox(self) -> str:
        """Identity of the tools."""
        return _digest([tool.shown() for tool in self.tools.values()])

    @property
    def digest(self) -> str:
        """Identity of the request."""
        said = [message.same for message in self.messages]
        return _digest([self.agent, self.toolbox, said, self.stop, self.max_tokens])


def read_request(body: Any, agent: str, most_characters: int) -> ChatRequest:
    """A request of a client.

    Args:
        body: what it sent, from JSON.
        agent: its header.
        most_characters: limit of all texts together.

    Raises:
        RefusedRequest: for what is no request, or asks for what is not done here.
    """
    if not isinstance(body, Mapping):
        raise RefusedRequest("the body of a request is a JSON object")
    try:
        body = repaired(body)
    except ValueError as error:
        raise RefusedRequest(f"the body of a request is {error}.") from error
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
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise RefusedRequest("`messages` has to be a list with at least one message.")
    parts = len(given) + sum(_parts(each) for each in [body, *given])
    if parts > MOST_PARTS:
        raise RefusedRequest(
            f"the request has {parts} messages, parts of messages, calls and tools; at most {MOST_PARTS} are read.", 413
        )
    messages = tuple(_message(each, place) for place, each in enumerate(given))
    tools = {} if body.get("tool_choice") == "none" else _tools(body.get("tools"))
    characters = sum(len(message.content) for message in messages) + sum(len(tool.shown()) for tool in tools.values())
    if characters > most_characters:
        raise RefusedRequest(
            f"the messages have {characters} characters, more than the {most_characters} of "
            "hier.environment.request_characters.",
            413,
        )
    stream, more = body.get("stream"), body.get("stream_options") or {}
    if stream not in (None, True, False) or not isinstance(more, Mapping):
        raise RefusedRequest("`stream` has to be true or false, and `stream_options` an object.")
    return ChatRequest(
        messages,
        tools,
        agent,
        _stop(body.get("stop")),
        _max_tokens(body),
        str(body.get("model") or "policy")[:200],
        bool(stream),
        bool(more.get("include_usage")),
    )


@dataclass(frozen=True)
class Usage:
    """Numbers of tokens of the prompt of a request and of its answer."""

    prompt: int
    answer: int

    def said(self) -> dict[str, Any]:
        """As the body of an answer says them."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.answer,
            "total_tokens": self.prompt + self.answer,
        }


@dataclass(frozen=True)
class Reply:
    """What the client is answered.

    Attributes:
        message: the same as a message of the conversation.
        body: as JSON says it.
        valid: False where the policy wrote a call that is none.
    """

    message: Message
    body: Mapping[str, Any]
    valid: bool


def counted(action: str) -> tuple[str, Usage | None]:
    """An action without the numbers of tokens that its worker has added, and those numbers."""
    found = _COUNTS.search(action)
    return (action[: found.start()], Usage(int(found[1]), int(found[2]))) if found else (action, None)


def reply_to(
    request: ChatRequest, action: str, number: int | str, plain: bool = False, usage: Usage | None = None
) -> Reply:
    """The answer that the text of a turn is.

    Args:
        request: what was asked.
        action: the text, which ends with `CUT` where its token limit cut it.
        number: names the answer and its calls, so no other answer of the episode has it.
        plain: whether plain words are a call.
        usage: its numbers of tokens; None where its worker counts none, and characters are taken for tokens.
    """
    if usage is None:
        usage = Usage(sum(len(message.content) for message in request.messages), len(action))
    text = action.removesuffix(CUT)
    finish = "length" if action.endswith(CUT) else "stop"
    for stop in request.stop:
        text, stopped, _ = text.partition(stop)
        finish = "stop" if stopped else finish
    content, calls, valid = _calls(text, request.tools, number, plain)
    if finish == "length":
        # A call of a turn that is cut may be half of what the policy wanted, and clients repair and carry out halves.
        opened = blank_thoughts(text).find(OPEN) if request.tools else -1
        content, calls = text if opened < 0 else text[:opened].strip(), []
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if calls:
        message |= {"content": content or None, "tool_calls": calls}
        finish = "tool_calls"
    body = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1,
        "model": request.model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": usage.said(),
    }
    return Reply(_message(message, 0), body, valid)


def _calls(
    text: str, tools: Mapping[str, Tool], number: int | str, plain: bool
) -> tuple[str, list[dict[str, Any]], bool]:
    """Text, calls and validity of an answer."""
    if not tools:
        return text, [], True
    turn = read_turn(text, tools, plain)
    if not isinstance(turn.found, list):
        return text, [], OPEN not in blank_thoughts(text)
    calls = [
        {
            "id": f"call_{number}_{place}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for place, call in enumerate(turn.found)
    ]
    return turn.before.strip(), calls, True


def _message(given: Any, place: int) -> Message:
    where = f"message {place}"
    if not isinstance(given, Mapping) or not isinstance(given.get("role"), str) or given["role"] not in ROLES:
        raise RefusedRequest(f"{where} has to be an object with a `role` of {', '.join(ROLES)}.")
    role = ROLES[given["role"]]
    content = _text(given.get("content"), where)
    calls = given.get("tool_calls") or []
    if not calls or role != "assistant":
        result_of = str(given.get("tool_call_id") or "")
        ids = tuple(_CALL_ID.findall(content)) if role == "assistant" else (result_of,) if result_of else ()
        return Message(role, content, _digest([role, content.strip(), result_of]), content, ids)
    if not isinstance(calls, list):
        raise RefusedRequest(f"the `tool_calls` of {where} have to be a list.")
    made = [_call(each, where) for each in calls]
    written = "".join(
        f"{OPEN}{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}{CLOSE}"
        for _, name, arguments in made
    )
    ids = tuple(identity for identity, _, _ in made if identity)
    called = tuple((name, tuple(_texts(arguments))) for _, name, arguments in made)
    return Message(role, f"{content}{written}", _digest([role, content.strip(), made]), content, ids, called)


def _texts(arguments: Any) -> Iterator[str]:
    """The texts in the arguments of a call."""
    if isinstance(arguments, str):
        yield arguments
    elif isinstance(arguments, Mapping | list):
        for each in arguments.values() if isinstance(arguments, Mapping) else arguments:
            yield from _texts(each)


def _call(given: Any, where: str) -> tuple[str, str, Any]:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping):
        raise RefusedRequest(f"a call in `tool_calls` of {where} has no `function`.")
    arguments = function.get("arguments") or "{}"
    with contextlib.suppress(ValueError):  # the policy reads what was written
        arguments = without_keys(read_json(arguments)) if isinstance(arguments, str) else arguments
    return str(given.get("id") or ""), str(function.get("name") or ""), arguments


def _text(content: Any, where: str) -> str:
    """The text of a message, which may come in parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RefusedRequest(f"the `content` of {where} has to be a text or a list of text parts.")
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise RefusedRequest(f"{where} has a part that is no text, and this policy reads text only.")
        texts.append(text)
    return "".join(texts)


def _tools(given: Any) -> dict[str, Tool]:
    if not given:
        return {}
    if not isinstance(given, list):
        raise RefusedRequest("`tools` has to be a list.")
    found = {}
    for each in given:
        function = each.get("function") if isinstance(each, Mapping) and each.get("type") == "function" else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RefusedRequest("each of `tools` has to be of type `function` and has a `name`.")
        schema = function.get("parameters")
        if isinstance(schema, Mapping) and not isinstance(schema.get("properties", {}), Mapping):
            raise RefusedRequest(f"the `parameters` of tool {function['name']!r:.60} have no `properties`.")
        schema = sound_schema(schema)
        found[function["name"]] = Tool(
            function["name"], str(function.get("description") or ""), schema, read_only=False, destructive=False
        )
    return found


def _stop(given: Any) -> tuple[str, ...]:
    stop = [given] if isinstance(given, str) else given or []
    if not isinstance(stop, list) or len(stop) > 16 or not all(isinstance(each, str) and each for each in stop):
        raise RefusedRequest("`stop` has to be a text or a list of at most 16 texts.")
    return tuple(stop)


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    given = next((body[name] for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None), None)
    if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given < 1):
        raise RefusedRequest("`max_tokens` has to be a whole number of at least 1.")
    return None if given is None else min(given, MOST_TOKENS)


def _parts(said: Any) -> int:
    """How many tools a body has, or parts and calls a message."""
    lists = [said.get(name) for name in ("tools", "content", "tool_calls")] if isinstance(said, Mapping) else []
    return sum(len(each) for each in lists if isinstance(each, list))


def without_keys(value: Any) -> Any:
    """A text, or a value of JSON, in whose texts no key of an episode stands."""
    if isinstance(value, str):
        return _KEY.sub(SECRET, value) if KEY in value else value
    if isinstance(value, Mapping):
        return {without_keys(name): without_keys(each) for name, each in value.items()}
    return [without_keys(each) for each in value] if isinstance(value, list) else value


def _digest(said: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode("utf-8", "replace")).hexdigest()
