"""Servers that the product asks: none gets a key by a redirect, and of no answer more than the limit is read.

The clients are found in the source, by the libraries that they are made with, so that a new one has to be played here.
"""

import ast
import asyncio
import contextlib
import dataclasses
import importlib
import json
import time
import tracemalloc
import zlib
from pathlib import Path

import httpx2
import pytest
from aiohttp import web

from tests.fixtures.http_server import serving
from tests.fixtures.openenv_server import SCHEMA
from tests.fixtures.retriever import PLAIN
from tests.fixtures.tiers import spread
from verl_hier.environments.asynchronous import AsyncOptions
from verl_hier.environments.pool import EnvironmentFailure, EnvironmentPool
from verl_hier.errors import HierError, RolloutError
from verl_hier.http_clients import LARGEST_ANSWER, TooLarge, aiohttp_session, httpx_options, read_answer
from verl_hier.served import client as served
from verl_hier.served.client import ChatClient
from verl_hier_plugins.environments.mcp import SPEC as MCP
from verl_hier_plugins.environments.mcp.options import McpOptions
from verl_hier_plugins.environments.openenv import SPEC as OPENENV
from verl_hier_plugins.environments.openenv.options import OpenenvOptions
from verl_hier_plugins.environments.retrieval import SPEC as RETRIEVAL
from verl_hier_plugins.environments.retrieval import client as retrieval
from verl_hier_plugins.environments.retrieval.options import RetrievalOptions

ROOT = Path(__file__).parents[2]
FOLDERS = ("verl_hier", "plugins", "examples")
LIBRARIES = (
    *("aiohttp", "httpx", "httpx2", "requests", "urllib3", "urllib.request", "http.client", "websockets", "websocket"),
    *("openai", "anthropic", "litellm", "agents", "mcp", "huggingface_hub", "smtplib", "ftplib", "grpc", "pycurl"),
)
NO_CLIENTS = {
    # They answer, and ask nobody.
    "plugins/verl_hier_plugins/environments/gateway/endpoint.py",
    "plugins/verl_hier_plugins/environments/mcp/sample.py",
    # They are given a session, or make it for others.
    "plugins/verl_hier_plugins/environments/openenv/session.py",
    "plugins/verl_hier_plugins/environments/retrieval/client.py",
    "verl_hier/http_clients.py",
    # It asks through the package openai, once a process and with nothing of its own; openai_loop.py is played.
    "examples/agents/agents_sdk.py",
}
KEY = "sk-secret-123456"
HOUSE = {"name": "house", "version": "1"}
NO_METHOD = {"code": -32601, "message": "no such method"}
REDIRECTS = (302, 307, *(pytest.param(status, marks=pytest.mark.slow) for status in (301, 303, 308)))


def _imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{name.name}" for name in node.names))


def _libraries(tree):
    found = {name for name in _imported(tree) for library in LIBRARIES if f"{name}.".startswith(f"{library}.")}
    return found | {name for name in _imported(tree) if name.startswith("verl_hier.http_clients.")}


def clients():
    """The files that can make a client."""
    files = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))
    users = {str(file.relative_to(ROOT)) for file in files if _libraries(ast.parse(file.read_text()))}
    return sorted(users - NO_CLIENTS)


# ---- how each client is made to ask --------------------------------------------------------------------------------


def _episode(spec, options, action="go"):
    """An episode from its first call to an action; whatever the server does, the sentence that came of it."""

    async def main():
        pool = EnvironmentPool.of(spec, options, 1, time_limit_s=60.0, asynchronous=AsyncOptions(retries=0))
        try:
            handle, _ = await pool.open(spec.tasks(options, "train")[0], 0)
            return await handle.step(action)
        except (EnvironmentFailure, HierError) as error:
            return str(error)
        finally:
            await pool.close()

    return asyncio.run(main())


def _retrieval(form, header):
    def ask(url, monkeypatch, tmp_path):
        monkeypatch.setenv("A_KEY", KEY)
        options = RetrievalOptions(**dataclasses.asdict(PLAIN), web=form, web_url=f"{url}/search", key_env="A_KEY")
        return _episode(RETRIEVAL, options, "web something")

    return ask, header


