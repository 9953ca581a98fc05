"""The dialects of the gateway: what the packages of their makers send and read, and the conversation behind them."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import openai
import pytest

from verl_hier.text import read_json
from verl_hier_plugins.environments.gateway import endpoint as gateway_endpoint
from verl_hier_plugins.environments.gateway.answers import CUT, Usage, answer_to
from verl_hier_plugins.environments.gateway.conversations import Conversations
from verl_hier_plugins.environments.gateway.dialects import BY_PATH, CHAT, MESSAGES, RESPONSES
from verl_hier_plugins.environments.gateway.endpoint import serving
from verl_hier_plugins.environments.gateway.inbox import Inbox
from verl_hier_plugins.environments.gateway.messages import RefusedRequest
from verl_hier_plugins.environments.gateway.options import GatewayOptions

SCHEMA = {"type": "object", "properties": {"room": {"type": "string"}}}
LOOK = 'I go. \n<tool_call>{"name": "look", "arguments":  {"room": "h\\u00e4ll"}}</tool_call>'
CALLED = [("I go.", [("look", {"room": "häll"})])]


def played(client, *answers, **options):
    """Runs a client against the endpoint, whose requests are answered in turn; the conversations, and its result."""
    conversations, contexts = Conversations("hermes"), []

    async def policy(inbox):
        for place, answer in enumerate(answers):
            while not inbox.waiting:
                inbox.changed.clear()
                await inbox.changed.wait()
            asked = inbox.waiting.pop(0)
            conversation, begins, new = conversations.take(asked.request)
            contexts.append((conversation.number, begins, [(each.role, each.content) for each in new]))
            said = answer_to(asked.request, answer, f"n0nce_{place}", usage=Usage(12, 5))
            conversations.answered(conversation, said.message)
            asked.answer.set_result(said)

    async def main():
        async with serving(GatewayOptions(**options)) as endpoint:
            inbox = endpoint.open()
            playing = asyncio.create_task(policy(inbox))
            try:
                return contexts, await client(endpoint.url, inbox.key)
            finally:
                playing.cancel()
                endpoint.close(inbox)

    return asyncio.run(main())


# ---- Anthropic's messages ------------------------------------------------------------------------------------------


@asynccontextmanager
async def anthropic_client(url, key):
    anthropic = pytest.importorskip("anthropic")
    async with anthropic.AsyncAnthropic(base_url=url.removesuffix("/v1"), api_key=key, max_retries=0) as client:
        yield client


MESSAGES_TOOL = {"name": "look", "description": "Look.", "input_schema": SCHEMA}
ASKED = {
    "model": "m",
    "max_tokens": 100,
    "system": [{"type": "text", "text": "You look.", "cache_control": {"type": "ephemeral"}}],
    "tools": [MESSAGES_TOOL, {"type": "web_search_20250305", "name": "web_search"}],
}


async def messages_loop(client, ask):
    """A program of Anthropic's form: it looks, and gives back what it sees beside a reminder."""
    messages = [{"role": "user", "content": [{"type": "text", "text": "go", "cache_control": {"type": "ephemeral"}}]}]
    first = await ask(messages=messages, **ASKED)
    (call,) = [block for block in first.content if block.type == "tool_use"]
    # Blocks come back in an order of their own, beside thoughts, and with a field that nobody wrote.
    said = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "I go."},
        {"type": "tool_use", "id": call.id, "name": call.name, "input": {**call.input, "all": False}},
    ]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "dark"}]}
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": said}]
    messages.append({"role": "user", "content": [result, {"type": "text", "text": "and now?"}]})
    return first, await ask(messages=messages, **ASKED)


