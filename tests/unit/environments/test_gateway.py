"""The gateway against agent programs in processes of their own: sound ones, hostile ones, and ones that die."""

import asyncio
import json
import os
import random
import textwrap
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.executed_lines import executed_lines
from verl_hier.environments.pool import EnvironmentFailure, EnvironmentPool
from verl_hier.environments.surroundings import ProcessOptions
from verl_hier.errors import RecipeError
from verl_hier.host.options import build_options
from verl_hier.rollout import Limits, Request, Rollout, Sampler
from verl_hier.rollout.plain_renderer import PlainRenderer
from verl_hier.rollout.policy import DEFAULT_POLICY
from verl_hier.rollout.roles import Roles
from verl_hier.rollout.sampler import roll_out
from verl_hier.rollout.task import RolloutSetup
from verl_hier.testing.async_environment import check_async_environment
from verl_hier.testing.environment import check_environment
from verl_hier.testing.rollout import ScriptedPolicy, SideBySide, WordTokenizer
from verl_hier_plugins.environments.gateway import SPEC
from verl_hier_plugins.environments.gateway.answers import CUT, answer_to
from verl_hier_plugins.environments.gateway.chance import DrawnNames
from verl_hier_plugins.environments.gateway.conversations import Conversations, said_of
from verl_hier_plugins.environments.gateway.dialects import CHAT
from verl_hier_plugins.environments.gateway.messages import RefusedRequest
from verl_hier_plugins.environments.gateway.options import GatewayOptions
from verl_hier_plugins.workers import gateway as worker_module
from verl_hier_plugins.workers.gateway import hier_workers

TASK = {"instruction": "go", "answers": ["right"]}
HEAD = """
import json, os, sys, threading, time, urllib.error, urllib.request

def send(body, key=None, path="/chat/completions", **headers):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Authorization": "Bearer " + (key or os.environ["OPENAI_API_KEY"]), **headers}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, data, headers)
    try:
        with urllib.request.urlopen(request) as response:
            return 200, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)

def ask(*texts, **rest):
    roles = ["user", "assistant"] * len(texts)
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts)]
    status, said = send({"model": "m", "messages": messages}, **rest)
    assert status == 200, said
    return said["choices"][0]["message"]["content"]
"""


@pytest.fixture
def agent(tmp_path):
    """Writes an agent and gives the options that run it."""

    def write(code, **options):
        (tmp_path / "agent.py").write_text(HEAD + textwrap.dedent(code))
        tasks = "\n".join(json.dumps({**TASK, "number": number}) for number in range(60))
        (tmp_path / "tasks.jsonl").write_text(tasks)
        return GatewayOptions(
            agent="agent.py:play", folder=str(tmp_path), data_path=str(tmp_path / "tasks.jsonl"), **options
        )

    return write


def in_pool(options, scenario, time_limit_s=60.0, process=ProcessOptions()):
    async def main():
        pool = EnvironmentPool.of(SPEC, options, time_limit_s=time_limit_s, process=process)
        try:
            return await scenario(pool)
        finally:
            await pool.close()

    return asyncio.run(main())


def played(options, *actions, task=TASK, **pool):
    """The answers of an episode, the reset's first."""

    async def scenario(pool):
        handle, _ = await pool.open(task, 0)
        for action in actions:
            await handle.step(action)
        await handle.close()
        return handle.steps

    return in_pool(options, scenario, **pool)


def lost(options, *actions, **pool):
    """How the episode is lost."""
    with pytest.raises(EnvironmentFailure) as caught:
        played(options, *actions, **pool)
    return caught.value


# ---- the kits ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_conforms():
    options = GatewayOptions(pool=5, validation=3)
    check_environment(SPEC, options, tasks=1, steps=3, any_text=True)
    rooms = list(SPEC.tasks(options, "train")[0]["rooms"])
    check_async_environment(SPEC, options, [f"look {room}" for room in rooms])


# ---- requests and answers ------------------------------------------------------------------------------------------

TWO_TURNS = """
def play(task):
    first = ask("hello")
    return ask("hello", first, "and then?")
"""


def test_a_request_is_an_observation_and_a_turn_its_answer(agent):
    first, second, last = played(agent(TWO_TURNS), "hi", "right")
    assert first.text == "hello" and first.info["request"]["begins"] == "first"
    assert second.text == "and then?" and second.info["request"]["messages"] == [["user", "and then?"]]
    assert (second.info["request"]["context"], second.info["request"]["begins"]) == (0, "")
    assert last.done and last.reward == 1 and last.info["won"] and last.info["result"] == "right"


def test_the_agent_does_not_score_itself(agent):
    *_, last = played(agent('def play(task):\n    ask("q")\n    return {"reward": 1, "won": True}'), "right")
    assert last.done and last.reward == 0 and not last.info["won"]
    *_, last = played(agent("def play(task):\n    return ask(json.dumps(task)).strip()"), "right")
    assert last.reward == 1
    assert "answers" not in played(agent("def play(task):\n    return ask(json.dumps(task))"))[0].text


