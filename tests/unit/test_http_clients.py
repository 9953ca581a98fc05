"""Servers that the product asks: none gets a key by a redirect, and of no answer more than the limit is read.

The clients are found in the source, by the libraries that they are made with, so that a new one has to be played here.
"""

import ast
import asyncio
import contextlib
import dataclasses
import importlib
import json
from pathlib import Path

import pytest
from aiohttp import web

from tests.fixtures.http_server import serving
from tests.fixtures.retriever import PLAIN
from verl_hier.environments.asynchronous import AsyncOptions
from verl_hier.environments.pool import EnvironmentFailure, EnvironmentPool
from verl_hier.errors import HierError
from verl_hier.http_clients import LARGEST_ANSWER
from verl_hier.served.client import ChatClient
from verl_hier_plugins.environments.mcp import SPEC as MCP
from verl_hier_plugins.environments.mcp.options import McpOptions
from verl_hier_plugins.environments.openenv import SPEC as OPENENV
from verl_hier_plugins.environments.openenv.options import OpenenvOptions
from verl_hier_plugins.environments.retrieval import SPEC as RETRIEVAL
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
REDIRECTS = (301, 302, 303, 307, 308)


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
    from verl_hier.compat.hub import require_on_hub

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
    "verl_hier/compat/hub.py": [(_hub, "Authorization")],
    "examples/agents/openai_loop.py": [_agent("openai_loop")],
}
CASES = [(file, number) for file, played in PLAYED.items() for number in range(len(played))]


def test_every_client_is_played():
    assert clients() == sorted(PLAYED), "a file makes clients of HTTP: let it ask a server that redirects, in PLAYED"
    assert all((ROOT / file).is_file() for file in NO_CLIENTS)


@pytest.mark.parametrize("status", REDIRECTS)
@pytest.mark.parametrize(("file", "number"), CASES)
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
        (200, "text/event-stream", b"data: "),
        (400, "application/json", b'{"error": "'),
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