def check_messages_loop(contexts, answers):
    first, second = answers
    assert [(number, begins) for number, begins, _ in contexts] == [(0, "first"), (0, "")]
    assert contexts[0][2][0][0] == "system" and contexts[0][2][0][1].startswith("You look.\n<tools>")
    assert "web_search" not in contexts[0][2][0][1]
    assert contexts[1][2] == [("tool", "dark"), ("user", "and now?")]
    assert [block.type for block in first.content] == ["text", "tool_use"]
    assert (first.content[0].text, first.content[1].input) == ("I go.", {"room": "häll"})
    assert (first.stop_reason, second.stop_reason) == ("tool_use", "end_turn")
    assert (first.usage.input_tokens, first.usage.output_tokens) == (12, 5)
    assert second.content[0].text == " done \n" and second.id != first.id


def test_messages_are_answered_as_their_client_reads_them():
    async def client(url, key):
        async with anthropic_client(url, key) as made:
            return await messages_loop(made, made.messages.create)

    check_messages_loop(*played(client, LOOK, " done \n"))


def test_messages_are_streamed_as_their_client_reads_them():
    names = []

    async def client(url, key):
        async with anthropic_client(url, key) as made:

            async def ask(**asked):
                async with made.messages.stream(**asked) as stream:
                    names.append([each.type async for each in stream])
                    return await stream.get_final_message()

            return await messages_loop(made, ask)

    check_messages_loop(*played(client, LOOK, " done \n"))
    raw = [name for name in names[0] if name.startswith(("message", "content"))]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert raw == ["message_start", *block, *block, "message_delta", "message_stop"]


def test_messages_that_end_otherwise_say_how():
    request = MESSAGES.read({"messages": [{"role": "user", "content": "q"}], "stop_sequences": ["END"]}, "", 1000)
    whole = MESSAGES.whole(request, [answer_to(request, "so END more", 0)])
    assert (whole["stop_reason"], whole["stop_sequence"], whole["content"][0]["text"]) == (
        "stop_sequence",
        "END",
        "so ",
    )
    assert MESSAGES.whole(request, [answer_to(request, "so" + CUT, 0)])["stop_reason"] == "max_tokens"
    assert MESSAGES.whole(request, [answer_to(request, "", 0)])["content"] == []


def test_refusals_are_those_of_the_dialect():
    async def client(url, key):
        anthropic = pytest.importorskip("anthropic")
        async with anthropic_client(url, key) as made:
            user = [{"role": "user", "content": "q"}]
            with pytest.raises(anthropic.BadRequestError, match="reads text only") as caught:
                await made.messages.create(
                    model="m", max_tokens=1, messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}]
                )
            assert caught.value.body["error"]["type"] == "invalid_request_error"
            with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: .* 1000 of hier\.environment"):
                await made.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "x" * 1001}])
        async with anthropic_client(url, "wrong") as made:
            with pytest.raises(anthropic.AuthenticationError, match="the key is that of no episode"):
                await made.messages.create(model="m", max_tokens=1, messages=user)

    played(client, request_characters=1000)


def test_tokens_are_counted_by_those_of_the_answers():
    async def client(url, key):
        async with anthropic_client(url, key) as made:
            asked = {"model": "m", "messages": [{"role": "user", "content": "x" * 24}]}
            before = await made.messages.count_tokens(**asked)
            await made.messages.create(max_tokens=9, **asked)
            after = await made.messages.count_tokens(model="m", messages=[{"role": "user", "content": "x" * 48}])
            models = [each.id async for each in made.models.list()]
            return before.input_tokens, after.input_tokens, models

    _, counted = played(client, "right")
    assert counted == (7, 24, ["policy"])


REFUSED = [
    ({}, "`messages` has to be a list"),
    ({"messages": [{"role": "robot"}]}, "a `role` of user, assistant, system"),
    ({"messages": [{"role": "user", "content": 5}]}, "has to be a text"),
    ({"messages": [{"role": "user", "content": []}]}, "say nothing"),
    ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "reads text only"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "reads text only"),
    ({"messages": [{"role": "user", "content": "q"}], "system": 5}, "`system` has to be a text"),
    ({"messages": [{"role": "user", "content": "q"}], "tools": [{"type": "bash_20250124", "name": "bash"}]},
     "has no `input_schema`"),
    ({"messages": [{"role": "user", "content": "q"}], "tools": [1]}, "each of `tools` has to be an object"),
    ({"messages": [{"role": "user", "content": "q"}], "max_tokens": -1}, "at least 1"),
    ({"messages": [{"role": "user", "content": "q"}], "stop_sequences": [1]}, "`stop_sequences` has to be"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 3000}]}, "at most 2000 are read"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [{}] * 3000}]}]}, "at most 2000"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "phrase"), REFUSED, ids=[phrase for _, phrase in REFUSED])