def test_a_named_scorer_decides(agent, tmp_path, monkeypatch):
    (tmp_path / "judge.py").write_text("def half(task, result):\n    return 0.5 if result == 'so so' else 'much'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    options = agent('def play(task):\n    return ask("q")', scorer="judge:half", won_at=0.5)
    *_, last = played(options, "so so")
    assert last.reward == 0.5 and last.info["won"]
    with pytest.raises(RecipeError, match="returned 'much', which is no number"):
        played(options, "great")
    with pytest.raises(RecipeError, match=r"hier\.environment\.scorer: module 'nowhere'"):
        played(replace(options, scorer="nowhere:f"))
    *_, last = played(
        agent('def play(task):\n    return ask("q")', scorer="number"), "7 or 12", task={"answers": ["12.0"]}
    )
    assert last.reward == 1


def test_a_command_reads_its_task_and_writes_its_result(agent, tmp_path):
    options = agent('if __name__ == "__main__":\n    print(ask(json.load(sys.stdin)["instruction"]))')
    options = replace(options, agent="", command="python3 agent.py")
    *_, last = played(options, "right")
    assert last.info["result"] == "right" and last.reward == 1


# ---- conversations -------------------------------------------------------------------------------------------------


def begins(steps):
    return [
        (step.info["request"]["context"], step.info["request"]["begins"]) for step in steps if "request" in step.info
    ]


def test_conversations_are_known_by_their_prefix(agent):
    code = """
    def play(task):
        a, b = ask("main"), ask("helper")
        c = ask("main", a, "on")
        d = ask("helper", b, "on")
        again = ask("main")
        ask("main", "edited", "on")
        ask("other", a, "on")
        ask("main", again, "further")
        return ask("main", a, "on", c, "last")
    """
    steps = played(agent(code), "a", "b", "c", "d", "e", "f", "g", "h", "right")
    assert begins(steps) == [
        (0, "first"), (1, "first"), (0, ""), (1, ""), (2, "again"), (3, "edited"), (4, "edited"), (2, ""), (0, ""),
    ]  # fmt: skip
    assert [text for _, text in steps[5].info["request"]["messages"]] == ["main", "edited", "on"]


def test_an_answer_may_come_back_in_another_form(agent):
    code = """
    def play(task):
        tools = [{"type": "function", "function": {"name": "look", "parameters": {"properties": {"room": {}}}}}]
        messages = [{"role": "developer", "content": [{"type": "text", "text": "sys"}]}]
        messages += [{"role": "user", "content": "q"}]
        said = send({"messages": messages, "tools": tools})[1]["choices"][0]
        assert said["finish_reason"] == "tool_calls", said
        (call,) = said["message"]["tool_calls"]
        call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=2)
        messages[0] = {"role": "system", "content": "sys", "name": "x"}
        messages += [{"role": "assistant", "content": "", "tool_calls": [call], "annotations": []}]
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": "dark"}]
        return send({"messages": messages, "tools": tools})[1]["choices"][0]["message"]["content"]
    """
    call = '<tool_call>{"name": "look", "arguments": {"room": "hall"}}</tool_call>'
    first, second, last = played(agent(code), call, "right")
    system, _ = first.info["request"]["messages"]
    assert system[0] == "system" and system[1].startswith("sys\n<tools>") and "look" in system[1]
    assert begins([second]) == [(0, "")] and second.info["request"]["messages"] == [["tool", "dark"]]
    assert last.reward == 1


def test_calls_that_are_none_are_text_and_invalid():
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"properties": {"room": {}}}}}]
    request = CHAT.read({"messages": [{"role": "user", "content": "q"}], "tools": tools, "stop": "END"}, "", 1000)
    spoken = answer_to(request, "look the hall", 3)
    (call,) = CHAT.whole(request, [spoken])["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"room": "the hall"} and call["id"] == "call_3_0"
    for text in ("<tool_call>{</tool_call>", '<tool_call>{"name": "fly", "arguments": {}}</tool_call>', "<tool_call>"):
        reply = answer_to(request, text, 0)
        assert not reply.valid and reply.text == text and not reply.calls
    (choice,) = CHAT.whole(request, [answer_to(request, "so END more" + CUT, 0)])["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("so ", "stop")
    assert answer_to(request, "so" + CUT, 0).finish == "length"
    assert CUT == worker_module.CUT


STREAMED = """
def events(body):
    url, key = os.environ["OPENAI_BASE_URL"] + "/chat/completions", os.environ["OPENAI_API_KEY"]
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Authorization": "Bearer " + key})
    with urllib.request.urlopen(request) as response:
        lines = [line for line in response.read().decode().split("\\n") if line]
    assert all(line.startswith(("data: ", ": ")) for line in lines) and lines[-1] == "data: [DONE]", lines
    return [json.loads(line[6:]) for line in lines[:-1] if line.startswith("data: ")]

def play(task):
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"properties": {"room": {}}}}}]
    messages = [{"role": "user", "content": "q"}]
    came = events({"messages": messages, "tools": tools, "stream": True, "stream_options": {"include_usage": True}})
    deltas = [each["choices"][0]["delta"] for each in came if each["choices"]]
    text = "".join(delta.get("content") or "" for delta in deltas)
    parts = [part for delta in deltas for part in delta.get("tool_calls", ())]
    assert came[-2]["choices"][0]["finish_reason"] == "tool_calls"
    arguments = "".join(part["function"]["arguments"] for part in parts)
    call = {"id": parts[0]["id"], "type": "function", "function": {"name": "look", "arguments": arguments}}
    messages += [{"role": "assistant", "content": text, "tool_calls": [call]}]
    messages += [{"role": "tool", "tool_call_id": call["id"], "content": json.dumps(came[-1]["usage"])}]
    last = events({"messages": messages, "tools": tools, "stream": True})
    assert not any("usage" in each for each in last)
    return "".join(each["choices"][0]["delta"].get("content") or "" for each in last)
"""


def test_a_streamed_answer_is_the_whole_one_in_events(agent):
    call = 'I go. <tool_call>{"name": "look", "arguments": {"room": "hall"}}</tool_call>'
    first, second, last = played(agent(STREAMED), call + "\x0412,34", "right")
    assert begins([first, second]) == [(0, "first"), (0, "")]
    assert json.loads(second.text) == {"prompt_tokens": 12, "completion_tokens": 34, "total_tokens": 46}
    assert last.reward == 1 and last.info["result"] == "right"


@pytest.mark.slow
def test_a_stream_is_kept_open_while_the_policy_is_waited_for(agent):
    async def scenario(pool):
        handle, _ = await pool.open(TASK, 0)
        await asyncio.sleep(6.0)
        assert (await handle.step("right")).reward == 1

    code = """
    import socket
    def play(task):
        host, port = os.environ["OPENAI_BASE_URL"].removeprefix("http://").removesuffix("/v1").split(":")
        body = json.dumps({"messages": [{"role": "user", "content": "q"}], "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: {len(body)}\\r\\n"
        head += f"Authorization: Bearer {os.environ['OPENAI_API_KEY']}\\r\\n\\r\\n"
        with socket.create_connection((host, int(port))) as asking:
            asking.sendall(head.encode() + body)
            said = b""
            while b"[DONE]" not in said:
                said += asking.recv(4096)
        assert b": waiting" in said.partition(b'"right"')[0]
        return "right"
    """
    in_pool(agent(code), scenario)


# ---- clients that are hostile --------------------------------------------------------------------------------------

USER = {"role": "user", "content": "q"}
REFUSED = [
    ([], "JSON object"),
    ({}, "at least one message"),
    ({"messages": "hi"}, "has to be a list"),
    ({"messages": [1]}, "message 0 has to be an object"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "a `role` of system"),
    ({"messages": [{"role": "user", "content": 5}]}, "has to be a text"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "reads text only"),
    ({"messages": [{"role": "assistant", "tool_calls": 3}]}, "have to be a list"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "has no `function`"),
    ({"messages": [USER], "n": 17}, "from 1 to 16"),
    ({"messages": [USER], "n": True}, "from 1 to 16"),
    ({"messages": [USER], "functions": [{}]}, "`tools` in place of"),
    ({"messages": [USER], "tool_choice": "required"}, "there are no `tools`"),
    ({"messages": [USER], "tool_choice": "always"}, "`tool_choice` has to be"),
    ({"messages": [USER], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "names 'f'"),
    ({"messages": [USER], "tool_choice": {"type": "function"}}, "has to name tools"),
    ({"messages": [USER], "stream": "yes"}, "`stream` has to be"),
    ({"messages": [USER], "stream": True, "stream_options": 1}, "`stream_options` has to be an object"),
    ({"messages": [USER], "logprobs": True, "top_logprobs": 3}, "log-probs"),
    ({"messages": [USER], "response_format": {"type": "xml"}}, "json_object or json_schema"),
    ({"messages": [USER], "response_format": {"type": "json_schema"}}, "with a `schema`"),
    ({"messages": [USER], "tools": 7}, "`tools` has to be a list"),
    ({"messages": [USER], "tools": [{"type": "web_search"}]}, "of type `function`"),
    ({"messages": [USER], "tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": 1}}}]},
     "no `properties`"),
    ({"messages": [USER], "max_tokens": 0}, "at least 1"),
    ({"messages": [USER], "max_tokens": True}, "at least 1"),
    ({"messages": [USER], "stop": [""]}, "`stop`"),
    ({"messages": [USER], "stop": {"a": 1}}, "`stop`"),
    ({"messages": [{"role": "user", "content": "x" * 1001}]}, "1001 characters"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "phrase"), REFUSED, ids=[phrase for _, phrase in REFUSED])