def _openenv(field):
    def ask(url, monkeypatch, tmp_path):
        monkeypatch.setenv("A_KEY", KEY)
        options = OpenenvOptions(url=url, headers_env={"X-Key": "A_KEY"}, action_field=field, pool=3, validation=2)
        return _episode(OPENENV, options)

    return ask, "X-Key"


def _mcp(url, monkeypatch, tmp_path):
    monkeypatch.setenv("A_KEY", KEY)
    file = tmp_path / "tasks.jsonl"
    file.write_text("\n".join(map(json.dumps, MCP.tasks(McpOptions(pool=40), "train"))))
    options = McpOptions(url=f"{url}/mcp", headers_env={"X-Key": "A_KEY"}, data_path=str(file), pool=5, validation=3)
    return _episode(MCP, options, "find lamp")


def _served(model):
    def ask(url, monkeypatch, tmp_path):
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setattr(ChatClient, "retries", 0)

        async def main():
            client = ChatClient(f"{url}/v1", model)
            try:
                return await client.ask([{"role": "user", "content": "hello"}])
            except HierError as error:
                return str(error)
            finally:
                await client.close()

        return asyncio.run(main())

    return ask, "Authorization"


def _hub(url, monkeypatch, tmp_path):
    from verl_hier.verl_facts.hub import require_on_hub

    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    monkeypatch.setenv("HF_TOKEN", KEY)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with contextlib.suppress(HierError):
        require_on_hub("somebody/a-model", "a line")


def _agent(module):
    def ask(url, monkeypatch, tmp_path):
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/v1")
        monkeypatch.setenv("OPENAI_MODEL", "m")
        monkeypatch.syspath_prepend(ROOT / "examples" / "agents")
        with contextlib.suppress(Exception):
            importlib.import_module(module).play({"instruction": "find", "rooms": {"hall": "lamp"}})

    return ask, "Authorization"


ENVIRONMENTS = "plugins/verl_hier_plugins/environments"
PLAYED = {
    f"{ENVIRONMENTS}/retrieval/environment.py": [
        _retrieval("serper", "X-API-KEY"),
        _retrieval("brave", "X-Subscription-Token"),
        _retrieval("tavily", "Authorization"),
        _retrieval("retriever", "Authorization"),
    ],
    f"{ENVIRONMENTS}/openenv/environment.py": [_openenv(""), _openenv("move")],
    f"{ENVIRONMENTS}/mcp/session.py": [(_mcp, "X-Key")],
    f"{ENVIRONMENTS}/gateway/sample.py": [_agent("verl_hier_plugins.environments.gateway.sample")],
    "verl_hier/served/client.py": [_served("m"), _served("")],
    "verl_hier/verl_facts/hub.py": [(_hub, "Authorization")],
    "examples/agents/openai_loop.py": [_agent("openai_loop")],
}
CASES = [(file, number) for file, played in PLAYED.items() for number in range(len(played))]


def test_every_client_is_played():
    assert clients() == sorted(PLAYED), "a file makes clients of HTTP: let it ask a server that redirects, in PLAYED"
    assert all((ROOT / file).is_file() for file in NO_CLIENTS)


@pytest.mark.parametrize(
    ("file", "number", "status"), spread(20, [(*case, status) for case in CASES for status in REDIRECTS])
)
def test_no_key_follows_a_redirect(file, number, status, monkeypatch, tmp_path):
    """Neither its header nor the key itself reaches the other server, in whatever request."""
    ask, header = PLAYED[file][number]
    heard, elsewhere = [], []

    async def other(request):
        elsewhere.append((request.path_qs, dict(request.headers), await request.text()))
        return web.json_response({})

    async def answer(request):
        heard.append(request.headers.get(header, ""))
        return web.Response(status=status, headers={"Location": f"http://localhost:{there}{request.path_qs}"})

    with serving(other) as there, serving(answer) as here:
        said = ask(f"http://127.0.0.1:{here}", monkeypatch, tmp_path)
    assert any(KEY in each for each in heard), (said, heard)
    assert KEY not in json.dumps(elsewhere)