def test_what_are_no_messages_is_refused_in_a_sentence(body, phrase):
    with pytest.raises(RefusedRequest) as caught:
        MESSAGES.read(body, "", 1000)
    assert phrase in str(caught.value) and "\n" not in str(caught.value)


# ---- OpenAI's responses --------------------------------------------------------------------------------------------


@asynccontextmanager
async def openai_client(url, key):
    async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
        yield client


RESPONSES_TOOLS = [
    {"type": "function", "name": "look", "description": "Look.", "parameters": SCHEMA, "strict": False},
    {"type": "namespace", "name": "team", "tools": [{"type": "function", "name": "spawn", "parameters": SCHEMA}]},
    {"type": "custom", "name": "patch", "description": "Patches.", "format": {"type": "text"}},
    {"type": "web_search"},
]
RESPONSE = {"model": "m", "instructions": "You look.", "tools": RESPONSES_TOOLS}
SPAWN = '<tool_call>{"name": "spawn", "arguments": {"room": "h"}}</tool_call>'
PATCH = '<tool_call>{"name": "patch", "arguments": {"input": "+ a"}}</tool_call>'


async def responses_loop(client, ask):
    """A program that sends all items back, and one that names the response before."""
    items = [{"role": "user", "content": [{"type": "input_text", "text": "go"}]}]
    first = await ask(input=items, **RESPONSE)
    calls = [item for item in first.output if item.type.endswith("_call")]
    results = [{"type": f"{item.type}_output", "call_id": item.call_id, "output": "dark"} for item in calls]
    items += [{"type": "reasoning", "id": "r", "summary": []}]
    items += [item.model_dump(exclude={"status", "id"}) for item in first.output] + results
    second = await ask(input=items, **RESPONSE)
    other = {"role": "user", "content": "and now?"}
    third = await ask(input=[other], previous_response_id=second.id, **RESPONSE)
    fourth = await ask(input="other", previous_response_id=third.id, model="m")
    return first, second, third, fourth


def check_responses_loop(contexts, answers):
    first, second, third, _ = answers
    assert [(number, begins) for number, begins, _ in contexts] == [(0, "first"), (0, ""), (0, ""), (1, "handed")]
    shown = contexts[0][2][0][1]
    assert shown.startswith("You look.\n<tools>") and "spawn" in shown and "web_search" not in shown
    assert contexts[1][2] == [("tool", "dark")] * 3 and contexts[2][2] == [("user", "and now?")]
    # The instructions are not those of the response before.
    assert contexts[3][2][0] == ("user", "go") and contexts[3][2][-1] == ("user", "other")
    text, look, spawn, patch = first.output
    assert (text.content[0].text, look.name, json.loads(look.arguments)) == ("I go.", "look", {"room": "häll"})
    assert (look.namespace, spawn.namespace) == (None, "team")
    assert (patch.type, patch.input) == ("custom_tool_call", "+ a")
    assert (first.output_text, second.output_text, first.status) == ("I go.", " done \n", "completed")
    assert (first.usage.input_tokens, first.usage.output_tokens, first.usage.total_tokens) == (12, 5, 17)
    assert len({answer.id for answer in answers}) == 4 and third.previous_response_id == second.id


THREE = f"{LOOK}{SPAWN}{PATCH}"


def test_responses_are_answered_as_their_client_reads_them():
    async def client(url, key):
        async with openai_client(url, key) as made:
            return await responses_loop(made, made.responses.create)

    check_responses_loop(*played(client, THREE, " done \n", "three", "four"))