def test_what_is_no_request_is_refused_in_a_sentence(body, phrase):
    with pytest.raises(RefusedRequest) as caught:
        CHAT.read(body, "", 1000)
    assert phrase in str(caught.value) and "\n" not in str(caught.value)


def test_any_json_is_a_request_or_refused():
    """Nothing that JSON can say raises anything else."""
    rng = random.Random(0)
    words = ["role", "user", "assistant", "content", "tool_calls", "function", "name", "arguments", "text", "type",
             "messages", "tools", "stop", "max_tokens", "n", "\ud800", "{", "properties", "parameters"]  # fmt: skip

    def value(depth):
        kind = rng.randrange(8 if depth else 5)
        if kind < 5:
            return [rng.choice(words), rng.choice(words), None, True, rng.randrange(-2, 3)][kind]
        if kind == 5:
            return [value(depth - 1) for _ in range(rng.randrange(3))]
        return {rng.choice(words): value(depth - 1) for _ in range(rng.randrange(4))}

    passed = 0
    for _ in range(20_000):
        message = value(3)
        if isinstance(message, dict) and rng.random() < 0.8:
            message |= {"role": rng.choice(["user", "assistant", "tool"])}
        body = {"messages": [message], rng.choice(words[-9:]): value(3)}
        try:
            request = CHAT.read(body, "", 1000)
        except RefusedRequest:
            continue
        except TypeError as error:
            raise AssertionError(body) from error
        passed += 1
        assert request.digest and json.dumps(CHAT.whole(request, [answer_to(request, "look \ud800", 0)]))
    assert passed > 100


NESTED = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "DEEP"}}]}


@pytest.mark.parametrize("levels", [101, 500, 990, 3000, 100_000])
@pytest.mark.parametrize("where", ["arguments", "content", "tools"])
def test_a_nested_body_is_refused_in_a_sentence(levels, where):
    deep = "[" * levels + "]" * levels
    if levels < 1000:
        value = json.loads(deep) if levels < 900 else None
        if value is None:
            value = []
            for _ in range(levels - 1):
                value = [value]
        body = {"messages": [{"role": "user", "content": "q"}]}
        if where == "tools":
            body["tools"] = [
                {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": value}}}}
            ]
        elif where == "content":
            body["messages"].append({"role": "user", "content": value})
        else:
            body["messages"].append({**NESTED, "tool_calls": [{"function": {"name": "f", "arguments": value}}]})
        with pytest.raises(RefusedRequest, match="nested more than 100 levels"):
            CHAT.read(body, "", 100_000)
    if where == "arguments":  # as a text they are a text
        call = {"function": {"name": "f", "arguments": deep}}
        assert CHAT.read({"messages": [{**NESTED, "tool_calls": [call]}]}, "", 300_000).messages[0].content


MANY = 5000


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": ""}] * MANY},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * MANY}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}] * MANY}]},
        {"messages": [{"role": "user"}], "tools": [{"type": "function", "function": {"name": ""}}] * MANY},
    ],
    ids=["messages", "parts", "calls", "tools"],
)
def test_many_empty_things_are_refused_before_they_are_worked_on(body):
    def refused():
        with pytest.raises(RefusedRequest, match="at most 2000 are read") as caught:
            CHAT.read(body, "", 100_000)
        assert caught.value.too_long

    assert executed_lines(refused) < 100 * MANY


ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)


