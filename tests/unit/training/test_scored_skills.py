"""Skills that are kept by how often they help: their scores, what counts, what goes, and a run that is resumed."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.conformance.builtin_parts import part
from tests.unit.training.test_skill_library import counted, step_of
from verl_hier.host.manager import PluginHost
from verl_hier.testing import check_schedule


def library(*skills: dict[str, Any], **options: Any) -> Any:
    made = part("schedule", "scored_skills", **options)
    made.load_state_dict({"skills": [{"step": 1, **skill} for skill in skills]})
    return made


def kept(made: Any) -> dict[str, dict[str, Any]]:
    return {skill["text"]: skill for skill in made.state_dict()["skills"]}


def skills_of(told: Any) -> list[list[str]]:
    return [each["skills"] for each in told]


def test_the_kit_passes():
    spec = PluginHost.load({"builtin": True}).specs("schedule")["scored_skills"]
    check_schedule(spec, spec.options(warm_up=2), roles={"solver": 0, "concluder": 1})


def test_each_episode_that_has_read_a_skill_counts_for_it_once():
    made = library({"text": "look left", "uses": 2, "successes": 1}, {"text": "wait"})
    metrics = made.table_ready(
        step_of((5, "look left", 1, None, 0), (5, "look left\nwait", 0, None, 0), (6, None, 1, None, 0)), 3
    )
    found = kept(made)
    assert (found["look left"]["uses"], found["look left"]["successes"], found["look left"]["proofs"]) == (4, 2, 1)
    assert (found["wait"]["uses"], found["wait"]["successes"], found["wait"]["proofs"]) == (1, 0, 0)
    # (2 + 1) / (4 + 2) and (0 + 1) / (1 + 2)
    assert metrics["hier/skills/score"] == pytest.approx((3 / 6 + 1 / 3) / 2)
    assert metrics["hier/skills/used"] == pytest.approx(2 / 3) and metrics["hier/skills/counting"] == 1
    assert metrics["hier/skills/solved_with"] == 0.5 and metrics["hier/skills/solved_without"] == 1.0


def test_where_a_skill_comes_from_is_kept():
    made = library()
    made.table_ready(step_of((8, None, 1, None, 0), (8, None, 0, "do not wait", -1)), 7)
    assert kept(made)["do not wait"] == {
        "text": "do not wait", "step": 7, "uses": 0, "task": 8, "episode": 1, "role": "concluder", "solved": False,
        "successes": 0, "proofs": 0, "again": [],
    }  # fmt: skip


def test_a_skill_counts_once_it_has_helped_with_another_task():
    made = library(proofs=1, trial=1)
    made.table_ready(step_of((1, None, 1, "the key is below the mat", -1), (2, None, 1, "knock twice", -1)), 1)
    assert skills_of(made.told_in_evaluation([0])) == [[]], "none has helped yet"
    # The newest is on trial; a task is not shown its own.
    assert skills_of(made.told(2, [1, 2, 3])) == [["knock twice"], ["the key is below the mat"], ["knock twice"]]
    made.table_ready(step_of((3, "knock twice", 0, None, 0), (2, "the key is below the mat", 1, None, 0)), 2)
    assert skills_of(made.told_in_evaluation([0])) == [["the key is below the mat"]]
    assert skills_of(made.told(3, [3])) == [["the key is below the mat", "knock twice"]]
    assert skills_of(part("schedule", "scored_skills", skills=("given",)).told_in_evaluation([0])) == [["given"]]
    assert part("schedule", "scored_skills", skills=("given",), evaluations=False).told_in_evaluation([0]) is None
    at_once = library(proofs=0)
    at_once.table_ready(step_of((1, None, 1, "knock twice", -1)), 1)
    assert skills_of(at_once.told_in_evaluation([0])) == [["knock twice"]]


def test_what_is_alike_is_one_skill_and_is_not_shown_to_the_task_whose_words_it_has():
    made = library({"text": "look below the mat for the key", "task": 1, "proofs": 1}, alike=0.8)
    written = [
        (2, None, 1, "for the key look below the mat", -1), (2, None, 0, "the key: look below the mat for", -1),
        (3, None, 0, "Look below the mat for the key!", -1), (4, None, 1, "look above the door", -1),
        (4, None, 1, "look above the door", -1),
    ]  # fmt: skip
    metrics = counted(made.table_ready(step_of(*written), 2))
    assert (metrics["written"], metrics["merged"], metrics["added"]) == (5, 2, 1)
    found = kept(made)
    # One use for each of the tasks 2 and 3, and a success for the first.
    assert (found["look below the mat for the key"]["uses"], found["look below the mat for the key"]["successes"]) == (
        2,
        1,
    )
    assert found["look below the mat for the key"]["again"] == [2, 3] and found["look above the door"]["uses"] == 0
    both = ["look below the mat for the key", "look above the door"]
    assert skills_of(made.told(3, [1, 2, 4, 9])) == [both[1:], both, both[:1], both]


def test_a_skill_without_words_is_one_however_often_it_is_written():
    made = library(proofs=0)
    made.table_ready(step_of((1, None, 1, "+", -1), (2, None, 1, "+", -1), (2, None, 1, "-", -1)), 1)
    assert {text: skill["uses"] for text, skill in kept(made).items()} == {"+": 1, "-": 0}


def test_what_helps_too_rarely_is_deleted_at_its_time():
    skills = [{"text": f"skill {n}", "uses": 9, "successes": n, "proofs": n} for n in range(5)]
    made = library(*skills, interval=4, least_score=0.3)
    nothing = step_of((0, None, 1, None, 0))
    assert "deleted" not in counted(made.table_ready(nothing, 3))
    # (n + 1) / 11 is below 0.3 for n up to 2.
    assert counted(made.table_ready(nothing, 4))["deleted"] == 3 and list(kept(made)) == ["skill 3", "skill 4"]
    full = library(*skills, {"text": "new"}, entries=3, interval=100)
    full.table_ready(nothing, 1)
    assert list(kept(full)) == ["skill 2", "skill 3", "skill 4"], "first what does not count yet, then the lowest"


def test_a_task_is_told_no_more_than_it_may_be():
    skills = [{"text": f"skill {n}", "uses": 9, "successes": n, "proofs": n} for n in range(8)]
    made = library(*skills, {"text": "new"}, {"text": "newer"}, told=4, trial=1)
    assert skills_of(made.told(2, [0])) == [["skill 7", "skill 6", "skill 5", "newer"]]
    assert skills_of(made.told_in_evaluation([0])) == [["skill 7", "skill 6", "skill 5", "skill 4"]]
    assert library(*skills, warm_up=2).told(2, [0, 1]) == [{}, {}]


def test_a_run_that_is_resumed_at_any_step_goes_on_bit_by_bit():
    options = {"entries": 12, "told": 6, "trial": 3, "interval": 3, "alike": 0.7, "warm_up": 2, "skills": ("a b", "c")}

    def go(made: Any, step: int) -> Any:
        chance = random.Random(step)
        told = made.told(step, [0, 1, 2])
        episodes = [
            (
                task,
                "\n".join(chance.sample(known, min(2, len(known)))) or None,
                float(chance.random() < 0.5),
                chance.choice([None, " ".join(chance.choice("abcdef") for _ in range(3))]),
                -1,
            )
            for task, known in enumerate(each.get("skills", []) for each in told)
            for _ in range(4)
        ]
        evaluated = made.told_in_evaluation([0])
        return told, evaluated, made.table_ready(step_of(*episodes), step), json.dumps(made.state_dict())

    whole, states, expected = part("schedule", "scored_skills", **options), [], []
    for step in range(1, 31):
        states.append(json.dumps(whole.state_dict()))
        expected.append(go(whole, step))
    assert {name for each in expected for name in counted(each[2])} >= {"added", "merged", "deleted", "counting"}
    for start in range(30):
        resumed = part("schedule", "scored_skills", **options)
        resumed.load_state_dict(json.loads(states[start]))
        assert [go(resumed, step) for step in range(start + 1, 31)] == expected[start:]