def test_responses_are_streamed_as_their_client_reads_them():
    seen = []

    async def client(url, key):
        async with openai_client(url, key) as made:

            async def ask(**asked):
                stream = await made.responses.create(stream=True, **asked)
                seen.append([each async for each in stream])
                items = [each.item for each in seen[-1] if each.type == "response.output_item.done"]
                assert [item.model_dump() for item in items] == [
                    item.model_dump() for item in seen[-1][-1].response.output
                ]
                return seen[-1][-1].response

            return await responses_loop(made, ask)

    check_responses_loop(*played(client, THREE, " done \n", "three", "four"))
    assert [each.sequence_number for each in seen[0]] == list(range(len(seen[0])))
    names = [each.type.removeprefix("response.") for each in seen[0]]
    text = ["content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
    added, done = "output_item.added", "output_item.done"
    called = [added, "function_call_arguments.delta", "function_call_arguments.done", done]
    free = [added, "custom_tool_call_input.delta", "custom_tool_call_input.done", done]
    assert names == ["created", "in_progress", added, *text, done, *called, *called, *free, "completed"]
    deltas = "".join(each.delta for each in seen[0] if each.type == "response.output_text.delta")
    assert deltas == "I go." and seen[0][0].response.id == seen[0][-1].response.id


def test_a_helper_of_the_package_accumulates_a_streamed_response():
    async def client(url, key):
        async with openai_client(url, key) as made:
            async with made.responses.stream(model="m", input="go", tools=RESPONSES_TOOLS[:1]) as stream:
                return [each.type async for each in stream][-1], await stream.get_final_response()

    _, (last, response) = played(client, LOOK)
    assert last == "response.completed" and response.output[1].name == "look"


def test_a_response_that_was_cut_is_incomplete():
    request = RESPONSES.read({"input": "q"}, "", 1000)
    whole = RESPONSES.whole(request, [answer_to(request, "so" + CUT, 0)])
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert RESPONSES.whole(request, [answer_to(request, "", 0)])["output"][0]["content"][0]["text"] == ""


REFUSED_RESPONSES = [
    ({}, "`input` has to be a text"),
    ({"input": []}, "`input` has to be a text"),
    ({"input": 5}, "`input` has to be a list"),
    ({"input": ["q"]}, "each of `input` has to be an object"),
    ({"input": [{"type": "computer_call"}]}, "item 0 is of type 'computer_call'"),
    ({"input": [{"role": "robot"}]}, "item 0 has to have a `role`"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "reads text only"),
    ({"input": "q", "tools": [{"type": "local_shell"}]}, "of type 'local_shell'"),
    ({"input": "q", "tools": [{"type": "function"}]}, "has to have a `name`"),
    ({"input": "q", "previous_response_id": "resp_1"}, "there is no response 'resp_1'"),
    ({"input": "q", "background": True}, "answers while its client waits"),
    ({"input": "q", "conversation": "c"}, "keeps no conversations"),
    ({"input": "q", "max_output_tokens": 0}, "at least 1"),
    ({"input": [{"role": "user", "content": ""}] * 3000}, "at most 2000 are read"),
    ({"input": "q", "tools": [{"type": "namespace", "tools": [{}] * 3000}]}, "at most 2000 are read"),
]


@pytest.mark.parametrize(("body", "phrase"), REFUSED_RESPONSES, ids=[phrase for _, phrase in REFUSED_RESPONSES])
def test_what_is_no_response_is_refused_in_a_sentence(body, phrase):
    with pytest.raises(RefusedRequest) as caught:
        RESPONSES.read(body, "", 1000)
    assert phrase in str(caught.value) and "\n" not in str(caught.value)


# ---- what a request wants of its answer ----------------------------------------------------------------------------

CHAT_TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": SCHEMA}}
    for name in ("look", "spawn")
]


