"""The library of skills: its five operations, what workers are told, and that a resumed run goes on bit by bit."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np

from tests.conformance.builtin_parts import part
from verl_hier.credit.tables import make_table


def library(*cache: Any, reservoir: Any = (), **options: Any) -> Any:
    """A library with (text, utility, uses) in its tiers."""
    made = part("schedule", "skill_library", warm_up=0, **options)

    def skill(text: str, utility: float, uses: int) -> dict[str, Any]:
        return {"text": text, "step": 0, "utility": utility, "uses": uses}

    made.load_state_dict({"cache": [skill(*each) for each in cache], "reservoir": [skill(*each) for each in reservoir]})
    return made


def step_of(*episodes: tuple[int, str | None, float, str | None, int]) -> Any:
    """A table of episodes (task, skill that was shown, success, skill that was written, how it was verified)."""
    role, episode, verified, shown, written = [], [], [], [], []
    for number, (_, used, _, new, outcome) in enumerate(episodes):
        turns = 1 + (new is not None)
        role += [0, 1][:turns]
        episode += [number] * turns
        verified += [-1, outcome][:turns]
        shown += [used, None][:turns]
        written += [None, new][:turns]
    turns = {"episode": episode, "role": role, "verified": verified, "parent": _parents(episode)}
    turns["skill_used"] = [text is not None for text in shown]
    turns["group"] = [episodes[number][0] for number in episode]
    success = np.asarray([each[2] for each in episodes], float)
    turns["reward"] = [success[number] if kind == 0 else 0.0 for number, kind in zip(episode, role, strict=True)]
    table = make_table(turns, names={"role": ("solver", "concluder")}, episodes={"success": success})
    table.texts = {"skill": np.asarray(shown, object), "new_skill": np.asarray(written, object)}
    return table


def _parents(episode: list[int]) -> list[int]:
    return [i - 1 if i and episode[i - 1] == each else -1 for i, each in enumerate(episode)]


def tier(made: Any, name: str = "cache") -> dict[str, float]:
    return {skill["text"]: round(skill["utility"], 6) for skill in made.state_dict()[name]}


def counted(metrics: dict[str, float]) -> dict[str, float]:
    return {name.removeprefix("hier/skills/"): value for name, value in metrics.items() if value}


def test_a_used_skill_is_worth_what_its_tasks_earned():
    made = library(("carry the one", 0.5, 0), ("look it up", 0.2, 0))
    metrics = made.table_ready(
        step_of((0, "carry the one", 1, None, 0), (0, "carry the one", 0, None, 0), (1, "carry the one", 1, None, 0),
                (1, None, 1, None, 0)), 3,
    )  # fmt: skip
    # Rewards with the skill: the mean of 2 and 0 in one task, 2 in the other.
    assert tier(made)["carry the one"] == round(0.9 * (0.9 * 0.5 + 0.1 * 1.0) + 0.1 * 2.0, 6)
    assert tier(made)["look it up"] == 0.2 and counted(metrics)["updated"] == 2 and counted(metrics)["used"] == 0.75
    assert [skill["uses"] for skill in made.state_dict()["cache"]] == [2, 0]


def test_a_new_skill_is_worth_what_its_verification_has_shown():
    made = library()
    table = step_of(
        (0, "known", 1, "critical", 1), (0, None, 0, None, 0),
        (1, None, 1, "redundant", 1), (1, None, 0, "second of the task", 1),
        (2, None, 1, "harmful", 0), (3, None, 1, "cut off", -1), (4, None, 1, "Redundant!", 1),
    )  # fmt: skip
    metrics = counted(made.table_ready(table, 7))
    assert tier(made) == {"critical": 1.0, "redundant": 0.5, "harmful": -1.0}
    assert {skill["step"] for skill in made.state_dict()["cache"]} == {7}
    assert (
        metrics["written"] == 6 and metrics["duplicate"] == 1 and metrics["unverified"] == 1 and metrics["added"] == 3
    )


def test_the_worst_of_a_full_cache_leaves_it_and_a_better_one_comes_back():
    made = library(("a", 0.4, 1), ("b", 0.1, 1), reservoir=[("c", 0.3, 0)], cache=2)
    metrics = made.table_ready(step_of((0, None, 1, "d", 1)), 1)
    # `d` (0.5) comes, `b` goes; `c` is not worth more than `a`, the worst of the cache now.
    assert tier(made) == {"a": 0.4, "d": 0.5} and tier(made, "reservoir") == {"c": 0.3, "b": 0.1}
    assert counted(metrics)["evicted"] == 1 and "loaded" not in counted(metrics)
    made = library(("a", 0.4, 1), ("b", 0.1, 1), reservoir=[("c", 0.3, 0)], cache=2)
    assert counted(made.table_ready(step_of((0, None, 1, None, 0)), 1))["loaded"] == 1
    assert tier(made) == {"a": 0.4, "c": 0.3} and tier(made, "reservoir") == {"b": 0.1}


def test_what_was_never_used_and_what_is_too_much_is_deleted():
    stored = [(f"skill {n}", n / 100, int(n == 1)) for n in range(30)]
    made = library(("best", 1.0, 1), reservoir=stored)
    assert counted(made.table_ready(step_of((0, None, 1, None, 0)), 1))["deleted"] == 1
    # A tenth of thirty is three: the limit is what the third is worth, and the second was used.
    assert list(tier(made, "reservoir"))[:2] == ["skill 1", "skill 2"]
    made = part("schedule", "skill_library", reservoir=2)
    made.load_state_dict(library(("best", 1.0, 1), reservoir=stored).state_dict())
    made.table_ready(step_of((0, None, 1, None, 0)), 1)
    assert list(tier(made, "reservoir")) == ["skill 28", "skill 29"]


def test_workers_are_told_the_cache_behind_the_warm_up():
    made = part("schedule", "skill_library", skills=("one", "two"), warm_up=2, roles=("solver",))
    assert made.told(2, [5, 6]) == [{}, {}] and made.phase(2).name == "warm_up"
    assert made.told(3, [5]) == [{"skills": ["one", "two"]}] and made.phase(3).roles == {"solver"}
    made.table_ready(step_of((0, "two", 1, None, 0)), 3)
    assert made.told(4, [5]) == [{"skills": ["two", "one"]}], "the one that is worth most comes first"


def test_a_run_that_is_resumed_at_any_step_goes_on_bit_by_bit():
    options = {"cache": 3, "reservoir": 4, "warm_up": 3, "skills": ("a b", "c d")}

    def go(made: Any, step: int) -> Any:
        chance = random.Random(step)
        told = made.told(step, [1, 2])
        known = told[0].get("skills", [])
        episodes = [
            (
                task,
                chance.choice([None, *known]),
                float(chance.random() < 0.6),
                chance.choice([None, " ".join(chance.choice("abcdefg") for _ in range(2))]),
                chance.randrange(-1, 2),
            )
            for task in range(3)
            for _ in range(3)
        ]
        return told, made.table_ready(step_of(*episodes), step), json.dumps(made.state_dict())

    whole, states, expected = part("schedule", "skill_library", **options), [], []
    for step in range(1, 26):
        states.append(json.dumps(whole.state_dict()))
        expected.append(go(whole, step))
    assert {name for each in expected for name in counted(each[1])} >= {
        "updated",
        "added",
        "evicted",
        "loaded",
        "deleted",
    }
    for start in range(25):
        resumed = part("schedule", "skill_library", **options)
        resumed.load_state_dict(json.loads(states[start]))
        assert [go(resumed, step) for step in range(start + 1, 26)] == expected[start:]


def test_a_table_without_any_skill_is_no_problem():
    table = make_table({"episode": [0], "role": [0], "reward": [1.0]}, names={"role": ("agent",)})
    assert counted(part("schedule", "skill_library").table_ready(table, 1)) == {}


def test_a_task_is_not_shown_the_skill_that_its_own_solution_has_left():
    made = library(("given", 0.1, 0))
    made.table_ready(step_of((4, None, 1.0, "carry the one", 1), (7, None, 1.0, "look it up", 1)), 1)
    written = {4: "carry the one", 7: "look it up"}
    told = made.told(2, [4, 7, 9])
    assert [sorted(each["skills"]) for each in told] == [
        ["given", "look it up"], ["carry the one", "given"], ["carry the one", "given", "look it up"],
    ]  # fmt: skip
    again = library()
    again.load_state_dict(json.loads(json.dumps(made.state_dict())))
    assert again.told(2, [4, 7, 9]) == told and {skill["task"] for skill in made.state_dict()["cache"]} == {
        -1,
        *written,
    }
