"""The served page: what it answers, and whom it refuses."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys

import pytest

from tests.fixtures.trainer import ROOT


@pytest.fixture(scope="module")
def port(runs):
    """Port of a page that the command serves."""
    command = [sys.executable, "-m", "verl_hier.cli.main", "view", str(runs["himac"])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        try:
            address = server.stdout.readline().split()[0]
            assert address.startswith("http://127.0.0.1:")
            yield int(address.rstrip("/").rpartition(":")[2])
        finally:
            server.terminate()


def ask(port: int, path: str, method: str = "GET", **headers: str):
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