def test_several_answers_are_one_conversation_each():
    async def client(url, key):
        async with openai_client(url, key) as made:
            messages = [{"role": "user", "content": "go"}]
            one = await made.chat.completions.create(model="m", messages=messages, n=2, tools=CHAT_TOOLS)
            chosen = one.choices[1].message
            messages += [chosen, {"role": "tool", "tool_call_id": chosen.tool_calls[0].id, "content": "dark"}]
            stream = await made.chat.completions.create(
                model="m", messages=messages, n=2, tools=CHAT_TOOLS, stream=True, stream_options={"include_usage": True}
            )
            texts, usage = {0: "", 1: ""}, None
            async for chunk in stream:
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
            return one, texts, usage

    contexts, (one, texts, usage) = played(client, "no", LOOK, "three", "four")
    assert [(number, begins) for number, begins, _ in contexts] == [(0, "first"), (1, "again"), (1, ""), (2, "again")]
    assert [choice.finish_reason for choice in one.choices] == ["stop", "tool_calls"]
    assert (one.usage.prompt_tokens, one.usage.completion_tokens) == (12, 10) and usage.completion_tokens == 10
    assert texts == {0: "three", 1: "four"} and contexts[2][2] == [("tool", "dark")]


DEMANDS = [
    ({"tool_choice": "required"}, "Answer with a call.", {"look": True, "text": False, "spawn": True}),
    ({"tool_choice": "none"}, "Answer without a call.", {"look": False, "text": True}),
    ({"tool_choice": {"type": "function", "function": {"name": "look"}}}, "Call look.",
     {"look": True, "text": False, "spawn": False}),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": CHAT_TOOLS[:1]}}},
     "Call look, or answer without a call.", {"look": True, "text": True, "spawn": False}),
    ({"parallel_tool_calls": False}, "Call one tool at a time.", {"look": True, "text": True, "both": False}),
    ({"response_format": {"type": "json_object"}}, "An answer that is no call is a JSON object, and nothing else.",
     {"look": True, "text": False, "json": True}),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"required": ["room"]}}}},
     'by the schema {"required": ["room"]}', {"json": True, "other": False, "text": False}),
]  # fmt: skip
TURNS = {
    "look": LOOK,
    "spawn": SPAWN,
    "both": LOOK + SPAWN,
    "text": "in the hall",
    "json": '<think>hm</think>\n{"room": "hall"}',
    "other": '{"place": "hall"}',
}


@pytest.mark.parametrize(("asked", "sentence", "turns"), DEMANDS, ids=[sentence for _, sentence, _ in DEMANDS])
def test_the_policy_is_told_what_is_wanted_and_other_turns_are_invalid(asked, sentence, turns):
    request = CHAT.read({"messages": [{"role": "user", "content": "go"}], "tools": CHAT_TOOLS, **asked}, "", 9000)
    conversations = Conversations("hermes")
    conversation, _, new = conversations.take(request)
    assert new[-1].role == "user" and sentence in new[-1].content
    for place, (turn, valid) in enumerate(turns.items()):
        answer = answer_to(request, TURNS[turn], place)
        assert answer.valid == valid, turn
        assert len(answer.calls) == (turn in ("look", "spawn", "both") and (valid or turn == "both")), turn
    assert answer_to(request, TURNS["json"], 9).text == ('{"room": "hall"}' if "json" in turns else TURNS["json"])
    # It is said once, and once more when it has changed; the tokens before stay as they are.
    called = answer_to(CHAT.read({"messages": [{"role": "user"}], "tools": CHAT_TOOLS}, "", 9000), LOOK, "n0nce_0")
    conversations.answered(conversation, called.message)
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "tool_calls": [{"id": "call_n0nce_0_0", "function": {}}]},
    ]
    for demand, said in ((asked, "dark"), ({}, "dark"), (asked, f"dark\n{request.demand.sentence}")):
        messages.append({"role": "tool", "content": "dark", "tool_call_id": "call_n0nce_0_0"})
        again = CHAT.read({"messages": messages, "tools": CHAT_TOOLS, **demand}, "", 9000)
        known, _, new = conversations.take(again)
        assert (known, [each.content for each in new]) == (conversation, [said])
        answer = answer_to(again, "and", "n0nce_1")
        conversations.answered(known, answer.message)
        messages.append({"role": "assistant", "content": "and"})


