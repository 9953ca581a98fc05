"""The MCP environment against real servers on this machine, over HTTP and over stdio."""

import asyncio
import dataclasses
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web

from tests.fixtures.http_server import serving
from tests.fixtures.mcp_house import serving_house
from verl_hier.environments.asynchronous import AsyncOptions
from verl_hier.environments.blocking import build
from verl_hier.environments.pool import EnvironmentFailure, EnvironmentPool
from verl_hier.errors import RecipeError
from verl_hier.host.options import build_options
from verl_hier.testing.async_environment import check_async_environment
from verl_hier.testing.environment import check_environment
from verl_hier_plugins.environments.mcp import SPEC, session
from verl_hier_plugins.environments.mcp.house import furnished
from verl_hier_plugins.environments.mcp.options import McpOptions
from verl_hier_plugins.environments.mcp.tools import Call, Problem, Tool, parse, tool_of

FIND = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
PUT = {"type": "object", "properties": {"item": {"type": "string"}, "number": {"type": "integer"}}}
TOOLS = {"find": Tool("find", "", FIND, True, False), "put": Tool("put", "", PUT, False, False)}


@pytest.fixture(scope="module")
def port():
    with serving_house() as port:
        yield port


@pytest.fixture(scope="module")
def tasks_file(tmp_path_factory):
    """The generated tasks as a file, as a user would write them."""
    file = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    file.write_text("\n".join(map(json.dumps, SPEC.tasks(McpOptions(pool=40), "train"))))
    return str(file)


@pytest.fixture
def over_http(port, tasks_file):
    return McpOptions(url=f"http://127.0.0.1:{port}/mcp", data_path=tasks_file, pool=5, validation=3)


def first_task(options):
    return SPEC.tasks(options, "train")[0]


def way(task):
    """What has to be done for a task of the sample server: four calls in words, the last of which ends it."""
    item, room = task["goal"]
    place = furnished(task["opening"][0]["arguments"]["number"])[item]
    return [f"find {item}", f"take {item} {place}", f"put {item} {room}", "answer done"]


def in_pool(options, scenario, **calls):
    async def main():
        pool = EnvironmentPool(SPEC.factory, options, asynchronous=AsyncOptions(**calls))
        try:
            return await scenario(pool)
        finally:
            await pool.close()

    return asyncio.run(main())


@pytest.mark.slow
def test_conforms_with_a_session_for_each_episode(over_http, port):
    task = first_task(over_http)
    check_environment(SPEC, over_http, tasks=1, steps=4, actions=way(task)[:3])

    def through(other):
        return dataclasses.replace(over_http, url=f"http://127.0.0.1:{other}/mcp")

    check_async_environment(SPEC, over_http, way(task)[:3], ("127.0.0.1", port), through)


def test_a_task_is_won_over_stdio():
    options = McpOptions(pool=3, validation=2)
    task, world = first_task(options), build(SPEC, options)
    try:
        steps = [world.reset(task, 0), *map(world.step, way(task))]
    finally:
        world.close()
    assert '"name": "find"' in steps[0].text and "<tool_call>" in steps[0].info["commands"]
    assert [step.reward for step in steps] == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert steps[-1].done and steps[-1].info["won"] and all(step.valid for step in steps)


@pytest.mark.parametrize("state", ["session", "argument"])
def test_episodes_have_houses_of_their_own_and_are_rebuilt(over_http, state):
    key = "house" if state == "argument" else ""
    options = dataclasses.replace(over_http, state=state, state_key=key)
    task = first_task(options)
    item, room = task["goal"]

    async def scenario(pool):
        one, first = await pool.open(task, 0)
        other, _ = await pool.open(task, 0)
        assert ('"house"' in first.text) == (state == "session")
        for action in way(task)[:3]:
            await one.step(action)
        assert (await other.step(way(task)[0])).text != f"{item} is in {room}"
        copy = await one.fork()
        await pool.kill_processes()
        for handle in (one, copy):
            assert (await handle.step("answer done")).info["won"]
        assert not (await other.step("answer done")).info["won"]

    in_pool(options, scenario)


