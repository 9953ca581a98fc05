"""Roles that a recipe gives policies of their own: who generates which turn, what is trained, and what is refused."""

import asyncio
from dataclasses import replace

import pytest

from tests.fixtures.duel import Duel
from verl_hier.errors import RecipeError
from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_options
from verl_hier.recipe.policies import PolicyOptions, played
from verl_hier.rollout import Generation, Limits, Request, Rollout
from verl_hier.rollout.policy import Policies, policy_of
from verl_hier.rollout.roles import Roles
from verl_hier.rollout.turn_view import Turn
from verl_hier.served.policy import Messages
from verl_hier.testing import rollout as kit
from verl_hier.testing.rollout import CharacterTokenizer

SELF_PLAY = PluginHost.load({"builtin": True}).spec("worker", "self_play")


def game(assigned, trained=("default",), renderers=None, **words):
    """A game of two seats whose policies each say one word, or are given."""
    options = build_options(SELF_PLAY, {"seats": {"now": {}, "then": {}}})
    tokenizer = CharacterTokenizer()
    speaks = {
        name: kit.ScriptedPolicy(tokenizer, lambda prompt, sampling, word=word: word) if isinstance(word, str) else word
        for name, word in {"default": "right", **words}.items()
    }
    setup = kit._setup(speaks["default"], tokenizer, Duel, 0, Limits(20, 200, 5000), None, None)
    setup = replace(
        setup,
        policies=Policies(speaks, {}.get),
        assigned=assigned,
        trained=frozenset(trained),
        renderers=renderers or {},
    )
    request = Request(task={"instruction": "do it"}, identity={"uid": "u"}, n=1)
    rollout = Rollout(request, setup, lambda: SELF_PLAY.factory(options), Roles.of(SELF_PLAY, options))
    graph = asyncio.run(kit.roll_out(rollout, kit.SideBySide()))
    graph.check()
    return graph


def test_a_role_is_played_by_its_policy_and_the_others_by_the_first_one():
    turns = game({"then": "second"}, ("default", "second"), second="left").nodes
    assert {(node.role, node.policy, node.text, node.trained) for node in turns} == {
        ("now", "default", "right", True),
        ("then", "second", "left", True),
    }


def test_a_policy_that_never_learns_is_part_of_the_episode_alone():
    turns = game({"then": "second"}, second="left").nodes
    assert {(node.role, node.trained) for node in turns} == {("now", True), ("then", False)}


def test_policies_that_learn_exchange_their_roles_in_a_circle():
    declared = {"b": PolicyOptions(("second",)), "c": PolicyOptions(("third",)), "d": PolicyOptions(("judge",), "none")}
    roles = ("first", "second", "third", "judge")
    assert played(declared, roles, 9, None) == {"second": "b", "third": "c", "judge": "d"}
    known = {1: "default b c d", 5: "default b c d", 6: "b c default d", 11: "c default b d", 16: "default b c d"}
    for step, owners in known.items():
        assert played(declared, roles, step, 5) == dict(zip(roles, owners.split(), strict=True))
    # Before the first step, as a validation before training.
    assert played(declared, roles, 0, 5) == played(declared, roles, 1, 5)


def test_what_a_worker_names_itself_wins():
    assert policy_of({"judge": "frozen"}, "judge") == "frozen"
    assert policy_of({"judge": "frozen"}, "judge", "saved:/past") == "saved:/past"
    assert policy_of({"judge": "frozen"}, "solver") == "default"


def test_two_roles_of_one_context_need_one_policy():
    graph = game({}, ("default", "second"))
    rollout = type("R", (), {"graph": graph, "setup": None, "level": lambda self, role, given: given or 0})()
    rollout.setup = type("S", (), {"assigned": {"then": "second"}})()
    now = next(node for node in graph.nodes if node.role == "now")
    with pytest.raises(RecipeError, match=r"hier\.policies: the roles 'now' and 'then' speak in one context"):
        Turn(rollout, now, now.text).set_speaker("then")
    assert now.role == "now"


def test_a_policy_with_messages_for_tokens_has_its_own_renderer():
    messages = Messages()

    class Says:
        async def generate(self, prompt, sampling, conversation):
            return Generation(messages.turn("left"), [], counted_tokens=1)

    graph = game({"then": "served"}, renderers={"served": messages}, served=Says())
    theirs = [node for node in graph.nodes if node.policy == "served"]
    assert theirs and all(node.text == "left" and len(node.action) == 1 for node in theirs)
    assert {node.text for node in graph.nodes if node.policy == "default"} == {"right"}