def test_what_is_wanted_is_read_alike_in_every_dialect():
    chat = {"messages": [{"role": "user", "content": "go"}], "tools": CHAT_TOOLS}
    claude = {"messages": [{"role": "user", "content": "go"}], "tools": [MESSAGES_TOOL]}
    items = {"input": "go", "tools": RESPONSES_TOOLS}
    schema = {"type": "json_schema", "schema": SCHEMA}
    alike = [
        [
            (CHAT, {**chat, "tool_choice": "required"}),
            (MESSAGES, {**claude, "tool_choice": {"type": "any"}}),
            (RESPONSES, {**items, "tool_choice": "required"}),
        ],
        [
            (CHAT, {**chat, "tool_choice": {"type": "function", "function": {"name": "look"}}}),
            (MESSAGES, {**claude, "tool_choice": {"type": "tool", "name": "look"}}),
            (RESPONSES, {**items, "tool_choice": {"type": "function", "name": "look"}}),
        ],
        [
            (CHAT, {**chat, "parallel_tool_calls": False}),
            (MESSAGES, {**claude, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}),
            (RESPONSES, {**items, "parallel_tool_calls": False}),
        ],
        [
            (CHAT, {**chat, "response_format": {"type": "json_schema", "json_schema": schema}}),
            (MESSAGES, {**claude, "output_config": {"format": schema}}),
            (RESPONSES, {**items, "text": {"format": schema}}),
        ],
    ]
    for bodies in alike:
        first, *rest = [dialect.read(body, "", 9000).demand for dialect, body in bodies]
        assert first.sentence and all(demand == first for demand in rest)


def test_clients_of_structured_output_read_it():
    pydantic = pytest.importorskip("pydantic")

    class Room(pydantic.BaseModel):
        room: str

    async def client(url, key):
        async with openai_client(url, key) as made:
            one = await made.chat.completions.parse(
                model="m", messages=[{"role": "user", "content": "go"}], response_format=Room
            )
            two = await made.responses.parse(model="m", input="go", text_format=Room)
            return one.choices[0].message.parsed, two.output_parsed

    _, rooms = played(client, TURNS["json"], TURNS["json"])
    assert [each.room for each in rooms] == ["hall", "hall"]


# ---- one conversation ----------------------------------------------------------------------------------------------


def test_an_answer_is_read_as_it_was_written_in_every_dialect():
    """What a dialect writes comes back as the same message, whatever the dialect of the next request."""
    question = {"role": "user", "content": "q"}
    asked = RESPONSES.read({"input": [question], "tools": RESPONSES_TOOLS[:1]}, "", 1000)
    answer = answer_to(asked, LOOK, "n_0")
    chat = CHAT.whole(asked, [answer])["choices"][0]["message"]
    content = MESSAGES.whole(asked, [answer])["content"]
    output = RESPONSES.whole(asked, [answer])["output"]
    again = [
        (CHAT, {"messages": [question, chat]}),
        (MESSAGES, {"messages": [question, {"role": "assistant", "content": content}]}),
        (RESPONSES, {"input": [question, *output]}),
    ]
    assert [dialect for dialect, _ in again] == [*BY_PATH.values()]
    for dialect, body in again:
        assert dialect.read(read_json(json.dumps(body)), "", 1000).messages[1] == answer.message


# ---- Answers that come late ----------------------------------------------------------------------------------------

BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "q"}]},
    "/v1/messages": {"messages": [{"role": "user", "content": "q"}], "max_tokens": 9},
    "/v1/responses": {"input": "q"},
}