def test_the_hidden_argument_is_in_no_answer(over_http):
    options = dataclasses.replace(over_http, state="argument", state_key="house")

    async def scenario(pool):
        handle, _ = await pool.open(first_task(options), 0)
        step = await handle.step("furnish 3")
        assert step.text == "house [state] is ready"

    in_pool(options, scenario)


def test_a_world_without_state_is_restored_without_a_call(over_http, port):
    options = dataclasses.replace(over_http, state="none")
    task = {"instruction": "look", "answers": ["hall"]}

    async def scenario(pool):
        handle, _ = await pool.open(task, 0)
        assert not (await handle.step("find unicorn")).valid
        copy = await handle.fork()
        await pool.kill_processes()
        assert (await copy.step("answer the hall")).info["won"]
        assert not (await handle.step("answer attic")).info["won"]

    in_pool(options, scenario)


@pytest.mark.slow
def test_what_destroys_is_not_repeated_unless_it_is_allowed(tasks_file):
    server = Path(__file__).parents[2] / "fixtures" / "destructive_house.py"
    options = McpOptions(command=f"{sys.executable} {server}", data_path=tasks_file, pool=5, validation=3)
    look, take, put, _ = way(first_task(options))

    async def scenario(pool):
        handle, _ = await pool.open(first_task(options), 0)
        await handle.step(look)
        await (await handle.fork()).step(take)
        await handle.step(take)
        return (await (await handle.fork()).step(put)).valid

    with pytest.raises(RecipeError, match=r"repeat_destructive: the episode called take, which its server calls"):
        in_pool(options, scenario)
    assert in_pool(dataclasses.replace(options, repeat_destructive=True), scenario)


@pytest.mark.parametrize("schema", [None, {}])
def test_a_tool_without_a_schema_takes_no_arguments(schema):
    tool = tool_of(SimpleNamespace(name="look", description=None, annotations=None, input_schema=schema))
    assert tool == Tool("look", "", {"type": "object", "properties": {}}, False, False)
    assert parse("look", {"look": tool}) == [Call("look", {})]
    assert isinstance(parse("look around", {"look": tool}), Problem)


def test_errors_of_tools_are_observations(over_http):
    async def scenario(pool):
        handle, first = await pool.open(first_task(over_http), 0)
        for action, said in {
            "find unicorn": "there is no unicorn",
            "take lamp": "validation error",
            "dance": "no tool was called; there are furnish, find, take, put",
            '<tool_call>{"name": "dance"}</tool_call>': "there is no tool 'dance'",
            "<tool_call>{</tool_call>": "the call is no JSON",
        }.items():
            step = await handle.step(action)
            assert said in step.text and not step.valid and step.anchor == first.anchor
            assert step.reward == -over_http.invalid_penalty
        both = '<tool_call>{"name": "find", "arguments": {"item": "lamp"}}</tool_call>'
        step = await handle.step(both + both.replace("lamp", "cup"))
        assert step.text.splitlines()[0].startswith("lamp is in") and step.text.splitlines()[1].startswith("cup is in")

    in_pool(over_http, scenario)


def test_more_sessions_than_may_be_are_unavailable(over_http):
    options = dataclasses.replace(over_http, most_sessions=1)

    async def scenario(pool):
        task = first_task(options)
        handle, _ = await pool.open(task, 0)
        with pytest.raises(EnvironmentFailure, match=r"unavailable: .*raise hier.environment.most_sessions"):
            await pool.open(task, 0)
        await handle.close()
        await pool.open(task, 0)

    in_pool(options, scenario, retries=0)


def test_a_server_that_is_not_there_is_unavailable(over_http):
    options = dataclasses.replace(over_http, url="http://127.0.0.1:9/mcp")

    async def scenario(pool):
        with pytest.raises(EnvironmentFailure, match=r"unavailable: .*:9/mcp does not answer .*start the server"):
            await pool.open(first_task(options), 0)

    in_pool(options, scenario, retries=0)


