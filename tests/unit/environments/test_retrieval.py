"""The retrieval environment against real servers on this machine: a retriever, and services that search the web."""

import asyncio
import dataclasses
import re

import pytest
from aiohttp import web

from tests.fixtures.http_server import serving
from tests.fixtures.retriever import PLAIN, Retriever
from verl_hier.environments.asynchronous import AsyncOptions
from verl_hier.environments.blocking import build
from verl_hier.environments.pool import EnvironmentFailure, EnvironmentPool
from verl_hier.errors import RecipeError
from verl_hier.host.options import build_options
from verl_hier.testing.async_environment import check_async_environment
from verl_hier.testing.environment import check_environment
from verl_hier_plugins.environments.retrieval import SPEC
from verl_hier_plugins.environments.retrieval.options import RetrievalOptions
from verl_hier_plugins.environments.search import SPEC as SEARCH

ACTIONS = ["search mentor", "search river of the town", "answer nobody"]


@pytest.fixture(scope="module")
def retriever():
    return Retriever()


@pytest.fixture(scope="module")
def port(retriever):
    with serving(retriever) as port:
        yield port


@pytest.fixture
def remote(retriever, port):
    yield RetrievalOptions(url=f"http://127.0.0.1:{port}/retrieve", **dataclasses.asdict(PLAIN))
    retriever.statuses, retriever.answer = [], None


def played(options, actions, spec=SPEC):
    """The steps of one episode in this process."""
    world = build(spec, options)
    try:
        return [world.reset(spec.tasks(options, "train")[0], 0), *map(world.step, actions)]
    finally:
        world.close()


def in_pool(options, scenario, **calls):
    async def main():
        pool = EnvironmentPool(SPEC.factory, options, asynchronous=AsyncOptions(**calls))
        try:
            handle, _ = await pool.open(SPEC.tasks(options, "train")[0], 0)
            return await scenario(pool, handle)
        finally:
            await pool.close()

    return asyncio.run(main())


@pytest.mark.slow
def test_conforms(remote, port):
    check_environment(SPEC, remote, tasks=1, actions=ACTIONS[:2])

    def through(other):
        return dataclasses.replace(fresh, url=f"http://127.0.0.1:{other}/")

    fresh = dataclasses.replace(remote, kept_answers=0)
    check_async_environment(SPEC, fresh, ACTIONS[:2], ("127.0.0.1", port), through)


def test_the_same_documents_read_as_those_of_the_index(remote, retriever):
    local, there = played(PLAIN, ACTIONS, SEARCH), played(remote, ACTIONS)
    assert [(step.text, step.reward, step.done, step.anchor) for step in local] == [
        (step.text, step.reward, step.done, step.anchor) for step in there
    ]
    assert all(dict(was.info).items() <= dict(now.info).items() for was, now in zip(local, there, strict=True))
    assert retriever.asked[-1]["topk"] == PLAIN.top_k and retriever.asked[-1]["return_scores"] is True


def test_a_history_is_restored_without_asking_again(remote, retriever):
    async def scenario(pool, handle):
        for action in ("search mentor river", "xyzzy", "search seat"):
            before = await handle.step(action)
        asked = len(retriever.asked)
        copy = await handle.fork()
        await pool.kill_processes()
        after = await handle.step("hm")
        assert after.anchor == before.anchor and after.info["recall"] == before.info["recall"]
        assert not after.valid and len(retriever.asked) == asked
        assert (await copy.step("search capital governor")).anchor != before.anchor
        assert len(retriever.asked) == asked + 1
        assert pool.counts["replays"] == 2

    in_pool(remote, scenario)


def test_equal_queries_of_a_process_are_asked_once(remote, retriever):
    before = len(retriever.asked)
    first, again = played(remote, ["search the same", "search the same"])[1:]
    assert first.text == again.text and len(retriever.asked) == before + 1


def test_what_was_not_taken_is_asked_again_and_counts_once(remote, retriever):
    async def scenario(pool, handle):
        retriever.statuses = [503, 429]
        step = await handle.step("search mentor of the founder")
        assert step.valid and pool.counts["retries"] == 2
        retriever.statuses = [500] * 3
        with pytest.raises(EnvironmentFailure, match=r"unavailable: .*answers with status 500"):
            await handle.step("search another thing")

    in_pool(remote, scenario, retries=2)


