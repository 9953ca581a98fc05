"""The worker of self-play: who moves, what each seat reads and earns, and what is refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.fixtures.duel import Duel, Trio
from verl_hier.compat.servers.saved import SavedPolicies
from verl_hier.credit.tables import make_table
from verl_hier.environments.base import StepResult
from verl_hier.errors import HierError
from verl_hier.graph.build_table import build_table
from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_options
from verl_hier.rollout import Limits, Request, Rollout
from verl_hier.rollout.policy import Policies
from verl_hier.rollout.roles import Roles
from verl_hier.testing import rollout as kit
from verl_hier.testing.line import Line
from verl_hier.testing.rollout import CharacterTokenizer, roll_out_scripted
from verl_hier_plugins.schedules.rae import RAE, RAEScheduleOptions

HOST = PluginHost.load({"builtin": True})
SELF_PLAY = HOST.spec("worker", "self_play")


def play(options: dict[str, Any], *texts: str, environment: type[Duel] = Duel, **more: Any) -> Any:
    said = iter(texts)
    graph, _ = asyncio.run(
        roll_out_scripted(
            worker=SELF_PLAY,
            options=build_options(SELF_PLAY, options),
            answer=lambda prompt, sampling: next(said),
            environment=environment,
            n=1,
            tokenizer=CharacterTokenizer(),
            limits=Limits(20, 200, 5000),
            **more,
        )
    )
    graph.check()
    return graph


def rewards(graph: Any) -> list[tuple[str, float]]:
    return [(node.role, node.reward) for node in graph.nodes]


def read(graph: Any, place: int) -> list[str]:
    return [message.content for message in graph.nodes[place].messages]


def test_each_seat_has_its_own_reward_on_its_last_turn():
    graph = play({}, "right", "right", "right", "left")
    assert rewards(graph) == [("player_0", 0.0), ("player_1", 0.0), ("player_0", -1.0), ("player_1", 1.0)]
    assert graph.episodes[0].ret == 0.0 and graph.episodes[0].success is False
    assert [node.extra["seat"] for node in graph.nodes] == [0, 1, 0, 1]
    assert read(graph, 1) == ["task: do it | 5 stones"] and read(graph, 2) == ["3 stones"]


def test_a_refused_move_is_the_movers_and_is_asked_again():
    graph = play({}, "right", "up", "right", "right", "left")
    assert rewards(graph)[1] == ("player_1", -0.1) and not graph.nodes[1].valid
    assert [node.role for node in graph.nodes][:3] == ["player_0", "player_1", "player_1"]


def test_a_refused_move_may_lose_the_game():
    graph = play({"invalid": "loses"}, "right", "up")
    assert rewards(graph) == [("player_0", 0.5), ("player_1", -1.5)]
    assert graph.episodes[0].status == "truncated"


def test_the_moves_of_a_fixed_player_are_nobodys():
    seats = {"learner": {}, "rival": {"by": "first"}}
    graph = play({"seats": seats}, "right", "right", "left")
    assert rewards(graph) == [("learner", 0.0), ("learner", 0.0), ("learner", 1.0)], "2 + 1 + 2 + 1 + 1 stones"
    assert graph.episodes[0].success and graph.episodes[0].ret == 1.0


def test_a_fixed_player_that_moves_last_pays_the_learner_its_own_reward():
    graph = play({"seats": {"rival": {"by": "first"}, "learner": {}}}, "right", "right")
    assert rewards(graph) == [("learner", 0.0), ("learner", -1.0)], "1 + 2 + 1 + 2 + 1 stones"


def test_seats_without_memory_begin_anew():
    graph = play({"memory": False, "prompt": "{seat} {player} {observation}"}, "right", "right", "right", "left")
    assert read(graph, 2) == ["player_0 0 3 stones"] and graph.nodes[2].context == -1


@pytest.mark.parametrize("name", ["rae", "joint"])
def test_a_chosen_seat_learns_alone(name):
    schedule = HOST.spec("schedule", name)
    phase = schedule.factory(build_options(schedule, {"roles": ["player_0"]})).phase(3)
    graph = play({}, "right", "right", "right", "left")
    assert [phase.trains(node) for node in graph.nodes] == [True, False, True, False]


def test_an_evaluation_has_the_seats_that_it_names():
    tokenizer, options = (
        CharacterTokenizer(),
        build_options(SELF_PLAY, {"seats": {"a": {}, "b": {"evaluated_by": "first"}}}),
    )
    said = iter(["right", "right", "left"])
    scripted = kit.ScriptedPolicy(tokenizer, lambda prompt, sampling: next(said))
    setup = kit._setup(scripted, tokenizer, Duel, 0, Limits(20, 200, 5000), None, None)
    request = Request(task={"instruction": "x"}, identity={"uid": "u"}, n=1, validate=True)
    rollout = Rollout(request, setup, lambda: SELF_PLAY.factory(options), Roles.of(SELF_PLAY, options))
    graph = asyncio.run(kit.roll_out(rollout, kit.SideBySide()))
    assert rewards(graph) == [("a", 0.0), ("a", 0.0), ("a", 1.0)] and graph.episodes[0].success


def test_three_seats_play():
    seats = {name: {} for name in "abc"}
    graph = play({"seats": seats}, "right", "right", "right", "left", environment=Trio)
    assert rewards(graph) == [("a", 0.0), ("b", -1.0), ("c", -1.0), ("a", 1.0)]


class Together(Duel):
    """Pays one reward, which is everybody's."""

    def step(self, action):
        answer = super().step(action)
        info = {name: value for name, value in answer.info.items() if name != "rewards"}
        return StepResult(answer.text, answer.reward, done=answer.done, info=info)