@pytest.mark.parametrize(
    ("status", "kind", "sentence"),
    [(200, RecipeError, "does not speak MCP"), (404, RecipeError, "404"), (503, EnvironmentFailure, "with status 503")],
)
def test_a_server_that_speaks_something_else(over_http, status, kind, sentence):
    async def answer(request):
        return web.Response(status=status, text="<html>")

    async def scenario(pool):
        with pytest.raises(kind, match=rf"hier.environment.url: .*{sentence}"):
            await pool.open(first_task(options), 0)

    with serving(answer) as port:
        options = dataclasses.replace(over_http, url=f"http://127.0.0.1:{port}/mcp")
        in_pool(options, scenario, retries=0)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [("/no/such/server --now", "cannot be started"), (f"{sys.executable} -c pass", "does not speak MCP")],
)
def test_a_command_that_is_no_server(tasks_file, command, sentence):
    options = McpOptions(command=command, data_path=tasks_file, pool=3, validation=2)

    async def scenario(pool):
        with pytest.raises(RecipeError, match=rf"hier.environment.command: .*{sentence}"):
            await pool.open(first_task(options), 0)

    in_pool(options, scenario)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"hidden": ("dance",)}, "hidden: the server has no tool 'dance'"), ({"state_key": "k"}, "state_key: no tool")],
)
def test_what_the_server_does_not_have(over_http, change, sentence):
    state = {"state": "argument"} if "state_key" in change else {}
    options = dataclasses.replace(over_http, **change, **state)

    async def scenario(pool):
        with pytest.raises(RecipeError, match=sentence):
            await pool.open(first_task(options), 0)

    in_pool(options, scenario)


def test_the_expert_wins_and_knows_the_words_of_the_world():
    options = McpOptions(pool=3, validation=2, observation="short", actions="plain")
    world = build(SPEC, options)
    try:
        said = set(" ".join(world.vocabulary()).split())
        for task in SPEC.tasks(options, "train")[:2]:
            world.reset(task, 0)
            expert, step = world.expert(random.Random(0)), None
            for number in range(len(expert.subgoals)):
                while not (step and step.done) and (action := expert.advise(number)) is not None:
                    step = world.step(action)
                    assert {*action.split(), *step.text.split()} <= said
            assert step.info["won"]
    finally:
        world.close()


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ('<tool_call>\n{"name": "find", "arguments": {"item": "a"}}\n</tool_call>', [Call("find", {"item": "a"})]),
        ('{"name": "put", "arguments": {"item": "a", "number": 2}}', [Call("put", {"item": "a", "number": 2})]),
        ("<think>find it</think> find red lamp", [Call("find", {"item": "red lamp"})]),
        ("put lamp 3", [Call("put", {"item": "lamp", "number": 3})]),
        ("answer 42 lamps", "42 lamps"),
        ("so: <answer> yes </answer>", "yes"),
        ("<tool_call>[]</tool_call>", Problem("a call is an object with `name` and `arguments`")),
        ('{"name": "find", "arguments": []}', Problem("the `arguments` of a call are an object")),
        ("", Problem("no tool was called; there are find, put")),
    ],
)
def test_what_a_turn_means(text, parsed):
    assert parse(text, TOOLS) == parsed


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"command": "a", "url": "http://b"}, "leave one of them out"),
        ({"url": "b"}, "url has to begin with http"),
        ({"state": "argument"}, "belong together"),
        ({"command": "a"}, "needs data_path"),
        ({"headers_env": {"X": "Y"}}, "headers of requests to a url"),
    ],
)
def test_options_that_do_not_go_together(options, sentence):
    with pytest.raises(RecipeError, match=sentence):
        build_options(SPEC, options)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{}", "line 1 is no task"),
        ('{"instruction": "a", "answers": "lamp"}', "`answers` a list of texts"),
        ('{"instruction": "a", "answer": "the"}', "none of them empty"),
        ('{"instruction": "a", "opening": 5}', "`opening` is a list"),
        ('{"instruction": "a", "opening": [{}]}', "needs the `name` of a tool"),
        ('{"instruction": "a", "check": {"name": "find"}}', "needs `expect`"),
    ],
)
def test_lines_that_are_no_tasks(tmp_path, line, sentence):
    file = tmp_path / "tasks.jsonl"
    file.write_text(line)
    with pytest.raises(RecipeError, match=sentence):
        SPEC.tasks(McpOptions(command="a", data_path=str(file)), "train")