@settings(deadline=None)
@given(ANY_TEXT)
def test_no_half_of_a_character_passes_a_request(text):
    function = {"name": text, "description": text, "parameters": {"properties": {text: {"description": text}}}}
    call = {"id": text, "function": {"name": text, "arguments": json.dumps({"a": text, text: [text]})}}
    body = {
        "messages": [
            {"role": "user", "content": text},
            {"role": "user", "content": [{"type": "text", "text": text}]},
            {"role": "assistant", "content": text, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": text, "content": text},
        ],
        "tools": [{"type": "function", "function": function}],
        "stop": [text or "x"],
        "model": text,
    }  # fmt: skip
    request = CHAT.read(body, "", 100_000)
    conversation, begins, new = Conversations("hermes").take(request)
    shown = said_of(conversation, begins, new, request, DrawnNames())
    json.dumps(shown, ensure_ascii=False).encode()
    [tool.shown().encode() for tool in request.tools.values()]
    if not any("\ud800" <= sign <= "\udfff" for sign in text):
        assert request.messages[0].content == request.messages[1].content == text and request.stop == (text or "x",)


def test_a_body_is_utf8_whatever_it_says(agent):
    code = """
    def play(task):
        texts = [b'{"messages": [{"role": "user", "content": "' + b"a-" * 100_000 + b'"}]}']
        began = time.process_time()
        tried = [
            send(text, **{"Content-Type": "application/json; charset=" + name})[0]
            for text in texts for name in ("punycode", "utf-7", "unicode_escape", "nonsense", "utf-16")
        ]
        deep = b'{"messages": [{"role": "user", "content": ' + b"[" * 990 + b"]" * 990 + b'}]}'
        tried.append(send(deep)[0])
        tried.append(send(b'{"messages": [{"role": "user", "content": "\\xff"}]}')[0])
        return ask(" ".join(map(str, tried)))
    """
    began = time.monotonic()
    first, _ = played(agent(code, request_characters=100_000), "hi")
    assert first.text == "400 400 400 400 400 400 400"
    assert time.monotonic() - began < 30


def test_no_key_of_any_episode_passes(agent, tmp_path):
    (tmp_path / "keys").mkdir()
    code = """
    def play(task):
        me = os.environ["OPENAI_API_KEY"]
        open("keys/" + str(task["number"]) + ".part", "w").write(me)
        os.rename("keys/" + str(task["number"]) + ".part", "keys/" + str(task["number"]))
        while not all(os.path.exists("keys/" + str(number)) for number in range(2)):
            time.sleep(0.05)
        other = open("keys/" + str(1 - task["number"])).read()
        escaped = "".join("\\\\u%04x" % ord(sign) for sign in other)
        body = '{"messages": [{"role": "user", "content": "%s and %s and %s"}]}' % (me, other, escaped)
        status, said = send(body.encode(), **{"X-Agent": other})
        return f"{said['choices'][0]['message']['content']} {me} {other}"
    """

    async def scenario(pool):
        both = await asyncio.gather(*(pool.open({**TASK, "number": number}, 0) for number in range(2)))
        ends = await asyncio.gather(*(handle.step("say") for handle, _ in both))
        return [(first, end) for (_, first), end in zip(both, ends, strict=True)]

    for first, end in in_pool(agent(code), scenario):
        assert first.text == "[secret] and [secret] and [secret]" and first.info["request"]["agent"] == "[secret]"
        assert end.info["result"] == "say [secret] [secret]"
    keys = [file.read_text() for file in (tmp_path / "keys").iterdir()]
    assert len({*keys}) == 2 and not any(key.startswith("[") for key in keys)


def test_what_waits_when_the_episode_is_over_is_answered(agent, tmp_path):
    code = """
    def play(task):
        if not os.fork():
            os.setsid()
            time.sleep(0.5)
            open("asks", "w").close()
            status, said = send({"messages": [{"role": "user", "content": "left behind"}]})
            with open("told", "w") as file:
                file.write(f"{status} {said['error']['message']}")
            os._exit(0)
        return ask("q")
    """

    async def there(name):
        for _ in range(200):
            if (tmp_path / name).exists() and (name == "asks" or (tmp_path / name).read_text()):
                return
            await asyncio.sleep(0.1)

    async def scenario(pool):
        handle, first = await pool.open(TASK, 0)
        assert first.text == "q"
        await there("asks")
        await asyncio.sleep(0.5)
        await handle.close()
        await there("told")

    in_pool(agent(code), scenario)
    assert (tmp_path / "told").read_text() == "410 the episode of this key is over."


def test_hostile_bytes_keys_and_paths_are_refused(agent):
    code = """
    def play(task):
        key = os.environ["OPENAI_API_KEY"]
        good = {"messages": [{"role": "user", "content": "q"}]}
        tried = [
            send(b"\\xff\\xfe{"), send(b"["*60000), send(b""), send(b"{" + b" " * 2000000),
            send(good, key="wrong"), send(good, key=key[:-1]),
            send(good, path="/responses"), send(good, path="/nowhere"),
        ]
        assert all("message" in said["error"] for _, said in tried)
        return ask(" ".join(str(status) for status, _ in tried) + " my key is " + key)
    """
    first, last = played(agent(code, request_characters=1000), "right")
    assert first.text == "400 400 400 400 401 401 400 404 my key is [secret]"
    assert last.reward == 1


def test_the_longest_request_arrives(agent):
    code = "def play(task):\n    return ask(chr(0x4e2d) * 690_000)"
    first, last = played(agent(code, request_characters=690_000), "right")
    assert len(first.info["request"]["messages"][0][1]) == 690_000 and last.reward == 1


def test_more_requests_at_once_than_may_wait_are_held(agent):
    code = """
    def play(task):
        said = []
        def one(name):
            said.append(send({"messages": [{"role": "user", "content": name}]})[0])
        threads = [threading.Thread(target=one, args=(name,)) for name in "abcde"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return " ".join(map(str, said))
    """

    async def scenario(pool):
        handle, _ = await pool.open(TASK, 0)
        for _ in range(5):
            last = await handle.step("a")
        assert last.info["result"] == "200 200 200 200 200"

    in_pool(agent(code, most_at_once=1), scenario)


def test_a_client_that_asks_again_after_a_time_out_gets_the_first_answer(agent):
    code = """
    import socket
    def play(task):
        host, port = os.environ["OPENAI_BASE_URL"].removeprefix("http://").removesuffix("/v1").split(":")
        body = json.dumps({"messages": [{"role": "user", "content": "q"}]}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: {len(body)}\\r\\n"
        head += f"Authorization: Bearer {os.environ['OPENAI_API_KEY']}\\r\\n\\r\\n"
        with socket.create_connection((host, int(port))) as gone:
            gone.sendall(head.encode() + body)
            time.sleep(0.5)
        time.sleep(0.3)
        return ask("q")
    """

    async def scenario(pool):
        handle, first = await pool.open(TASK, 0)
        await asyncio.sleep(0.6)
        last = await handle.step("right")
        assert first.text == "q" and last.done and last.info["result"] == "right"

    in_pool(agent(code), scenario)


# ---- agents that hang, die, flood or leave things behind -----------------------------------------------------------


def test_a_hanging_agent_costs_its_own_episode(agent, tmp_path):
    code = """
    def play(task):
        said = ask("q")
        (open(f"pid-{said}", "w")).write(str(os.getpid()))
        while said == "hang":
            time.sleep(1)
        return ask("q", said, "more")
    """

    async def scenario(pool):
        (bad, _), (good, _) = [await pool.open(TASK, 0) for _ in range(2)]
        hanging = asyncio.ensure_future(bad.step("hang"))
        began = time.monotonic()
        assert (await good.step("on")).text == "more" and (await good.step("right")).reward == 1
        assert time.monotonic() - began < 2.5
        with pytest.raises(EnvironmentFailure) as caught:
            await hanging
        assert caught.value.kind == "timeout" and pool.counts["timeouts"] == 1 and not pool.counts["restarts"]
        await asyncio.sleep(0.3)
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid-hang").read_text()), 0)

    in_pool(agent(code), scenario, time_limit_s=3.0)


@pytest.mark.parametrize("preload", [True, False])
def test_a_dying_agent_is_scored_or_lost(agent, preload):
    code = 'def play(task):\n    said = ask("q")\n    raise ValueError("no " + said)'
    _, last = played(agent(code, preload=preload), "right")
    assert last.done and last.reward == 0 and last.info["ended"] == "died"
    assert "ValueError: no right" in last.info["died"]
    failure = lost(agent(code, preload=preload, crashes="lose"), "right")
    assert failure.kind == "raised" and "the agent died with status 1: ValueError: no right" in failure.message
    failure = lost(agent("def play(task):\n    os._exit(3)", preload=preload))
    assert failure.kind == "raised" and "ended before its first request" in failure.message
    failure = lost(agent('def play(task):\n    sys.exit("no luck")', preload=preload))
    assert "ended before its first request: no luck" in failure.message
    assert "agent.py has no function play" in lost(agent("def other(task): pass", preload=preload)).message
    assert "No module named 'nowhere'" in lost(agent("import nowhere", preload=preload)).message
    early = 'KEY = os.environ.get("OPENAI_API_KEY")\ndef play(task):\n    return ask("q", key=KEY or "none")'
    if preload:
        assert "hier.environment.preload: false" in lost(agent(early)).message
    else:
        assert played(agent(early, preload=False), "right")[-1].reward == 1


@pytest.mark.parametrize(
    ("fault", "phrase"),
    [
        ('send({"messages": 3})', "`messages` has to be a list"),
        ('send({"messages": [{"role": "user", "content": "q"}]}, path="/nowhere")', "is not known here"),
        ("leave()", "went away before it was answered"),
    ],
)
def test_an_agent_that_died_of_the_wire_is_lost_and_not_scored(agent, fault, phrase):
    code = f"""
    def leave():
        url, key = os.environ["OPENAI_BASE_URL"] + "/chat/completions", os.environ["OPENAI_API_KEY"]
        body = json.dumps({{"messages": [{{"role": "user", "content": "slow"}}]}}).encode()
        request = urllib.request.Request(url, body, {{"Authorization": "Bearer " + key}})
        urllib.request.urlopen(request, timeout=0.5)

    def play(task):
        said = ask("q")
        {fault}
        if said == "on":
            said = ask("q", said, "more")
        raise ValueError("no " + said)
    """
    options = agent(code, request_characters=1000)

    async def scenario(pool):
        handle, _ = await pool.open(TASK, 0)
        step = await handle.step("right")
        assert phrase.startswith("went") and not step.done
        await asyncio.sleep(1.0)
        await handle.step("late")

    with pytest.raises(EnvironmentFailure) as caught:
        in_pool(options, scenario)
    assert caught.value.kind == "raised" and phrase in caught.value.message
    assert "its last line: " in caught.value.message and "Error" in caught.value.message
    if not phrase.startswith("went"):  # one that lived on was answered, and died of what the policy said
        *_, last = played(options, "on", "right")
        assert last.done and last.reward == 0 and last.info["ended"] == "died"


def test_the_process_that_imported_the_agent_may_die(agent, tmp_path):
    code = """
    import signal
    def play(task):
        said = ask("q")
        if said == "kill":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
        return said
    """

    async def scenario(pool):
        (bad, _), (other, _) = [await pool.open(TASK, 0) for _ in range(2)]
        assert (await bad.step("kill")).info["ended"] == "died"
        await asyncio.sleep(0.5)
        with pytest.raises(EnvironmentFailure, match="went away before it was answered"):
            await other.step("right")  # the copies end with their source, which is no word about the policy
        again, _ = await pool.open(TASK, 0)
        assert (await again.step("right")).reward == 1

    in_pool(agent(code), scenario)


def test_limits_of_calls_time_and_result(agent):
    code = """
    def play(task):
        said = []
        while True:
            said += [ask(str(len(said)))]
    """
    steps = played(agent(code, max_calls=2), "a", "b")
    assert steps[-1].truncated and not steps[-1].done and steps[-1].info["ended"] == "max_calls"
    code = 'def play(task):\n    ask("q")\n    time.sleep(60)'
    began = time.monotonic()
    *_, last = played(agent(code, agent_s=1.5), "a")
    assert last.truncated and last.info["ended"] == "agent_s" and time.monotonic() - began < 20
    code = 'def play(task):\n    ask("q")\n    print("x" * 10_000_000)\n    return "y" * 10_000_000'
    *_, last = played(agent(code, result_characters=50), "a")
    assert last.info["result"] == "y" * 50


def test_a_program_that_says_nothing_new_for_ever_is_truncated(agent):
    code = """
    def play(task):
        summary = ask("a long story")
        while True:
            said = ask("Summarise: " + summary)
            summary = ask("What did we do?", said, "Continue.")
    """
    answers = [f"what happened until day {day}" for day in range(40)]
    steps = played(agent(code, max_idle=6), *answers[:9])
    assert steps[-1].truncated and steps[-1].info["ended"] == "max_idle"
    # One that hears something new each time goes on.
    code = """
    def play(task):
        for number in range(20):
            said = ask(f"question {number}")
        return said
    """
    assert played(agent(code, max_idle=3), *["right"] * 20)[-1].reward == 1


def test_an_agent_that_dies_of_a_limit_is_truncated(agent):
    code = """
    def play(task):
        said = ask("q")
        status, refused = send({"messages": [{"role": "user", "content": "x" * 2000}]})
        assert (status, refused["error"]["code"]) == (400, "context_length_exceeded"), refused
        assert "exceeds the context window" in refused["error"]["message"], refused
        if said == "on":
            said = ask("q", said, "shorter")
        raise ValueError("no " + said)
    """
    options = agent(code, request_characters=1000)
    last = played(options, "right")[-1]
    assert last.truncated and last.info["ended"] == "too_long" and last.reward == 0
    # One that lived on was answered, and died of what the policy said.
    *_, last = played(options, "on", "right")
    assert last.done and last.info["ended"] == "died"


def test_waiting_for_the_policy_costs_the_agent_no_time(agent):
    async def scenario(pool):
        handle, _ = await pool.open(TASK, 0)
        await asyncio.sleep(2.0)
        assert (await handle.step("right")).reward == 1

    in_pool(agent('def play(task):\n    return ask("q")', agent_s=1.5), scenario)


def test_nothing_of_an_agent_outlives_its_episode(agent, tmp_path):
    code = """
    import subprocess
    def play(task):
        child = subprocess.Popen(["sleep", "600"])
        open("child", "w").write(str(child.pid))
        return ask("q")
    """
    *_, last = played(agent(code), "right")
    assert last.reward == 1
    state = ""
    for _ in range(40):
        try:
            state = open(f"/proc/{(tmp_path / 'child').read_text()}/stat").read().split()[2]
        except FileNotFoundError:
            return
        if state == "Z":
            return
        time.sleep(0.05)
    raise AssertionError(f"the agent's own process lives on ({state})")


# ---- forks ---------------------------------------------------------------------------------------------------------

NAMED_RUNS = """
def play(task):
    open("runs", "a").write("x")
    said = [ask("q")]
    while said[-1] not in ("left", "right"):
        said += [ask("q", *sum(([word, "more"] for word in said), []))]
    return said[-1]
"""


def test_a_fork_runs_the_agent_again_on_its_answers(agent, tmp_path):
    async def scenario(pool):
        source, _ = await pool.open(TASK, 0)
        await source.step("up")
        await source.step("down")
        fork = await source.fork()
        assert (tmp_path / "runs").read_text() == "x"
        assert (await source.step("left")).reward == 0
        assert (await fork.step("right")).reward == 1
        assert (tmp_path / "runs").read_text() == "xx" and not pool.counts["replay_mismatch"]
        await pool.kill_processes()
        earlier = await pool.resume(TASK, 0, source.actions[:1], source.steps[:2])
        assert (await earlier.step("right")).reward == 1

    in_pool(agent(NAMED_RUNS), scenario)
    failing = agent(NAMED_RUNS, repeatable=False)

    async def refused(pool):
        source, _ = await pool.open(TASK, 0)
        with pytest.raises(RecipeError, match=r"hier\.environment\.repeatable"):
            await (await source.fork()).step("right")

    in_pool(failing, refused)


def test_requests_side_by_side_are_repeated_in_the_recorded_order(agent):
    code = """
    import random
    def play(task):
        said = {}
        def one(name):
            time.sleep(random.random() / 3)
            said[name] = ask(name)
            said[name] += ask(name, said[name], "more")
        threads = [threading.Thread(target=one, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return " ".join(said[name] for name in sorted(said))
    """

    async def scenario(pool):
        source, _ = await pool.open(TASK, 0)
        for _ in range(5):
            asked = source.steps[-1]
            await source.step(f"{asked.info['request']['context']}")
        for _ in range(3):
            fork = await source.fork()
            step = source.steps[-1]
            while not step.done:
                step = await fork.step("z")
            assert pool.counts["replay_mismatch"] == 0 and step.info["result"].count("z") == 3

    in_pool(agent(code), scenario)


def test_an_agent_that_does_not_repeat_itself_is_lost(agent):
    code = 'def play(task):\n    ask("q" + os.urandom(4).hex())\n    return ask("q")'

    async def scenario(pool):
        source, _ = await pool.open(TASK, 0)
        fork = await source.fork()
        with pytest.raises(EnvironmentFailure, match="is not deterministic"):
            await fork.step("a")
        assert pool.counts["replay_mismatch"] == 1

    in_pool(agent(code), scenario)


# ---- through the worker --------------------------------------------------------------------------------------------


class Branches(Sampler):
    """One episode, and a fork after each of its turns."""

    async def sample(self, rollout):
        root = await rollout.start().run()
        for after in range(1, len(root.path)):
            await (await root.fork(after)).run()


def roll_out_through(options, answer, sampler, worker=None, n=2, limits=Limits()):
    spec = hier_workers()
    chosen = build_options(spec, {"name": "gateway", **(worker or {})})

    async def scenario(pool):
        policy = ScriptedPolicy(WordTokenizer(), answer)
        setup = RolloutSetup({DEFAULT_POLICY: policy}, PlainRenderer(policy.tokenizer), pool, limits, 0)
        request = Request(TASK, {"uid": "u", "index": 0}, n)
        rollout = Rollout(request, setup, lambda: spec.factory(chosen), Roles.of(spec, chosen))
        return await roll_out(rollout, sampler), policy

    return in_pool(options, scenario)


def test_contexts_are_token_exact_and_forks_pay_nothing_twice(agent, tmp_path):
    answers = iter(["up", "down", "left", "right", "right"])
    graph, policy = roll_out_through(agent(NAMED_RUNS), lambda prompt, sampling: next(answers), Branches())
    words = policy.tokenizer
    root = [graph.nodes[number] for number in graph.path(0)]
    assert [node.text for node in root] == ["up", "down", "left"]
    assert [node.context for node in root] == [-1, root[0].id, root[1].id]
    # The policy read its own tokens again, end tokens included, and nothing of them was tokenised anew.
    assert words.decode(policy.prompts[2]) == "q <act> up <end> more <act> down <end> more <act>"
    assert policy.prompts[2] == graph.prompt(root[2].id)
    assert len(policy.prompts) == 5 and [graph.episodes[i].shared for i in (1, 2)] == [1, 2]
    assert [episode.success for episode in graph.episodes] == [False, True, True]
    assert (tmp_path / "runs").read_text() == "xxx"


def test_edits_begin_contexts_and_are_counted_and_agents_have_roles(agent):
    code = """
    def play(task):
        a = ask("plan")
        ask("search: lamp")
        ask("plan", a + " and more", "go")
        return ask("check", **{"X-Agent": "checker"})
    """
    agents = {"planner": {"level": 0}, "searcher": {"level": 1, "begins": "search"}, "checker": {"level": 1}}
    graph, _ = roll_out_through(agent(code), lambda prompt, sampling: "right", SideBySide(), {"agents": agents}, n=1)
    assert [(node.role, node.level, node.context) for node in graph.nodes] == [
        ("planner", 0, -1), ("searcher", 1, -1), ("planner", 0, -1), ("checker", 1, -1),
    ]  # fmt: skip
    assert [node.extra["edited"] for node in graph.nodes] == [0, 0, 1, 0]
    assert [node.extra.get("failure") for node in graph.nodes] == [None, None, "history_edited", None]


def test_a_request_for_a_summary_that_leaves_the_latest_turn_out_is_no_edit_once_its_answer_is_gone_on_with(agent):
    code = """
    def play(task):
        a = ask("plan")
        b = ask("plan", a, "more")
        summary = ask("plan", a, "sum up", "now")
        return ask("until now: " + summary, b, "on")
    """
    summary = "there was much to see in the hall"
    said = {"until": "right", "sum": summary}

    def answer(prompt, sampling):
        return next((said[word] for word in said if word in prompt.split()), "left")

    graph, _ = roll_out_through(agent(code), answer, SideBySide(), n=1)
    assert [node.text for node in graph.nodes][2:] == [summary, "right"]
    assert [node.context for node in graph.nodes] == [-1, 0, -1, -1]
    assert [(node.extra["edited"], node.extra["compacted"]) for node in graph.nodes] == [(0, 0)] * 3 + [(0, 1)]
    assert graph.nodes[3].messages[0].sources == [2]
    assert not any("failure" in node.extra for node in graph.nodes)


def test_an_agent_that_the_recipe_does_not_name_is_another_one_and_said_once(agent, caplog):
    code = """
    def play(task):
        for name in (b"checker", b"\\xff\\xed\\xa0\\x80", b"checker"):
            said = ask(f"check {name}", **{"X-Agent": name})
        return said
    """
    worker_module._said.clear()
    graph, _ = roll_out_through(agent(code), lambda prompt, sampling: "right", SideBySide(), n=2)
    assert [(node.role, node.extra["failure"]) for node in graph.nodes] == [("agent", "unnamed_agent")] * 6
    assert [episode.status for episode in graph.episodes] == ["finished"] * 2
    said = [record.getMessage() for record in caplog.records]
    assert sum("a request is of the agent 'checker', by its header X-Agent" in each for each in said) == 1


def test_limits_of_a_request_reach_the_policy(agent):
    code = """
    def play(task):
        said = send({"messages": [{"role": "user", "content": "q"}], "max_completion_tokens": 2, "stop": ["end"]})[1]
        return said["choices"][0]["finish_reason"]
    """
    seen = []

    def answer(prompt, sampling):
        seen.append((sampling.max_tokens, sampling.stop))
        return "a b c d"

    roll_out_through(agent(code), answer, SideBySide(), n=1)
    assert seen == [(2, ("end",))]


def test_an_answer_says_the_tokens_that_the_policy_read_and_wrote(agent, tmp_path):
    code = """
    def play(task):
        body, counts = {"messages": [{"role": "user", "content": "one two three"}]}, []
        for _ in range(2):
            said = send(body)[1]
            counts.append([said["usage"]["prompt_tokens"], said["usage"]["completion_tokens"]])
            body["messages"] += [said["choices"][0]["message"], {"role": "user", "content": "four five"}]
        open("counts", "w").write(json.dumps(counts))
        return "right"
    """
    graph, _ = roll_out_through(agent(code), lambda prompt, sampling: "a b c", SideBySide(), n=1)
    counts = json.loads((tmp_path / "counts").read_text())
    assert counts == [[len(graph.prompt(node.id)), len(node.action)] for node in graph.nodes]
    assert counts[1][0] > counts[0][0] + counts[0][1]


def test_a_conversation_without_room_is_refused_so_that_the_agent_shortens_it(agent, tmp_path):
    code = """
    def play(task):
        assert os.environ["AGENT_CONTEXT_TOKENS"] == "40"
        said = ask("q")
        status, refused = send({"messages": [{"role": "user", "content": "word " * 60}]})
        assert (status, refused["error"]["code"]) == (400, "context_length_exceeded"), refused
        assert "exceeds the context window" in refused["error"]["message"], refused
        return ask("in short: word")
    """
    options = agent(code, context_tokens=40)
    graph, _ = roll_out_through(
        options, lambda prompt, sampling: "right", SideBySide(), n=1, limits=Limits(context_tokens=40)
    )
    assert [node.text for node in graph.nodes] == ["right"] * 2 and graph.episodes[0].success
    assert graph.episodes[0].status == "finished"


def test_log_probs_are_those_of_the_tokens_that_the_policy_wrote(agent, tmp_path):
    code = """
    def play(task):
        said = send({"messages": [{"role": "user", "content": "q"}], "logprobs": True})[1]["choices"][0]
        open("said", "w").write(json.dumps(said["logprobs"]["content"]))
        return said["message"]["content"]
    """
    graph, _ = roll_out_through(agent(code), lambda prompt, sampling: "all right", SideBySide(), n=1)
    (node,) = graph.nodes
    said = json.loads((tmp_path / "said").read_text())
    assert [each["logprob"] for each in said] == node.logprobs and [each["token"] for each in said][:2] == [
        "all",
        "right",
    ]
    failure = lost(agent(code), "right")  # by a worker that has none
    assert "returns no log-probs" in failure.message


def test_an_agent_that_died_is_counted(agent):
    code = 'def play(task):\n    ask("q")\n    raise SystemExit(1)'
    graph, _ = roll_out_through(agent(code), lambda prompt, sampling: "right", SideBySide(), n=1)
    assert graph.nodes[-1].extra["failure"] == "agent_died" and graph.episodes[0].ret == 0


# ---- secrets and options -------------------------------------------------------------------------------------------


def test_keys_reach_the_agent_and_nothing_else(agent, monkeypatch):
    monkeypatch.setenv("GATE_CANARY", "canary-1234567890")
    monkeypatch.setenv("NOT_NAMED", "other-1234567890")
    code = """
    def play(task):
        print(dict(os.environ), file=sys.stderr)
        return ask(os.environ["GATE_CANARY"] + " " + str(os.environ.get("NOT_NAMED")))
    """
    first, last = played(agent(code, secrets=("GATE_CANARY",)), "canary-1234567890")
    assert first.text == "[secret] None" and "canary" not in str((first, last))


OPTIONS = [
    ({"agent": "a:b", "command": "x", "data_path": "t"}, "leave one of them out"),
    ({"agent": "a:b"}, "needs data_path"),
    ({"agent": "ab", "data_path": "t"}, "`package.module:function`"),
    ({"command": "'", "data_path": "t"}, "no command line"),
    ({"command": "a", "python": "p", "data_path": "t"}, "interpreter of a command"),
    ({"validation_path": "v"}, "needs data_path"),
    ({"scorer": "exact"}, "scorer is one of"),
    ({"pool": 0}, "at least 1"),
    ({"max_calls": 0}, "at least 1"),
    ({"request_characters": 690_001}, "at most 690000"),
    ({"agent_s": 0}, "above 0"),
]


@pytest.mark.parametrize(("options", "phrase"), OPTIONS, ids=[phrase for _, phrase in OPTIONS])
def test_options_that_do_not_fit_are_refused(options, phrase):
    with pytest.raises(RecipeError, match=phrase):
        build_options(SPEC, {"name": "gateway", **options})


def test_what_is_not_there_is_refused_before_a_run(agent, tmp_path):
    good = agent("")
    for change, phrase in (
        ({"agent": "gone.py:play"}, "hier.environment.agent: there is no file"),
        ({"agent": "", "command": "gone-program x"}, "hier.environment.command: gone-program is no program"),
        ({"python": "/gone/python"}, "hier.environment.python"),
        ({"folder": "/gone"}, "hier.environment.folder"),
        ({"data_path": "gone.jsonl"}, "hier.environment.data_path: there is no file"),
        ({"scorer": "gone:f"}, "hier.environment.scorer"),
    ):
        with pytest.raises(RecipeError, match=phrase):
            SPEC.tasks(replace(good, **change), "train")
    (tmp_path / "tasks.jsonl").write_text('{"instruction": "x"}\n')
    with pytest.raises(RecipeError, match="line 1 has no `answer`"):
        SPEC.tasks(good, "train")


def test_splits_of_a_file_are_disjoint(agent):
    options = agent("")
    found = {split: {task["number"] for task in SPEC.tasks(options, split)} for split in SPEC.splits}
    assert sum(map(len, found.values())) == len(set.union(*found.values())) == 60
