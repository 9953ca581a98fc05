"""The OpenEnv environment against a real server on this machine that speaks its websocket protocol."""

import asyncio
import dataclasses
import json

import pytest

from tests.fixtures.http_server import serving
from tests.fixtures.openenv_server import Server
from verl_hier.environments.asynchronous import AsyncOptions
from verl_hier.environments.pool import EnvironmentFailure, EnvironmentPool
from verl_hier.errors import RecipeError
from verl_hier.host.options import build_options
from verl_hier.testing.async_environment import check_async_environment
from verl_hier.testing.environment import check_environment
from verl_hier_plugins.environments.openenv import SPEC
from verl_hier_plugins.environments.openenv.options import OpenenvOptions

ACTIONS = ["go 1", "go 2", '{"move": "go 3"}']


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def options(server):
    with serving(server) as port:
        yield OpenenvOptions(url=f"http://127.0.0.1:{port}", pool=5, validation=3, show="{text}")


def in_pool(options, scenario, **calls):
    async def main():
        pool = EnvironmentPool(SPEC.factory, options, asynchronous=AsyncOptions(**calls))
        try:
            return await scenario(pool)
        finally:
            await pool.close()

    return asyncio.run(main())


@pytest.mark.slow
def test_conforms(options):
    check_environment(SPEC, options, tasks=1, steps=3, actions=ACTIONS[:2])

    def through(port):
        return dataclasses.replace(options, url=f"http://127.0.0.1:{port}")

    port = int(options.url.rpartition(":")[2])
    check_async_environment(SPEC, options, ACTIONS[:2], ("127.0.0.1", port), through)


def test_an_episode_is_won_and_its_session_ends(options, server):
    async def scenario(pool):
        handle, first = await pool.open({"instruction": "go", "reset": {"seed": 4}}, 0)
        assert first.text == "you are at 4" and first.info["observation"]["place"] == 4
        wrong = await handle.step("fly")
        assert not wrong.valid and wrong.text == "say go and a number" and wrong.anchor == first.anchor
        assert not (await handle.step("{")).valid and not (await handle.step("<think>hm</think>")).valid
        last = await handle.step('{"move": "go 6"}')
        assert (last.reward, last.done, last.info["won"]) == (1.0, True, True)
        assert not (await handle.step("go 1")).valid
        assert server.open == 1
        await handle.close()
        assert server.open == 0

    in_pool(options, scenario)


def test_a_lost_socket_is_a_lost_session_and_the_episode_is_rebuilt(options, server):
    async def scenario(pool):
        handle, _ = await pool.open({"instruction": "go", "reset": {"seed": 1}}, 0)
        await handle.step("go 2")
        copy = await handle.fork()
        with pytest.raises(EnvironmentFailure, match="session_lost"):
            await handle.step("hang")
        await pool.kill_processes()
        assert (await copy.step("go 3")).text == "you are at 6"
        assert pool.counts["replays"] == 3

    in_pool(options, scenario)


def test_a_full_server_is_unavailable_until_there_is_room(options, server):
    async def scenario(pool):
        server.room = 1
        handle, _ = await pool.open({"instruction": "go"}, 0)
        with pytest.raises(EnvironmentFailure, match=r"unavailable: .*has no room for another session"):
            await pool.open({"instruction": "go"}, 0)
        opening = asyncio.create_task(pool.open({"instruction": "go"}, 0))
        await asyncio.sleep(0.05)
        await handle.close()
        await opening
        assert pool.counts["retries"] >= 2

    in_pool(options, scenario, retries=1)


def test_an_environment_that_fails_costs_its_episode(options):
    async def scenario(pool):
        handle, _ = await pool.open({"instruction": "go"}, 0)
        with pytest.raises(EnvironmentFailure, match=r"raised .*EXECUTION_ERROR: division by zero"):
            await handle.step("crash")

    in_pool(options, scenario)


def test_what_is_shown_and_what_identifies_a_state(options):
    plain = dataclasses.replace(options, show="", anchor_fields=("place",), action_field="move")

    async def scenario(pool):
        anchors = []
        for actions in (["go 3"], ["go 1", "go 2"]):
            handle, first = await pool.open({"instruction": "go"}, 0)
            for action in actions:
                step = await handle.step(action)
            anchors.append(step.anchor)
        assert anchors[0] == anchors[1] != first.anchor
        assert json.loads(step.text) == {"place": 3, "text": "you are at 3"}

    in_pool(plain, scenario)


def test_a_server_that_is_not_there(options):
    async def scenario(pool):
        with pytest.raises(EnvironmentFailure, match=r"unavailable: .*start the server of hier.environment.url"):
            await pool.open({"instruction": "go"}, 0)

    in_pool(dataclasses.replace(options, url="http://127.0.0.1:9"), scenario, retries=0)


@pytest.mark.parametrize(
    ("schema", "field", "sentence"),
    [
        ({"action": {"properties": {}}}, "", "action_field: an action of this server has the fields none"),
        ([], "", "url: .*/schema is no schema of an OpenEnv server"),
    ],
)
def test_a_schema_without_a_text(options, server, schema, field, sentence):
    server.schema = schema

    async def scenario(pool):
        with pytest.raises(RecipeError, match=sentence):
            await pool.open({"instruction": "go"}, 0)

    in_pool(options, scenario)


def test_another_server(options):
    async def scenario(pool):
        with pytest.raises(RecipeError, match=r"url: .* is no OpenEnv server; it answers with status 404"):
            await pool.open({"instruction": "go"}, 0)

    in_pool(dataclasses.replace(options, url=f"{options.url}/elsewhere", action_field="move"), scenario)


def test_tasks_of_a_file(tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_text("\n".join(json.dumps({"instruction": f"go {n}", "reset": {"seed": n}}) for n in range(60)))
    options = OpenenvOptions(url="http://a", data_path=str(file), pool=0, validation=0)
    splits = [{task["reset"]["seed"] for task in SPEC.tasks(options, split)} for split in ("train", "val", "test")]
    assert sum(map(len, splits)) == 60 == len(set.union(*splits))
    file.write_text('{"reset": 3}')
    with pytest.raises(RecipeError, match="line 1 is no task"):
        SPEC.tasks(options, "train")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"url": "a"}, "url has to begin"), ({"url": "http://a", "show": "{a.b}"}, "show has the field 'a.b'")],
)
def test_options_that_do_not_go_together(options, sentence):
    with pytest.raises(RecipeError, match=sentence):
        build_options(SPEC, options)
