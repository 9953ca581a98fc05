"""Servers that answer once as they should, and then anything, which costs a turn or an episode and never the run."""

import asyncio
import dataclasses
import json

import aiohttp
import pytest
from aiohttp import web

from tests.fixtures.hostile_server import BODIES, answers
from tests.fixtures.http_server import serving
from tests.fixtures.mcp_house import serving_house
from tests.fixtures.openenv_server import SCHEMA
from tests.fixtures.retriever import PLAIN
from verl_hier.environments.asynchronous import AsyncOptions
from verl_hier.environments.base import StepResult
from verl_hier.environments.pool import EnvironmentFailure, EnvironmentPool
from verl_hier.errors import RecipeError, RolloutError
from verl_hier.rewards import judge as judging
from verl_hier.rollout.rewards import RatedTurn
from verl_hier_plugins.environments.mcp import SPEC as MCP
from verl_hier_plugins.environments.mcp.options import McpOptions
from verl_hier_plugins.environments.openenv import SPEC as OPENENV
from verl_hier_plugins.environments.openenv.options import OpenenvOptions
from verl_hier_plugins.environments.retrieval import SPEC as RETRIEVAL
from verl_hier_plugins.environments.retrieval.options import RetrievalOptions

GOOD = {"result": [[{"document": {"contents": '"Lake"\na lake'}}]]}
REFUSALS = (400, 413, 414, 422)


def in_pool(spec, options, scenario, **calls):
    async def main():
        asynchronous = AsyncOptions(**{"retries": 0, **calls})
        pool = EnvironmentPool.of(spec, options, 1, time_limit_s=20.0, asynchronous=asynchronous)
        try:
            return await scenario(pool)
        finally:
            await pool.close()

    return asyncio.run(main())


async def outcome(call):
    """The step, or how the episode was lost; nothing else may come of a call."""
    try:
        return await call
    except EnvironmentFailure as failure:
        return failure


# ---- retrieval -----------------------------------------------------------------------------------------------------


def test_a_retriever_may_answer_anything_after_a_good_answer():
    given = [("good", web.json_response(GOOD)), *answers(), ("good again", web.json_response(GOOD))]
    queue = iter(given)

    async def answer(request):
        return next(queue)[1]

    async def scenario(pool):
        found = {}
        for number, (name, _) in enumerate(given):
            handle, _ = await pool.open(RETRIEVAL.tasks(options, "train")[0], 0)
            found[name] = await outcome(handle.step(f"search {number}"))
            await handle.close()
        return found

    with serving(answer) as port:
        options = RetrievalOptions(url=f"http://127.0.0.1:{port}/", kept_answers=1, **dataclasses.asdict(PLAIN))
        found = in_pool(RETRIEVAL, options, scenario)
    assert {type(each) for each in found.values()} == {StepResult, EnvironmentFailure}
    for status in range(300, 600):
        each = found[f"status {status}"]
        refused = status in REFUSALS
        assert isinstance(each, StepResult) == refused, status
        assert not refused or (not each.valid and "refused" in each.text and each.info["documents"] == [])
    assert found["good again"].text == "[1] Lake: a lake"
    assert {each.kind for each in found.values() if isinstance(each, EnvironmentFailure)} == {"unavailable"}
    # One malformed document costs itself, a missing title or text nothing.
    assert found["JSON 19"].text == "[1] t: x" and found["JSON 17"].text == found["JSON 18"].text == "[1] : "
    assert len(found["JSON 21"].info["titles"][0]) == 500


@pytest.mark.parametrize("status", REFUSALS)
def test_a_query_that_is_refused_is_an_invalid_turn_from_the_first_on(status):
    """As by a service with a shorter limit than ours."""

    async def answer(request):
        (query,) = (await request.json())["queries"]
        return web.Response(status=status) if len(query) > 400 else web.json_response(GOOD)

    async def scenario(pool):
        handle, _ = await pool.open(RETRIEVAL.tasks(options, "train")[0], 0)
        first = await handle.step(f"search {'a' * 450}")
        second = await handle.step("search short")
        copy = await handle.fork()
        await pool.kill_processes()
        third = await handle.step(f"search {'b' * 450}")
        assert (await copy.step("hm")).info["documents"] == []
        return first, second, third

    with serving(answer) as port:
        options = RetrievalOptions(url=f"http://127.0.0.1:{port}/", **dataclasses.asdict(PLAIN))
        first, second, third = in_pool(RETRIEVAL, options, scenario)
    assert not first.valid and not third.valid and second.valid and first.reward < 0