def test_the_reward_of_a_cooperative_game_is_everybodys():
    graph = play({}, "right", "right", "right", "left", environment=Together)
    assert [amount for _, amount in rewards(graph)] == [0.0, 0.0, 1.0, 1.0]


class Alone(Duel):
    """Plays the other seat itself."""

    def reset(self, task, seed):
        answer = super().reset(task, seed)
        return StepResult(answer.text, info={**answer.info, "seat": 0})


@pytest.mark.parametrize(
    ("options", "environment", "sentence"),
    [
        ({}, Trio, r"hier\.worker\.seats: there are 2 seats \(player_0, player_1\), and the game has 3 players"),
        ({}, Line, r"hier\.environment\.name: self_play needs a game whose `info` names the `player`"),
        ({}, Alone, r"hier\.environment\.opponent: the environment plays the other seats itself"),
        ({"seats": {"a": {}, "b": {"policy": "past"}}}, Duel, "the worker asks for the policy 'past'; this run has"),
        ({"seats": {"a": {}}}, Duel, r"hier\.worker.*two seats at least"),
        ({"seats": {"a": {"by": "random"}, "b": {"by": "first"}}}, Duel, "nobody learns"),
        ({"seats": {"a b": {}, "c": {}}}, Duel, "'a b' cannot be the name of a seat"),
    ],
)
def test_what_cannot_be_played_is_refused_in_a_sentence(options, environment, sentence):
    with pytest.raises(HierError, match=sentence) as refused:
        play(options, *["right"] * 9, environment=environment)
    assert "\n" not in str(refused.value)


def past_game(told: dict[str, Any], validate: bool = False, **policies: str) -> Any:
    """A game with a seat of the past, whose policies each say one word."""
    options = build_options(SELF_PLAY, {"seats": {"now": {}, "then": {"by": "past"}}})
    tokenizer = CharacterTokenizer()
    speaks = {name: kit.ScriptedPolicy(tokenizer, lambda prompt, sampling, word=word: word)
              for name, word in {"default": "right", **policies}.items()}  # fmt: skip
    setup = kit._setup(speaks["default"], tokenizer, Duel, 0, Limits(20, 200, 5000), None, None)
    setup = replace(setup, policies=Policies({"default": speaks["default"]}, speaks.get))
    request = Request(task={"instruction": "do it"}, identity={"uid": "u"}, n=1, told=told, validate=validate)
    rollout = Rollout(request, setup, lambda: SELF_PLAY.factory(options), Roles.of(SELF_PLAY, options))
    graph = asyncio.run(kit.roll_out(rollout, kit.SideBySide()))
    graph.check()
    return graph


def test_a_past_checkpoint_has_a_seat_and_is_not_trained():
    graph = past_game({"opponent": {"step": 8, "path": "/c/8"}}, **{"saved:/c/8": "left"})
    assert [(node.role, node.text, node.policy, node.trained) for node in graph.nodes][:2] == [
        ("now", "right", "default", True), ("then", "left", "saved:/c/8", False),
    ]  # fmt: skip
    table = build_table([graph])
    assert table["opponent"].tolist() == [8] * len(graph.nodes) and table["past"].tolist()[:2] == [0, 1]
    assert table["trained"].tolist() == [node.role == "now" for node in graph.nodes]


def test_where_no_checkpoint_is_chosen_both_seats_have_the_weights_of_now():
    for graph in (past_game({"opponent": {}}), past_game({}, validate=True)):
        assert {node.policy for node in graph.nodes} == {"default"} and all(node.trained for node in graph.nodes)
        assert {node.extra["opponent"] for node in graph.nodes} == {0}


def test_seats_of_the_past_need_a_schedule_that_chooses_and_a_model_that_is_there():
    with pytest.raises(HierError, match=r"hier\.schedule\.name: seat then is played by past checkpoints"):
        past_game({})
    with pytest.raises(HierError, match="the worker asks for the policy 'saved:/gone'"):
        past_game({"opponent": {"step": 1, "path": "/gone"}})
    with pytest.raises(HierError, match=r"trainer\.max_actor_ckpt_to_keep: the checkpoint in /gone is gone"):
        SavedPolicies(str)("saved:/gone")
    assert SavedPolicies(str)("other") is None
    for seat in ({"by": "past", "policy": "x"}, {"evaluated_by": "past"}):
        with pytest.raises(HierError, match=r"seats\.b\."):
            build_options(SELF_PLAY, {"seats": {"a": {}, "b": seat}})


def test_a_seat_that_never_speaks_moves_its_mean():
    graph = play({"invalid": "loses"}, "up")
    assert rewards(graph) == [("player_0", -1.5)]
    assert {name: graph.nodes[0].extra[f"outcome/{name}"] for name in ("player_0", "player_1")} == {
        "player_0": -1.5,
        "player_1": 0.5,
    }
    turns = {"episode": [0, 1, 1], "role": ["player_0", "player_0", "player_1"], "reward": [-1.5, 1.0, -1.0]}
    table = make_table(turns | {"outcome/player_0": [-1.5, np.nan, 1.0], "outcome/player_1": [0.5, np.nan, -1.0]})
    rae = RAE(RAEScheduleOptions(decay=0.5, score="role"))
    rae.table_ready(table, 1)
    assert table["baseline"].tolist() == [0.0, -0.75, 0.25]
    assert rae.state_dict()["means"] == {"0/player_0": 0.125, "0/player_1": -0.375}
