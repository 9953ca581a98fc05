"""How alike texts are to a served model: by real HTTP, asked for once, whatever the endpoint says."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest

from tests.fixtures.chat_endpoint import Endpoint
from verl_hier.errors import RolloutError
from verl_hier.served.client import ChatClient
from verl_hier.served.embedder import Embedder


class Embeddings(Endpoint):
    """Serves embeddings; `answer(request)` gives one as JSON, or an HTTP status."""

    def body(self, request: dict[str, Any], text: str | int) -> dict[str, Any]:
        if isinstance(text, int):
            return super().body(request, text)
        data = [{"object": "embedding", "index": 0, "embedding": json.loads(text)}] if text else []
        return {"object": "list", "model": request["model"], "data": data, "usage": {"total_tokens": 1}}


def letters(request: dict[str, Any]) -> str:
    """How often a text has an a, a b and a c."""
    return json.dumps([request["input"].count(letter) for letter in "abc"])


def alike(url: str, *pairs: tuple[str, str]) -> list[float]:
    async def ask() -> list[float]:
        embedder = Embedder(ChatClient(url, "m", option="hier.worker.endpoint"))
        return [await embedder.likeness(*pair) for pair in pairs]

    return asyncio.run(ask())


def test_likeness_is_the_cosine_and_a_text_is_asked_about_once():
    with Embeddings(letters) as endpoint:
        found = alike(endpoint.url, ("ab", "a"), ("a", "ab"), ("a", "b"), ("abc", "ccc"), ("a", "x"))
    assert found == pytest.approx([math.sqrt(0.5), math.sqrt(0.5), 0.0, math.sqrt(1 / 3), -1.0])
    assert sorted(request["input"] for request in endpoint.requests) == ["a", "ab", "abc", "b", "ccc", "x"]
    assert {request["encoding_format"] for request in endpoint.requests} == {"float"}


@pytest.mark.parametrize("said", ["[1, 0]", "[]", '["a"]', "[NaN, 1, 1]", "[1e999, 0, 0]", '"text"', "", "null", 400])
def test_what_is_no_embedding_costs_one_likeness(said):
    def answer(request: dict[str, Any]) -> str | int:
        return said if request["input"] == "bad" else letters(request)

    with Embeddings(answer) as endpoint:
        assert alike(endpoint.url, ("a", "ab"), ("a", "bad"), ("a", "aa")) == pytest.approx([math.sqrt(0.5), -1.0, 1.0])


@pytest.mark.parametrize("said", ['["a"]', 404])
def test_an_endpoint_without_embeddings_is_named(said):
    with Embeddings(lambda request: said) as endpoint, pytest.raises(RolloutError, match=r"hier\.worker\.endpoint at"):
        alike(endpoint.url, ("a", "b"))