async def asked_of(path, stream, answer, wait_s):
    """Status and body of a request that is answered, or refused, after some seconds."""
    async with serving(GatewayOptions()) as endpoint, aiohttp.ClientSession() as session:
        inbox = endpoint.open()

        async def policy():
            await inbox.changed.wait()
            asked = inbox.waiting.pop()
            await asyncio.sleep(wait_s)
            if isinstance(answer, str):
                asked.answer.set_result(answer_to(asked.request, answer, "n0nce_0", usage=Usage(12, 5)))
            else:
                asked.answer.set_exception(answer)

        playing = asyncio.create_task(policy())
        url, headers = endpoint.url.removesuffix("/v1") + path, {"Authorization": f"Bearer {inbox.key}"}
        async with session.post(url, json={**BODIES[path], "stream": stream}, headers=headers) as response:
            body = await response.read()
        await playing
        endpoint.close(inbox)
        return response.status, body


def events_of(body):
    """The events of a stream without their numbers, and how many of them only kept it open."""
    blocks = [block for block in body.decode().split("\n\n") if block]
    events = [block.rpartition("data: ")[2] for block in blocks if not block.startswith(":")]
    read = [json.loads(event) if event != "[DONE]" else event for event in events]
    shown = [
        {name: value for name, value in event.items() if name != "sequence_number"} if event != "[DONE]" else event
        for event in read
    ]
    kept, signs = [], len(blocks) - len(events)
    for event in shown:
        sign = event != "[DONE]" and (event.get("type") == "ping" or (kept and event == kept[-1]))
        signs += bool(sign)
        kept += [] if sign else [event]
    return kept, signs


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_comes_late_is_the_same_behind_signs_of_life(path, stream, monkeypatch):
    status, at_once = asyncio.run(asked_of(path, stream, "word", 0.0))
    monkeypatch.setattr(gateway_endpoint, "HEARTBEAT_S", 0.1)
    late_status, late = asyncio.run(asked_of(path, stream, "word", 0.55))
    assert status == late_status == 200 and b"word" in at_once
    if stream:
        (expected, none), (found, signs) = events_of(at_once), events_of(late)
        assert found == expected and none == 0 and signs >= 2
    else:
        assert json.loads(late) == json.loads(at_once) and late.startswith(b"  ")


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_has_its_status_unless_it_comes_late_and_its_sentence_in_any_case(path, stream, monkeypatch):
    status, at_once = asyncio.run(asked_of(path, stream, RefusedRequest("there is no more room."), 0.0))
    assert status == 400 and json.loads(at_once)["error"]["message"] == "there is no more room."
    monkeypatch.setattr(gateway_endpoint, "HEARTBEAT_S", 0.05)
    status, late = asyncio.run(asked_of(path, stream, RefusedRequest("there is no more room."), 0.3))
    assert status == 200 and b"there is no more room." in late


@pytest.mark.parametrize("leaves", range(4))
@pytest.mark.parametrize("answered", range(4))
@pytest.mark.parametrize("returns", range(4))
def test_a_client_that_comes_back_gets_its_answer_whenever_it_left(leaves, answered, returns):
    """Steps of the event loop after which the client leaves, the policy answers, and the client is there again."""

    async def played():
        inbox = Inbox(GatewayOptions())
        request = CHAT.read(BODIES["/v1/chat/completions"], "", 1000)
        first, again = asyncio.create_task(inbox.ask(request)), None
        await inbox.changed.wait()
        asked = inbox.waiting.pop()
        for step in range(max(leaves, answered, returns + leaves) + 1):
            if step == leaves:
                first.cancel()
            if step == answered and not asked.answer.done():
                asked.answer.set_result(answer_to(request, "word", "n0nce_0", usage=Usage(12, 5)))
            if step == leaves + returns:
                await asyncio.wait([first])
                again = asyncio.create_task(inbox.ask(request)) if first.cancelled() else first
            await asyncio.sleep(0)
        (answer,) = await asyncio.wait_for(again, 5)
        return answer.text

    assert asyncio.run(played()) == "word"