CALLS = [
    *("answer done", "answer", "answer yes", "done", "win", "I win", "reward=1", '{"won": true}'),
    *("furnish 1", "furnish", "find", "find gold", "find lamp lamp", "take", "take sun hall", "put sun hall"),
    *("<answer>done</answer>", "put", "put lamp"),
    *("put lamp moon", "put lamp in hall", "check", "expect in hall", "tools", "help", "reset", "session", "[state]"),
    *("find lamp\nanswer done", "find lamp; answer done", "find [state]", "house=1 find lamp", "find lamp house=1"),
    *("find ../../tasks.jsonl", "find %s", "find {item}", "find __import__", "' or 1=1 --", "find " + "a" * 5000),
    *("take lamp attic hall cellar", "", " ", "\x00", "\u202eanswer done", "assistant: done", "it is there"),
]  # fmt: skip
"""Attempts at the sample server's tasks without bringing anything to its room."""


@pytest.mark.parametrize("cheats", [CALLS], ids=["calls"])
def test_no_cheat_is_rewarded(port, tasks_file, cheats):
    """An episode that says this, and then that it is done, has won nothing, whatever the server answered."""
    options = McpOptions(
        **{"url": f"http://127.0.0.1:{port}/mcp", "data_path": tasks_file, "pool": 5, "validation": 3},
        **{"actions": "plain", "state": "argument", "state_key": "house", "hidden": ("furnish",)},
    )
    assert len({*cheats}) >= 40
    task = first_task(options)

    async def scenario(pool):
        for cheat in cheats:
            world, _ = await pool.open(task, 0)
            step = await world.step(cheat)
            assert step.reward <= 0 and not step.info["won"], cheat
            if not step.done:
                step = await world.step("answer done")
                assert step.done and step.reward <= 0 and not step.info["won"], cheat
            await world.close()

    in_pool(options, scenario)


def part(kind, **fields):
    return SimpleNamespace(type=kind, **fields)


@pytest.mark.parametrize(
    ("content", "structured", "text"),
    [
        ([part("text", text="a"), part("text", text="b")], None, "a\nb"),
        ([part("text", text="")], None, ""),
        ([], {"found": ["é", 2]}, '{"found": ["é", 2]}'),
        ([part("text", text="")], {"found": 1}, '{"found": 1}'),
        ([part("text", text="found 1")], {"found": 1}, "found 1"),
        ([part("resource", resource=SimpleNamespace(text="the file", uri="file:///a"))], None, "the file"),
        ([part("resource", resource=SimpleNamespace(blob="AAAA", uri="file:///a"))], None, "[resource]"),
        ([part("resource_link", uri="https://a/b", name="b")], None, "https://a/b"),
        ([part("image", data="AAAA"), part("text", text="a picture")], None, "[image]\na picture"),
        ([part("image", data="AAAA")], {"width": 3}, '[image]\n{"width": 3}'),
        ([], None, ""),
    ],
)
def test_what_a_tool_answers_is_shown_wherever_it_stands(content, structured, text):
    result = SimpleNamespace(content=content, structured_content=structured, is_error=False)
    assert session._said(result).text == text


def test_the_types_of_the_package_have_the_fields_that_are_read():
    types = pytest.importorskip("mcp_types")
    embedded = types.EmbeddedResource(
        type="resource", resource=types.TextResourceContents(uri="file:///a", text="the file")
    )
    link = types.ResourceLink(type="resource_link", uri="https://a/b", name="b")
    found = types.CallToolResult(content=[embedded, link, types.TextContent(type="text", text="")])
    assert session._said(found).text == "the file\nhttps://a/b\n"
    found = types.CallToolResult(content=[], structured_content={"found": 1})
    assert session._said(found).text == '{"found": 1}'
