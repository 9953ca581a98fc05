"""Roles played by a saved model and by an endpoint, as a rollout worker opens them, without a trainer."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.byte_model import write_byte_model
from tests.fixtures.chat_endpoint import Endpoint
from tests.fixtures.corridor import Corridor
from verl_hier.compat.runner import runner_of
from verl_hier.compat.servers.named import NamedPolicies
from verl_hier.errors import HierError
from verl_hier.graph import RolloutGraph, graph_rows
from verl_hier.host.options import build_options
from verl_hier.host.part import Part
from verl_hier.host.servers import loader_of
from verl_hier.host.specs import EnvironmentSpec, NoOptions
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.policies import PolicyOptions
from verl_hier.rollout import Limits, Request
from verl_hier.testing.rollout import InlinePool

TEAM = {
    "roles": {
        "adviser": {"prompt": "a:{instruction}", "later_prompt": "a:"},
        "actor": {"level": 1, "prompt": "x:{said}", "later_prompt": "x:{said}", "action": "{content}"},
    },
    "topology": {"kind": "sequence", "order": ["adviser", "actor"]},
}
LIMITS = Limits(max_turns=8, max_tokens_per_turn=8, context_tokens=200)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_model(tmp_path_factory.mktemp("model"), hidden=8, layers=1)


def recipe_with(model: Path, **policies: PolicyOptions) -> ComposedRecipe:
    """A team of two in a corridor."""
    made = ComposedRecipe.named(
        "grpo_math", [f"actor_rollout_ref.model.path={model}", "hier.rollout.template=plain", "size=cpu"]
    )
    team = made.host.spec("worker", "team")
    world = EnvironmentSpec("corridor", lambda options: Corridor(30), says_won=True)
    parts = replace(
        made.parts,
        worker=Part(team, build_options(team, TEAM)),
        environment=Part(world, NoOptions()),
    )
    return replace(made, parts=parts, hier=replace(made.hier, policies=policies), rewards={})


def rollouts(
    made: ComposedRecipe, model: Path, count: int = 1, before: Callable[[int], Any] = id
) -> list[RolloutGraph]:
    """Tasks of one rollout worker, one after the other; `before` is called with the number of each."""

    async def all_of_them() -> list[RolloutGraph]:
        load = loader_of(made.host, made.config)
        beside = NamedPolicies(made, load)
        runner = replace(runner_of(made.config), recipe=made, limits=LIMITS, beside=beside)
        policy, found = load(model), []
        for number in range(count):
            before(number)
            request = Request({"instruction": "go"}, {"uid": f"u{number}", "index": number}, n=2)
            found.append(await runner.roll_out(request, policy, InlinePool(lambda: Corridor(30))))
        return found

    return asyncio.run(all_of_them())


def test_a_saved_model_plays_a_role_and_stays_as_it_is(model: Path, tmp_path: Path) -> None:
    other = write_byte_model(tmp_path / "other", hidden=16, layers=2, seed=1)
    held = hashlib.sha256((other / "model.safetensors").read_bytes()).digest()
    made = recipe_with(model, judge=PolicyOptions(("adviser",), "none", str(other)))
    (graph,) = rollouts(made, model)
    assert {(node.role, node.policy, node.trained) for node in graph.nodes} == {
        ("adviser", "judge", False),
        ("actor", "default", True),
    }
    assert all(len(node.logprobs) == len(node.action) > 0 for node in graph.nodes)
    # Nothing of what it wrote is trained, though others read it.
    trained = {graph.nodes[node].role for row in graph_rows(graph, lambda node: True) for node in row.nodes}
    assert trained == {"actor"}
    assert hashlib.sha256((other / "model.safetensors").read_bytes()).digest() == held


def test_an_endpoint_is_asked_once_a_turn_and_its_words_are_read_by_others(model: Path) -> None:
    with Endpoint(lambda request: "go left") as endpoint:
        made = recipe_with(model, helper=PolicyOptions(("adviser",), "none", "m", endpoint.url))
        (graph,) = rollouts(made, model)
        theirs = [node for node in graph.nodes if node.policy == "helper"]
        assert len(theirs) == len(endpoint.requests) > 0
        assert all(node.text == "go left" and not node.trained and not node.logprobs for node in theirs)
    heard = [node for node in graph.nodes if node.role == "actor"]
    assert any("go left" in message.content for node in heard for message in node.messages)
    assert endpoint.requests[0]["model"] == "m" and endpoint.requests[0]["messages"][0]["content"] == "a:go"


def test_an_endpoint_that_dies_costs_the_episodes_that_ask_it(model: Path) -> None:
    with Endpoint(lambda request: "go left") as endpoint:
        limited = PolicyOptions(("adviser",), "none", "m", endpoint.url, time_limit_s=2.0)
        made = recipe_with(model, helper=limited)

        def die(number: int) -> None:
            if number == 1:
                endpoint.__exit__()

        first, *later = rollouts(made, model, 3, die)
    assert len(first.nodes) > 2
    for graph in later:
        graph.check()
        assert not graph.nodes and all(episode.status != "failed" for episode in graph.episodes)


def test_an_address_that_was_never_right_ends_the_run_in_a_sentence(model: Path) -> None:
    wrong = PolicyOptions(("adviser",), "none", "m", "http://127.0.0.1:9/v1", time_limit_s=2.0)
    with pytest.raises(HierError, match=r"hier\.policies\.helper\.url: the endpoint at http://127\.0\.0\.1:9/v1"):
        rollouts(recipe_with(model, helper=wrong), model)