@pytest.mark.parametrize("status", [*REFUSALS, 404, 401, 302])
def test_a_server_that_refuses_every_query_is_a_wrong_recipe(status):
    async def answer(request):
        return web.Response(status=status)

    async def scenario(pool):
        handle, _ = await pool.open(RETRIEVAL.tasks(options, "train")[0], 0)
        await handle.step("search something")

    with serving(answer) as port:
        options = RetrievalOptions(url=f"http://127.0.0.1:{port}/", **dataclasses.asdict(PLAIN))
        with pytest.raises(RecipeError, match=rf"hier\.environment\.url.*{status}"):
            in_pool(RETRIEVAL, options, scenario)


# ---- OpenEnv -------------------------------------------------------------------------------------------------------


class OpenEnv:
    """A sound server, until it is told what to answer to a handshake, to a reset or to an action."""

    def __init__(self):
        self.handshake, self.said, self.to = None, None, ""

    async def __call__(self, request):
        if request.path == "/schema":
            return web.json_response(SCHEMA)
        if self.handshake is not None:
            return self.handshake
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            kind = json.loads(message.data)["type"]
            if kind == "close":
                break
            if kind == self.to:
                await self.said(socket)
            else:
                data = {"observation": {"text": "here"}, "reward": 0.0, "done": False}
                await socket.send_json({"type": "observation", "data": data})
        return socket


def test_an_openenv_server_may_answer_anything_after_a_good_answer():
    server = OpenEnv()

    def text(body):
        async def say(socket):
            await socket.send_str(body.decode("utf-8", "replace"))

        return say

    async def binary(socket):
        await socket.send_bytes(b"\xff")

    async def leave(socket):
        await socket.close()

    async def scenario(pool):
        task = OPENENV.tasks(options, "train")[0]
        handle, _ = await pool.open(task, 0)
        assert (await handle.step("go")).text == "here"
        for _, response in answers():
            if response.status >= 300 or response.status in (202, 204):
                server.handshake = response
                assert isinstance(await outcome(pool.open(task, 0)), EnvironmentFailure)
        server.handshake = None
        kinds = []
        for to in ("reset", "step"):
            for said in (*map(text, BODIES.values()), binary, leave):
                server.to, server.said = "", said
                handle = None
                if to == "step":
                    handle, _ = await pool.open(task, 0)
                server.to = to
                found = await outcome(pool.open(task, 0) if handle is None else handle.step("go"))
                kinds.append(type(found))
                if handle is not None:
                    await handle.close()
        server.to = ""
        handle, _ = await pool.open(task, 0)
        assert (await handle.step("go")).text == "here"
        return kinds

    with serving(server) as port:
        options = OpenenvOptions(url=f"http://127.0.0.1:{port}", pool=3, validation=2)
        kinds = in_pool(OPENENV, options, scenario)
    assert {EnvironmentFailure, StepResult} <= {*kinds} <= {EnvironmentFailure, StepResult, tuple}


@pytest.mark.parametrize(
    "action",
    [
        '{"move": NaN}',
        '{"move": [1e999]}',
        '{"move": "\\ud83d"}',
        '{"move": ' + "[" * 500 + "]" * 500 + "}",
        "{" * 5000,
    ],
)
def test_no_json_of_a_policy_loses_an_openenv_episode(action):
    heard = []

    async def strict(request):
        if request.path == "/schema":
            return web.json_response(SCHEMA)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            try:
                said = json.loads(message.data, parse_constant=lambda name: 1 / 0)
                json.dumps(said, ensure_ascii=False).encode()
            except (ZeroDivisionError, ValueError, RecursionError):
                await socket.send_json({"type": "error", "data": {"code": "INVALID_JSON", "message": "no JSON"}})
                continue
            if said["type"] == "close":
                break
            heard.append(said)
            echoed = {"observation": {"text": json.dumps(said["data"])}, "reward": 0.0, "done": False}
            await socket.send_json({"type": "observation", "data": echoed})
        return socket

    async def scenario(pool):
        handle, _ = await pool.open(OPENENV.tasks(options, "train")[0], 0)
        return await handle.step(action), await handle.step("go")

    with serving(strict) as port:
        options = OpenenvOptions(url=f"http://127.0.0.1:{port}", pool=3, validation=2)
        step, after = in_pool(OPENENV, options, scenario)
    assert after.valid and isinstance(step, StepResult)
    assert step.valid == ("ud83d" in action) and "\ud83d" not in json.dumps(heard, ensure_ascii=False)