# ---- answers without an end ----------------------------------------------------------------------------------------

ENDLESS = 200 * 2**20
"""Bytes that a server would send."""
READ_AHEAD = 32 * 2**20
"""Bytes beyond the limit that the kernel and the client's buffers may hold."""
HOSTS = [(file, number) for file, number in CASES if file.endswith(("environment.py", "session.py", "client.py"))]


class Endless:
    """A server whose answer is a text that does not end; `sent` is how much of it was taken."""

    def __init__(self, status, content_type, before):
        self._head = status, content_type, before
        self.sent = 0

    async def __call__(self, request):
        status, content_type, before = self._head
        await request.read()
        answer = web.StreamResponse(status=status, headers={"Content-Type": content_type})
        await answer.prepare(request)
        part = b"x" * 2**18
        with contextlib.suppress(ConnectionError):
            await answer.write(before)
            while self.sent < ENDLESS:
                await answer.write(part)
                self.sent += len(part)
            await answer.write_eof()
        return answer


@pytest.mark.parametrize(
    ("status", "content_type", "before"),
    [
        (200, "application/json", b'{"result": "'),
        pytest.param(200, "text/event-stream", b"data: ", marks=pytest.mark.long),
        pytest.param(400, "application/json", b'{"error": "', marks=pytest.mark.long),
        (500, "text/html", b"<html>"),
    ],
)
@pytest.mark.parametrize(("file", "number"), HOSTS)
def test_an_endless_answer_is_not_read(file, number, status, content_type, before, monkeypatch, tmp_path):
    server = Endless(status, content_type, before)
    with serving(server) as port:
        said = PLAYED[file][number][0](f"http://127.0.0.1:{port}", monkeypatch, tmp_path)
    assert said is None or isinstance(said, str), said
    assert server.sent <= LARGEST_ANSWER + READ_AHEAD


def test_an_endless_message_of_a_websocket_is_not_read():
    """One text of OpenEnv's protocol in fragments that do not end."""
    sent = 0

    async def answer(request):
        nonlocal sent
        if request.path == "/schema":
            return web.json_response(SCHEMA)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive()
        part = b"\x7f" + (2**18).to_bytes(8, "big") + b"x" * 2**18
        while sent < ENDLESS and not request.transport.is_closing():
            request.transport.write((b"\x00" if sent else b"\x01") + part)
            sent += 2**18
            while request.transport.get_write_buffer_size() > 2**20 and not request.transport.is_closing():
                await asyncio.sleep(0.001)
        return socket

    with serving(answer) as port:
        said = _episode(OPENENV, OpenenvOptions(url=f"http://127.0.0.1:{port}", pool=3, validation=2))
    assert isinstance(said, str)
    assert 0 < sent <= LARGEST_ANSWER + READ_AHEAD


def test_a_bomb_of_gzip_takes_no_memory():
    """A gigabyte that is a megabyte on its way."""
    packer = zlib.compressobj(wbits=31)
    bomb = b"".join(packer.compress(bytes(2**20)) for _ in range(1024)) + packer.flush()

    async def answer(request):
        return web.Response(body=bomb, headers={"Content-Encoding": "gzip", "Content-Type": "application/json"})

    async def read(url):
        async with aiohttp_session() as client, client.get(url) as answered:
            with pytest.raises(TooLarge, match=f"more than {LARGEST_ANSWER} bytes"):
                await read_answer(answered)
        async with httpx2.AsyncClient(**httpx_options()) as client:
            with pytest.raises(TooLarge, match="compressed"):
                await client.get(url)

    with serving(answer) as port:
        tracemalloc.start()
        asyncio.run(read(f"http://127.0.0.1:{port}/"))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 8 * LARGEST_ANSWER


def test_no_cookie_of_a_server_is_kept():
    heard = []

    async def answer(request):
        heard.append(request.headers.get("Cookie"))
        return web.Response(headers={"Set-Cookie": f"c{len(heard)}=1; Path=/; Max-Age=1000"})

    async def ask(url):
        async with aiohttp_session() as client, httpx2.AsyncClient(**httpx_options()) as other:
            for _ in range(3):
                await client.get(url)
                await other.get(url)

    with serving(answer) as port:
        asyncio.run(ask(f"http://localhost:{port}/"))
    assert heard == [None] * 6


