"""Of a request what was sent before is not read again, and what is read is the same as if nothing had been."""

import json
import random
import sys

import pytest

from verl_hier.text import parsed_json
from verl_hier_plugins.environments.gateway.dialects import BY_PATH, CHAT
from verl_hier_plugins.environments.gateway.heard import MOST_LISTS, MOST_MADE, Body, Heard
from verl_hier_plugins.environments.gateway.messages import KEY, SECRET

PATHS = [*BY_PATH]
SECRET_KEY = KEY + "k" * 32
LOOK = {"name": "look", "description": "looks", "parameters": {"type": "object", "properties": {"room": {}}}}


def tools(path, name="look"):
    tool = {**LOOK, "name": name}
    if path == PATHS[0]:
        return [{"type": "function", "function": tool}]
    schema = tool.pop("parameters")
    return (
        [{**tool, "input_schema": schema}] if path == PATHS[1] else [{"type": "function", "parameters": schema, **tool}]
    )


def turn(path, number, text):
    """An answer with a call, and its result."""
    name = {"name": "look", "id": f"call_n_{number}"}
    if path == PATHS[0]:
        call = {"id": name["id"], "type": "function", "function": {"name": "look", "arguments": '{"room": "hall"}'}}
        result = {"role": "tool", "tool_call_id": name["id"], "content": text}
        return [{"role": "assistant", "content": text, "tool_calls": [call]}, result]
    if path == PATHS[1]:
        said = [{"type": "text", "text": text}, {"type": "tool_use", "input": {"room": "hall"}, **name}]
        result = [{"type": "tool_result", "tool_use_id": name["id"], "content": text}]
        return [{"role": "assistant", "content": said}, {"role": "user", "content": result}]
    call = {"type": "function_call", "call_id": name["id"], "name": "look", "arguments": '{"room": "hall"}'}
    result = {"type": "function_call_output", "call_id": name["id"], "output": text}
    return [{"role": "assistant", "content": text}, {"type": "reasoning", "summary": []}, call, result]


def body(path, said, name="look"):
    return {"input" if path == PATHS[2] else "messages": said, "tools": tools(path, name), "model": "m"}


def read(path, given, heard):
    data = json.dumps(given).encode()
    return BY_PATH[path].read(Body(parsed_json(data), data), "", 10**6, heard)


def conversation(path, turns, text="it is dark"):
    said = [{"role": "user", "content": "go"}]
    for number in range(turns):
        said += turn(path, number, f"{text} {number}")
    return said


@pytest.mark.parametrize("path", PATHS)
def test_what_is_read_does_not_depend_on_what_was_sent_before(path):
    chance, heard = random.Random(path), Heard()
    said = conversation(path, 3)
    for number in range(60):
        kind = chance.choice(["goes on", "goes on", "changed", "shortened", "another", "a text after a text"])
        if kind == "goes on":
            said = [*said, *turn(path, 10 + number, chance.choice(["dark", "half \ud83d", "🙂", f"key {SECRET_KEY}"]))]
        elif kind == "changed":
            said[chance.randrange(len(said))] = {"role": "user", "content": f"no {number}"}
        elif kind == "shortened":
            said = said[: chance.randrange(len(said)) + 1]
        elif kind == "another":
            said = conversation(path, chance.randrange(5), f"another {number}")
        else:
            said = [*said, {"role": "assistant", "content": "I made this up"}]
        given = body(path, said, chance.choice(["look", "peep"]))
        known, alone = read(path, given, heard), read(path, given, Heard())
        assert (known.messages, known.tools, known.settled) == (alone.messages, alone.tools, alone.settled)
        assert SECRET_KEY not in repr(known.messages) and "\ud83d" not in repr(known.messages)


@pytest.mark.parametrize("path", PATHS)
def test_messages_and_tools_that_were_sent_before_are_the_same_objects(path):
    heard, said = Heard(), conversation(path, 3)
    first = read(path, body(path, said), heard)
    again = read(path, body(path, [*said, *turn(path, 9, "light")]), heard)
    assert all(old is new for old, new in zip(first.messages, again.messages, strict=False))
    assert len(again.messages) == len(first.messages) + 2
    assert again.tools is first.tools


@pytest.mark.parametrize("path", PATHS)
def test_a_long_conversation_costs_little_more_than_a_short_one(path):
    """Calls of functions, which a machine that is busy does not make slower."""

    def calls(turns):
        heard, said = Heard(), conversation(path, turns)
        _ = read(path, body(path, said), heard).settled
        data = json.dumps(body(path, [*said, *turn(path, 999, "light")])).encode()
        given, count = Body(parsed_json(data), data), 0

        def counts(frame, event, argument):
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(counts)
        try:
            _ = BY_PATH[path].read(given, "", 10**6, heard).settled
        finally:
            sys.setprofile(None)
        return count

    short, long = calls(10), calls(110)
    assert (long - short) / 200 < 10  # for each message that was sent before; reading one takes more than a hundred


def test_a_key_that_is_written_with_escapes_is_found_behind_plain_messages():
    heard = Heard()
    read(PATHS[0], body(PATHS[0], [{"role": "user", "content": "go"}]), heard)
    written = SECRET_KEY.replace("v", "\\u0076", 1)
    data = f'{{"messages": [{{"role": "user", "content": "go"}}, {{"role": "user", "content": "{written}"}}]}}'.encode()
    assert CHAT.read(Body(parsed_json(data), data), "", 1000, heard).messages[1].content == SECRET


def test_what_is_new_of_a_body_is_known_by_its_size():
    heard, said = Heard(), conversation(PATHS[0], 20)
    whole = json.dumps(body(PATHS[0], said)).encode()
    assert heard.new_bytes(Body(parsed_json(whole), whole)) == len(whole)
    read(PATHS[0], body(PATHS[0], said), heard)
    longer = json.dumps(body(PATHS[0], [*said, *turn(PATHS[0], 99, "é" * 100)])).encode()
    assert heard.new_bytes(Body(parsed_json(longer), longer)) == len(longer) - len(whole)


def test_what_is_held_has_an_end():
    heard = Heard()
    for number in range(MOST_LISTS + 5):
        given = body(PATHS[0], conversation(PATHS[0], 2, f"{number}"))
        read(PATHS[0], given, heard)
    assert all(len(sent) <= MOST_LISTS for sent in heard._sent.values())
    for _ in range(MOST_MADE + 5):
        heard.once(str, [object()])
    assert len(heard._made) <= MOST_MADE