# ---- MCP -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_mcp_server_may_answer_anything_after_a_good_session(tmp_path):
    """The real server behind a proxy that goes mad."""
    mad, file = [], tmp_path / "tasks.jsonl"
    file.write_text("\n".join(map(json.dumps, MCP.tasks(McpOptions(pool=40), "train"))))

    async def proxy(request):
        if mad:
            return mad[0]
        if request.method == "GET":
            return web.Response(status=405)
        keep = {
            name: value for name, value in request.headers.items() if name.lower() not in ("host", "content-length")
        }
        async with aiohttp.ClientSession() as client:
            url = f"http://127.0.0.1:{house}{request.path_qs}"
            async with client.request(request.method, url, data=await request.read(), headers=keep) as answer:
                dropped = ("content-length", "transfer-encoding", "content-encoding", "date", "server")
                headers = {name: value for name, value in answer.headers.items() if name.lower() not in dropped}
                return web.Response(status=answer.status, body=await answer.read(), headers=headers)

    async def scenario(pool):
        task = MCP.tasks(options, "train")[0]
        handle, _ = await pool.open(task, 0)
        assert isinstance(await handle.step("find lamp"), StepResult)
        lost = []
        for name, response in list(answers())[::11]:
            mad[:] = [response]
            lost.append((name, await outcome(pool.open(task, 0))))
        mad.clear()
        handle, _ = await pool.open(task, 0)
        mad[:] = [web.Response(status=500)]
        lost.append(("a call", await outcome(handle.step("find lamp"))))
        return lost

    with serving_house() as house, serving(proxy) as port:
        options = McpOptions(url=f"http://127.0.0.1:{port}/mcp", data_path=str(file), pool=5, validation=3)
        lost = in_pool(MCP, options, scenario, open_s=3.0)
    assert all(isinstance(each, EnvironmentFailure) for _, each in lost), lost


# ---- a judge -------------------------------------------------------------------------------------------------------

TURN = RatedTurn({}, "agent", "agent", 0, 0, ({"role": "user", "content": "half \ud83d"},), "x", True, 0.0, {})
VERDICT = {
    "id": "x", "object": "chat.completion", "created": 0, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Score: 5"}, "finish_reason": "stop"}],
}  # fmt: skip


def judged(handler, times, **options):
    async def ask():
        return [await judging.judge(TURN, url=url, model="m", **options) for _ in range(times)]

    with serving(handler) as port:
        url = f"http://127.0.0.1:{port}/v1"
        return asyncio.run(ask())


def test_a_judge_may_answer_anything_after_a_verdict(monkeypatch):
    # The client tries again what may be a passing fault; here it would be a fault of the next answer.
    given = [("good", web.json_response(VERDICT)), *answers(), ("good again", web.json_response(VERDICT))]
    monkeypatch.setattr(judging.ChatClient, "retries", 0)
    queue = iter(given)

    async def answer(request):
        return next(queue)[1]

    found = dict(zip([name for name, _ in given], judged(answer, len(given)), strict=True))
    assert found["good"] == found["good again"] == 0.5
    assert all(found[f"status {status}"] is None for status in range(300, 600))
    assert {found[f"JSON {number}"] for number in range(24, 31)} == {None}
    assert {type(each) for each in found.values()} == {float, type(None)}


@pytest.mark.parametrize("said", [{**VERDICT, "choices": None}, {**VERDICT, "choices": []}])
def test_a_verdict_without_choices_is_none_from_the_first_on(said):
    async def answer(request):
        return web.json_response(said)

    assert judged(answer, 2) == [None, None]


@pytest.mark.parametrize("said", ["<html>", "[]", '{"choices": [5]}'])
def test_a_judge_that_is_something_else_is_told_in_a_sentence(said):
    async def answer(request):
        return web.Response(text=said, content_type="application/json" if said != "<html>" else "text/html")

    with pytest.raises(RolloutError, match=r"the judge of hier\.rewards at .* does not speak chat completions"):
        judged(answer, 1)


def test_a_judge_that_is_gone_ends_the_run_later_too(monkeypatch):
    monkeypatch.setattr(judging.ChatClient, "retries", 0)
    good = iter([web.json_response(VERDICT)])

    async def answer(request):
        response = next(good, None)
        if response is None:
            request.transport.close()
            raise ConnectionError
        return response

    assert judged(answer, judging.MOST_UNHEARD) == [0.5] + [None] * (judging.MOST_UNHEARD - 1)
    good = iter([web.json_response(VERDICT)])
    with pytest.raises(RolloutError, match="does not answer"):
        judged(answer, judging.MOST_UNHEARD + 1)