def test_an_answer_that_drips_is_waited_for_no_longer_than_said(monkeypatch):
    """Each byte comes in time, and the answer never."""
    monkeypatch.setattr(ChatClient, "retries", 0)
    monkeypatch.setattr(served, "PAUSE_S", 0.0)

    async def answer(request):
        answered = web.StreamResponse()
        await answered.prepare(request)
        with contextlib.suppress(ConnectionError):
            for _ in range(60):
                await answered.write(b" ")
                await asyncio.sleep(0.1)
        return answered

    async def ask(url):
        client = ChatClient(url, "m", timeout_s=0.5)
        with pytest.raises(RolloutError, match="does not answer"):
            await client.ask([{"role": "user", "content": "hello"}])
        await client.close()

    with serving(answer) as port:
        begun = time.monotonic()
        asyncio.run(ask(f"http://127.0.0.1:{port}/v1"))
        assert time.monotonic() - begun < 3.0


@pytest.mark.parametrize("status", [307, 400, 401, 404, 500])
def test_what_a_server_says_makes_no_long_sentence(status, monkeypatch, tmp_path, caplog):
    said = {"error": {"message": "x" * 2**20}}

    async def answer(request):
        return web.json_response(said, status=status, headers={"Location": "/" + "y" * 3000} if status < 400 else {})

    with serving(answer) as port:
        for file, number in HOSTS:
            if "mcp" not in file:
                told = PLAYED[file][number][0](f"http://127.0.0.1:{port}", monkeypatch, tmp_path)
                assert told is None or len(told) <= 2_500
    assert all(len(record.getMessage()) <= 2_500 for record in caplog.records)


@pytest.mark.parametrize("largest", [10, 100_000, 700_000])
def test_kept_answers_of_a_retriever_have_a_size(largest, monkeypatch):
    """Each answer takes about 100,000 bytes; two are kept at most where there is room for them."""
    monkeypatch.setattr(retrieval, "KEPT_BYTES", largest)
    asked = []

    async def answer(request):
        asked.append((await request.json())["queries"][0])
        return web.json_response({"result": [[{"document": {"title": "t", "text": "é" * 100_000}}] * 2]})

    async def search(url):
        async with aiohttp_session() as client:
            collection = retrieval.RemoteCollection(client, "retriever", url, "url", kept=4)
            for query in "aabbccddeeffgghhgfedcba":
                await collection.search(query, 2)
                kept = sum(retrieval._size(found) for found in collection._kept.values())
                assert kept == collection._kept_bytes <= largest
            return len(collection._kept)

    with serving(answer) as port:
        kept = asyncio.run(search(f"http://127.0.0.1:{port}/"))
    assert (kept, len(asked)) == {10: (0, 23), 100_000: (0, 23), 700_000: (4, 12)}[largest]


@pytest.mark.parametrize("tools", [0, 1, 100])
def test_a_list_of_tools_has_an_end(tools, tmp_path, monkeypatch):
    """An MCP server whose every page of tools names another one."""
    pages = 0

    async def answer(request):
        nonlocal pages
        if request.method != "POST":
            return web.Response(status=405)
        said = await request.json()
        if "id" not in said:
            return web.Response(status=202)
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": HOUSE}
        if said["method"] == "tools/list":
            pages += 1
            listed = [{"name": f"t{pages}_{n}", "inputSchema": {"type": "object"}} for n in range(tools)]
            result = {"tools": listed, "nextCursor": str(pages)}
        elif said["method"] != "initialize":
            return web.json_response({"jsonrpc": "2.0", "id": said["id"], "error": NO_METHOD})
        return web.json_response({"jsonrpc": "2.0", "id": said["id"], "result": result})

    with serving(answer) as port:
        said = _mcp(f"http://127.0.0.1:{port}", monkeypatch, tmp_path)
    assert "lists more tools than can be shown" in said
    assert pages <= 2000