@pytest.mark.parametrize(
    ("status", "answer", "sentence"),
    [
        (404, None, "does not speak the expected protocol; it answers with status 404"),
        (403, None, "refuses the request with status 403; check the key"),
        (None, "<html>", "does not speak the expected protocol.*<html>"),
        (None, '{"result": []}', "does not speak the expected protocol"),
        (None, '{"result": [["text"]]}', "does not speak the expected protocol"),
    ],
)
def test_a_server_that_is_something_else_is_told_in_a_sentence(remote, retriever, status, answer, sentence):
    retriever.statuses, retriever.answer = [status] if status else [], answer
    with pytest.raises(RecipeError, match=f"hier.environment.url: .*{sentence}"):
        played(remote, [f"search {status} {answer}"])


def test_without_a_server_the_episode_is_unavailable():
    options = RetrievalOptions(url="http://127.0.0.1:9/", pool=10, validation=5)

    async def scenario(pool, handle):
        with pytest.raises(EnvironmentFailure, match=r"start the server of hier.environment.url") as failure:
            await handle.step("search mentor")
        assert failure.value.kind == "unavailable"

    in_pool(options, scenario, retries=0)


WEB = {
    "serper": ({"organic": [{"title": "Lake", "link": "http://a/b", "snippet": "a  lake"}]}, "X-API-KEY", "k-123456"),
    "brave": (
        {"web": {"results": [{"title": "Lake", "url": "http://a/b", "description": "a lake"}]}},
        "X-Subscription-Token",
        "k-123456",
    ),
    "tavily": (
        {"results": [{"title": "Lake", "url": "http://a/b", "content": "a lake"}]},
        "Authorization",
        "Bearer k-123456",
    ),
}


@pytest.mark.parametrize("name", WEB)
def test_a_web_search_by_key_beside_the_index(name, monkeypatch):
    said, header, value = WEB[name]
    met = []

    async def answer(request):
        met.append((request.headers.get(header), request.query.get("q") or await request.json()))
        return web.json_response(said)

    monkeypatch.setenv("SEARCH_KEY", "k-123456")
    with serving(answer) as port:
        options = RetrievalOptions(
            **dataclasses.asdict(PLAIN), web=name, web_url=f"http://127.0.0.1:{port}", key_env="SEARCH_KEY"
        )
        start, here, there = played(options, ["search mentor", "web where is the lake"])
    assert "`web some words`" in start.text and here.info["documents"]
    assert there.text == "[1] Lake: a lake" and there.info["documents"] == ["http://a/b"]
    assert met[0][0] == value and re.search("where is the lake", str(met[0][1]))


def test_a_key_that_is_not_there(monkeypatch):
    monkeypatch.delenv("SEARCH_KEY", raising=False)
    options = RetrievalOptions(**dataclasses.asdict(PLAIN), web="tavily", key_env="SEARCH_KEY")
    with pytest.raises(RecipeError, match="key_env: the environment variable SEARCH_KEY is not set"):
        build(SPEC, options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "for the index use `search`"),
        ({"url": "localhost:8000"}, "url has to begin with http"),
        ({"web": "retriever"}, "needs the address of that retriever in web_url"),
        ({"url": "http://a", "web_url": "http://b"}, "web_url needs `web`"),
        ({"url": "http://a", "web": "serper"}, "web: serper needs key_env"),
        ({"web": "serper", "key_env": "K"}, "set web_share to 0"),
    ],
)
def test_options_that_do_not_go_together(options, sentence):
    with pytest.raises(RecipeError, match=sentence):
        build_options(SPEC, options)


def test_questions_of_a_file_need_no_documents_where_a_retriever_has_them(tmp_path):
    file = tmp_path / "questions.jsonl"
    file.write_text("\n".join(f'{{"question": "who {n}?", "answer": "me"}}' for n in range(40)))
    options = RetrievalOptions(url="http://127.0.0.1:9/", data_path=str(file), pool=5)
    assert [task["answers"] for task in SPEC.tasks(options, "train")] == [["me"]] * 5
