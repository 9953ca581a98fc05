"""The served page: what it answers, and whom it refuses."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import time

import pytest

from tests.fixtures.trainer import ROOT
from verl_hier.viewer.server import application as server_application


@pytest.fixture(scope="module")
def address(runs):
    """Where the command serves a page: its port, and the token that its paths begin with."""
    command = [sys.executable, "-m", "verl_hier.cli.main", "view", str(runs["himac"])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        try:
            said = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/([\w-]{20,})/", server.stdout.readline().split()[0])
            yield int(said[1]), said[2]
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def port(address):
    """The port, for requests whose path has the token added."""
    TOKENS[address[0]] = address[1]
    return address[0]


TOKENS: dict[int, str] = {}


def ask(port: int, path: str, method: str = "GET", **headers: str):
    """Status, headers and text of an answer to a path of the page."""
    return ask_whole(port, f"/{TOKENS[port]}{path}", method, **headers)


def ask_whole(port: int, path: str, method: str = "GET", **headers: str):
    """Status, headers and text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read().decode()


def test_the_page_and_its_views_are_served(port):
    status, headers, text = ask(port, "/")
    assert status == 200 and "<title>himac_corridor</title>" in text
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    status, _, text = ask(port, "/overview")
    found = json.loads(text)
    assert status == 200 and len(found["groups"]) == 6
    assert ask(port, f"/overview?stamp={found['stamp']}")[0] == 204
    status, _, text = ask(port, "/group?step=1&uid=task-0")
    assert status == 200 and json.loads(text)["turns"]["role"][0] == "planner"
    status, _, text = ask(port, "/words?step=1&uid=task-0&turns=1,0")
    assert status == 200 and [turn["id"] for turn in json.loads(text)["turns"]] == [1, 0]
    status, _, text = ask(port, "/why?step=1&uid=task-0")
    assert status == 200 and json.loads(text)["methods"][0]["name"] == "himac"
    status, _, text = ask(port, "/search?words=go%20on")
    assert status == 200 and json.loads(text)["many"] > 0


def test_head_is_answered_without_a_body(port):
    status, headers, text = ask(port, "/", "HEAD")
    assert status == 200 and text == "" and int(headers["Content-Length"]) > 1000


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["/", "/overview", "/group?step=1&uid=task-0"])
def test_everything_but_reading_is_refused(port, method, path):
    assert ask(port, path, method)[0] == 405


@pytest.mark.parametrize(
    "host", ["example.org", "example.org:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.example.org:{port}", ""]
)
def test_another_host_is_refused(port, host):
    for path in ("/", "/overview"):
        status, _, text = ask(port, path, Host=host.format(port=port))
        assert status in (400, 403) and "himac" not in text


@pytest.mark.parametrize("origin", ["http://example.org", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1"])
def test_another_origin_is_refused(port, origin):
    assert ask(port, "/overview", Origin=origin.format(port=port))[0] == 403


def test_the_page_itself_may_ask(port):
    assert ask(port, "/overview", Origin=f"http://127.0.0.1:{port}", Host=f"127.0.0.1:{port}")[0] == 200
    assert ask(port, "/overview", Host=f"localhost:{port}")[0] == 200


@pytest.mark.parametrize(
    "path",
    ["/run.json", "/../run.json", "/%2e%2e/run.json", "//etc/passwd", "/bundle/page.js", "/graphs", "/overview/x"],
)
def test_paths_outside_of_the_page_are_not_there(port, path):
    status, _, text = ask(port, path)
    assert status == 404 and "himac" not in text


@pytest.mark.parametrize(
    "query", ["", "?step=1", "?step=-1&uid=task-0", "?step=1&uid=../../run", "?step=9999999999999999&uid=a", "?step=x"]
)
@pytest.mark.parametrize("view", ["/group", "/why", "/words"])
def test_a_group_that_is_not_stored_is_a_sentence(port, view, query):
    turns = f"{'&' if query else '?'}turns=0" if view == "/words" else ""
    status, _, text = ask(port, f"{view}{query}{turns}")
    assert status == 404 and text.endswith(".") and "\n" not in text


@pytest.mark.parametrize("turns", ["", "x", "-1", "1,,2", "99999", "9" * 13, ",".join(["0"] * 501)])
def test_turns_that_are_not_there_are_a_sentence(port, turns):
    status, _, text = ask(port, f"/words?step=1&uid=task-0&turns={turns}")
    assert status == 404 and text.endswith(".") and "\n" not in text


@pytest.mark.parametrize(
    "path", ["/", "/overview", "/{other}/", "/{other}/overview", "/{token}x/", "//{token}/", "/{token}"]
)
def test_who_does_not_know_the_token_reads_nothing(address, path):
    port, token = address
    status, _, text = ask_whole(port, path.format(token=token, other=token.swapcase()))
    assert status in (403, 404, 307) and "himac" not in text and token not in text


def test_the_name_of_this_machine_may_be_written_in_capitals(port):
    assert ask(port, "/overview", Host=f"LOCALHOST:{port}")[0] == 200


class SlowBook:
    """A book whose search goes on until it is told to end."""

    name = "slow"

    def __init__(self):
        self.began, self.ended = threading.Event(), threading.Event()

    def overview(self, patience=0.0):
        return {"stamp": "1"}

    def search(self, words, over):
        def made():
            self.began.set()
            while not over():
                time.sleep(0.01)
            self.ended.set()
            return {"words": words, "many": 0, "hits": []}

        return made


def test_a_page_that_shows_nothing_waits_for_less_reading_than_one_that_shows_a_part():
    from starlette.testclient import TestClient

    asked = []

    class NotedBook(SlowBook):
        def overview(self, patience=0.0):
            asked.append(patience)
            return super().overview()

    client = TestClient(
        server_application(NotedBook(), 80, "t"), base_url="http://localhost:80", headers={"Host": "localhost:80"}
    )
    assert client.get("/t/overview?stamp=").json() == {"stamp": "1"}
    assert client.get("/t/overview?stamp=0").json() == {"stamp": "1"}
    assert client.get("/t/overview?stamp=1").status_code == 204
    assert 0 < asked[0] < 0.1 < asked[1] == asked[2]


def test_a_search_holds_up_no_other_view_and_ends_with_its_request():
    import uvicorn

    book = SlowBook()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        server = uvicorn.Server(
            uvicorn.Config(server_application(book, port, "t"), log_level="warning", lifespan="off")
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        listening.listen()
        thread.start()
        try:
            with socket.create_connection(("127.0.0.1", port)) as searching:
                searching.sendall(f"GET /t/search?words=x HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
                assert book.began.wait(60)
                assert ask_whole(port, "/t/overview")[0] == 200 and not book.ended.is_set()
            assert book.ended.wait(60)
        finally:
            server.should_exit = True
            thread.join(60)
