"""Roles of a team that are left out of an episode, and roles that rate who has contributed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from verl_hier.errors import RecipeError
from verl_hier.graph.build_table import build_table
from verl_hier.host.options import build_options
from verl_hier.rollout.sampler import Sampler
from verl_hier_plugins.estimators.sepo import SEPOOptions, rewards
from verl_hier_plugins.workers.team.visit import stated_share

from .test_team_credit import TEAM, play

PAIR = {
    "roles": {"thinker": {"prompt": "think"}, "solver": {"prompt": "solve {said}", "level": 1}},
    "answer_from": "solver",
    "answer_action": "{content}",
    "ratings": {"roles": ["thinker", "solver"], "prompt": "rate {said}"},
}
CASES = json.loads((Path(__file__).parents[2] / "conformance" / "cases" / "sepo.json").read_text())["cases"]


@pytest.mark.parametrize("case", CASES)
def test_recorded_ratings_by_the_whole_way(case):
    given, expected = case["input"], case["output"]
    graphs, rows = [], []
    for task in sorted(set(given["task"])):
        mine = [row for row, name in enumerate(given["task"]) if name == task]
        episodes = [
            [
                "a thought",
                f"end {given['outcome'][row]}",
                f"I say {given['thinker_says_thinker_share'][row]}",
                f"{given['solver_says_thinker_share'][row]}",
            ]
            for row in mine
        ]
        graphs.append(play(PAIR, episodes))
        rows += mine
    table = build_table(graphs)
    options = SEPOOptions(
        own=given["eta"], credit=given["credit"], blame=given["blame"], centre_by_task=given["center_by_group"]
    )
    found = rewards(table, options).reshape(-1, 4)
    for place, role in enumerate(("thinker", "solver")):
        want = np.asarray(expected[f"{role}_reward"])[rows]
        assert found[:, place] == pytest.approx(want, rel=2e-4, abs=2e-5)
    assert np.asarray(table["rates"]).reshape(-1, 4).tolist() == [[0, 0, 1, 1]] * len(rows)


def test_ratings_come_before_the_answer_is_given_and_earn_nothing():
    graph = play(PAIR, [["a thought", "end 1", "0.8", "no idea"]])
    assert [node.reward for node in graph.nodes] == [0.0, 1.0, 0.0, 0.0]
    assert [node.extra["share"] for node in graph.nodes] == [0.5, 0.5, 0.8, 0.5]
    assert [node.extra["format"] for node in graph.nodes] == [1, 1, 1, 0]
    assert [m.content for m in graph.nodes[2].messages] == ["rate solver: end 1"]
    assert graph.episodes[0].status == "finished" and graph.episodes[0].ret == 1.0


@pytest.mark.parametrize(
    ("text", "share"), [("0.3", 0.3), ("first .2, then .7", 0.7), ("7", None), ("0.95", None), ("", None)]
)
def test_what_counts_as_a_rating(text, share):
    assert stated_share(text) == share


def test_ratings_need_an_answer_to_be_given():
    with pytest.raises(RecipeError, match=r"ratings: roles rate before the answer is given; name who answers"):
        build_options(TEAM, {"ratings": {"roles": ["actor"]}})
    with pytest.raises(RecipeError, match=r"ratings.roles: there is no role 'thinkr' .did you mean 'thinker'"):
        build_options(TEAM, {**PAIR, "ratings": {"roles": ["thinkr"]}})


class Without(Sampler):
    """One episode without some of the roles."""

    def __init__(self, **stand_ins: str) -> None:
        self._stand_ins = stand_ins

    async def sample(self, rollout):
        await rollout.start(stand_ins=self._stand_ins).run()


LOOP = {
    "roles": {"solver": {"prompt": "solve {said}"}, "verifier": {"prompt": "check {said}", "level": 1}},
    "answer_from": "solver",
    "answer_action": "{content}",
    "topology": {"kind": "verifier_loop", "rounds": 2},
}
LEAD = {
    "roles": {"lead": {"later_prompt": "{said}"}, "helper": {"level": 1}, "scout": {"level": 1}},
    "topology": {"kind": "lead"},
}


@pytest.mark.parametrize(
    ("options", "left_out", "texts", "roles"),
    [
        (LOOP, {"verifier": ""}, ["a", "end 1"], ["solver", "solver"]),
        (LOOP, {"verifier": "approve"}, ["end 1"], ["solver"]),
        (LOOP, {"solver": ""}, ["no", "no"], ["verifier", "verifier"]),
        (
            LEAD,
            {"helper": "(nothing)"},
            ["<helper>a</helper><scout>b</scout>", "found", "<answer>end 1</answer>"],
            ["lead", "scout", "lead"],
        ),
        (LEAD, {"lead": ""}, [], []),
    ],
)
def test_roles_that_are_left_out_take_no_turn(options, left_out, texts, roles):
    graph = play(options, [texts], sampler=Without(**left_out))
    assert [node.role for node in graph.nodes] == roles
    if "helper" in left_out:
        assert [m.content for m in graph.nodes[-1].messages] == ["helper: (nothing) | scout: found"]
