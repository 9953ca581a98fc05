"""Composing a recipe reads forty YAML files, and hundreds of tests compose one: each text is parsed once."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from typing import Any

import pytest
import yaml


@pytest.fixture(scope="session", autouse=True)
def parsed_once() -> Iterator[None]:
    """`yaml.load` of a text that has been loaded before is a copy of what it gave."""
    known: dict[tuple[str, type], Any] = {}
    load = yaml.load

    def load_once(stream: Any, Loader: type) -> Any:
        text = stream if isinstance(stream, str) else stream.read()
        if (text, Loader) not in known:
            again = io.StringIO(text)
            again.name = getattr(stream, "name", "<unicode string>")  # errors name the file
            known[text, Loader] = load(again, Loader)
        return copy.deepcopy(known[text, Loader])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml, "load", load_once)
        yield
