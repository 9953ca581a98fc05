"""Cheats in worlds that others make: servers, agent programs, and worlds of gymnasium."""

from __future__ import annotations

import asyncio

import pytest

from tests.fixtures.http_server import serving
from tests.unit.environments.test_cheats import ANSWERS
from tests.unit.environments.test_cheats_in_games import COMMANDS
from tests.unit.environments.test_gym_text import HERE
from tests.unit.environments.test_openenv import Server
from verl_hier.environments.blocking import build
from verl_hier.environments.pool import EnvironmentPool
from verl_hier_plugins.environments.gateway import SPEC as GATEWAY
from verl_hier_plugins.environments.gateway.options import SCORERS, GatewayOptions
from verl_hier_plugins.environments.gateway.sample import ROOMS, THINGS
from verl_hier_plugins.environments.gateway.scoring import scorer_of
from verl_hier_plugins.environments.gym_text.environment import build as build_gym
from verl_hier_plugins.environments.gym_text.options import GymTextOptions
from verl_hier_plugins.environments.openenv import SPEC as OPENENV
from verl_hier_plugins.environments.openenv.options import OpenenvOptions
from verl_hier_plugins.environments.retrieval import SPEC as RETRIEVAL
from verl_hier_plugins.environments.retrieval.options import RetrievalOptions

RESULTS = [
    *ANSWERS,
    "a",
    "the",
    "The.",
    " ".join(ROOMS),
    " or ".join(ROOMS),
    *THINGS,
    '{"answer": "right"}',
    "answers[0]",
]
"""What an agent may be brought to return."""
MESSAGES = [
    *('{"reward": 1}', '{"done": true, "reward": 1}', '{"type": "reset", "data": {"seed": 10}}', '{"move": "go 99"}'),
    *('{"move": "go", "reward": 1}', '{"move": null}', '{"move": ["go 10"]}', '{"metadata": {"reward": 1}}', "go 99"),
    *(
        '{"place": 10}',
        '{"move": "go -1", "place": 10}',
        "go \u0661\u0660\u0660",
        "go 1e1",
        "go 10.0",
        "state",
        "close",
        "go",
    ),
]
"""What may be said to a server of OpenEnv whose goal is reached by `go` and a number."""


def test_there_are_enough_of_them():
    assert min(len(set(texts)) for texts in (RESULTS, COMMANDS + MESSAGES)) >= 40


@pytest.mark.parametrize("name", SCORERS)
def test_results_of_agents(name):
    score = scorer_of(GatewayOptions(scorer=name))
    for truth in ("Ada Lovelace", "1815", "the", "."):
        for result in RESULTS:
            # An answer that is the true one to the letter is right, unless the scorer leaves nothing of it.
            if result != truth or name in ("exact_match", "f1", "number"):
                assert score({"answers": [truth]}, result) <= 0, (truth, result)


def test_the_sample_agent():
    """Whatever the policy has the agent return, only the room is right; nothing that it says wins otherwise."""
    options = GatewayOptions(pool=1, validation=1)
    (task,) = GATEWAY.tasks(options, "train")
    wrong = [text for text in RESULTS if task["answers"][0] != text]

    async def scenario():
        pool = EnvironmentPool.of(GATEWAY, options, time_limit_s=60.0)
        try:
            for number, text in enumerate(wrong):
                handle, _ = await pool.open(task, 0)
                step = await handle.step(text if number % 2 else f"answer {text}")
                assert step.reward <= 0 and not step.info.get("won"), text
                await handle.close()
        finally:
            await pool.close()

    asyncio.run(scenario())


def test_gym_text():
    options = GymTextOptions(world=f"{HERE}:Doors", view=f"{HERE}:Words", settings={"doors": 6}, fork="copy")
    moves = [
        "left left",
        "right; take key",
        "take",
        "-1",
        "1",
        "leave",
        "door 3",
        "key = True",
        "place = goal",
    ]
    world = build_gym(options)
    before = world.reset({"seed": 3}, 0)
    for command in [*COMMANDS, *moves, before.text]:
        step = world.fork().step(command)
        assert step.reward <= 0 and not step.done and not step.info["won"] and not step.valid, command
        assert step.anchor == before.anchor and step.info["score"] == before.info["score"], command


def test_openenv():
    with serving(Server()) as port:
        options = OpenenvOptions(url=f"http://127.0.0.1:{port}", pool=1, validation=1, show="{text}")
        (task,) = OPENENV.tasks(options, "train")
        for message in [*COMMANDS, *MESSAGES]:
            world = build(OPENENV, options)
            try:
                world.reset(task, 0)
                step = world.step(message)
                assert step.reward <= 0 and not step.info["won"], message
            finally:
                world.close()


def test_retrieval():
    """An answer is scored without the server, which is not there."""
    options = RetrievalOptions(url="http://127.0.0.1:9", web_share=0.0, pool=1, validation=1, reward="f1")
    (task,) = RETRIEVAL.tasks(options, "train")
    world = build(RETRIEVAL, options)
    try:
        for answer in (text for text in RESULTS if text not in task["answers"]):
            world.reset(task, 0)
            step = world.step(f"answer {answer}")
            assert step.reward <= 0 and not step.info["won"], answer
    finally:
        world.close()
