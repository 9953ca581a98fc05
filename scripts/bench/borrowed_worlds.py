"""Small worlds behind the environments that have none of their own, for scripts/bench/all_worlds.py."""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from verl_hier.environments.asynchronous import AsyncEnvironment
from verl_hier.environments.base import Environment
from verl_hier.environments.blocking import BlockingEnvironment, build
from verl_hier.host.specs import EnvironmentSpec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for the servers of the tests
DIFFERENT = 100_000
"""So many queries that few are asked twice; answers to equal ones are kept."""
TESTS = Path(__file__).resolve().parents[2] / "tests"


@dataclasses.dataclass(frozen=True)
class Borrowed:
    """An environment with something to play.

    Attributes:
        make: makes an environment.
        tasks: its tasks.
        actions: what is done where neither the environment nor an expert says what is possible.
    """

    make: Callable[[], Environment]
    tasks: list[dict[str, Any]]
    actions: tuple[str, ...] = ()


def with_options(spec: EnvironmentSpec, options: Any, actions: tuple[str, ...] = ()) -> Borrowed:
    """An environment with its options."""
    assert spec.tasks is not None
    return Borrowed(lambda: build(spec, options), spec.tasks(options, "train")[:16], actions)


@contextmanager
def openenv(spec: EnvironmentSpec) -> Iterator[Borrowed]:
    """With the server of the tests, a line of fields."""
    from tests.fixtures.http_server import serving
    from tests.fixtures.openenv_server import Server

    with serving(Server()) as port:
        yield with_options(spec, spec.options(url=f"http://127.0.0.1:{port}"), ("go 1", "go 2", "fly"))


@contextmanager
def retrieval(spec: EnvironmentSpec) -> Iterator[Borrowed]:
    """With a retriever that has the documents of the generated questions."""
    from tests.fixtures.http_server import serving
    from tests.fixtures.retriever import PLAIN, Retriever

    with serving(Retriever()) as port:
        options = spec.options(url=f"http://127.0.0.1:{port}/retrieve", **dataclasses.asdict(PLAIN))
        yield with_options(spec, options, tuple(f"search mentor {n}" for n in range(DIFFERENT)))


@contextmanager
def verl_tools(spec: EnvironmentSpec) -> Iterator[Borrowed]:
    """With the tools of a small recipe: native, function and stateful ones."""
    from omegaconf import OmegaConf

    from tests.fixtures.verl_tool_recipe import ROW, TURNS, tool_tokenizer, write_tools
    from verl_hier.chat.tools import VerlTools, task_of_row

    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        os.environ["TOOL_LOG"] = os.path.join(folder, "calls")
        turns = {"format": "hermes", "max_parallel_calls": 2, "max_tool_response_length": 64}
        turns |= {"tool_response_truncate_side": "middle", "max_user_turns": None, "max_assistant_turns": None}
        rollout = {"multi_turn": {**turns, **write_tools(Path(folder))}, "prompt_length": 2048}
        rollout |= {"response_length": 4096, "full_determinism": False}
        config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})
        tools = VerlTools(config, tool_tokenizer())

        @asynccontextmanager
        async def service() -> AsyncIterator[Callable[[], AsyncEnvironment]]:
            yield lambda: spec.factory(spec.options(), tools)

        yield Borrowed(lambda: BlockingEnvironment(service()), [task_of_row(ROW)], tuple(TURNS[:-1]))
        sys.path.remove(folder)


@contextmanager
def verifiers(spec: EnvironmentSpec) -> Iterator[Borrowed]:
    """With the taskset of the tests in which a number is guessed."""
    sys.path.insert(0, str(TESTS / "fixtures" / "verifiers_tasksets"))
    yield with_options(spec, spec.options({"taskset": {"id": "number_game"}}, pool=16, validation=4), ("11", "12"))


BORROWED = {"openenv": openenv, "retrieval": retrieval, "verl_tools": verl_tools, "verifiers": verifiers}
