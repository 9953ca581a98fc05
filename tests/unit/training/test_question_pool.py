"""The pool of questions: what enters it, what proposers are shown, and that a resumed run goes on bit by bit."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from tests.conformance.builtin_parts import part
from verl_hier.credit.tables import make_table
from verl_hier.errors import RecipeError
from verl_hier.testing.builtin import credit_of
from verl_hier_plugins.estimators.mae import MAEOptions, role_rewards

ROLES = ("proposer", "judge", "solver")


def step_of(*asked: tuple[str | None, float, list[float]]) -> Any:
    """A table with a proposer's turn for each question, its quality, and the scores of its answers."""
    role, plan, judge, texts = [], [], [], []
    for question, quality, answers in asked:
        place = len(role)
        role += [0, *[2] * len(answers)]
        plan += [-1, *[place] * len(answers)]
        judge += [quality, *answers]
        texts += [question, *[None] * len(answers)]
    episode = np.cumsum(np.asarray(role) == 0) - 1
    turns = {"episode": episode, "role": role, "plan": plan, "judge": judge, "format": np.ones(len(role))}
    table = make_table({**turns, "n_tokens": np.ones(len(role), int)}, names={"role": ROLES})
    table.texts = {"question": np.asarray(texts, object)}
    return table


def pool(**options: Any) -> Any:
    return part("schedule", "question_pool", **options)


def counted(metrics: dict[str, float]) -> dict[str, int]:
    return {name.removeprefix("hier/questions/"): int(count) for name, count in metrics.items() if count}


def test_each_guard_is_counted():
    made = pool(questions=("how old is the moon",))
    table = step_of(
        (None, 0.9, [1.0, 0.0]),
        ("How old is the Moon?", 0.9, [1.0, 0.0]),
        ("why is grass so green", 0.6, [1.0, 0.0]),
        ("what is one plus one", 0.9, [1.0, 1.0]),
        ("what did nobody ever know", 0.9, [0.0, 0.0]),
        ("who was not asked at all", 0.9, []),
        ("what is seven times eight", 0.7, [1.0, 0.0]),
        ("what is seven times EIGHT", 0.7, [1.0, 0.0]),
    )
    metrics = made.table_ready(table, 3)
    assert counted(metrics) == {
        "proposed": 8, "malformed": 1, "duplicate": 2, "low_quality": 1, "trivial": 1, "unsolvable": 2, "kept": 1,
        "pool": 2,
    }  # fmt: skip
    asked = np.asarray(table["role"]) == 0
    assert table["fresh"][asked].tolist() == [1, 0, 1, 1, 1, 1, 1, 0] and table["fresh"][~asked].all()
    assert [entry["step"] for entry in made.state_dict()["entries"]] == [0, 3]


def test_a_duplicate_earns_nothing():
    made = pool(questions=("how old is the moon",))
    table = step_of(("how old is the moon", 0.9, [1.0, 0.0]), ("why is grass so green", 0.9, [1.0, 0.0]))
    before = role_rewards(table, MAEOptions())
    made.table_ready(table, 1)
    after = role_rewards(table, MAEOptions())
    assert before[0] == before[3] > 0 and after[0] == 0.0 and (after[1:] == before[1:]).all()
    table.turns["reward"] = before
    half = before[0] / 2
    assert credit_of("hierarchical_grpo", table)[[0, 3]] == pytest.approx([-half, half]), "two proposers of a task"


def test_the_oldest_question_leaves_a_full_pool():
    made = pool(questions=("one two three",), capacity=2)
    made.table_ready(step_of(("a b c", 1.0, [1.0, 0.0]), ("d e f", 1.0, [1.0, 0.0])), 1)
    assert [entry["question"] for entry in made.state_dict()["entries"]] == ["a b c", "d e f"]


def test_a_share_of_the_tasks_is_shown_a_question():
    made = pool(questions=tuple(f"question number {n}" for n in range(50)), share=0.5)
    told = made.told(1, list(range(400)))
    shown = [each["questions"][0] for each in told if each["questions"]]
    assert 150 < len(shown) < 250 and len(set(shown)) > 40
    assert made.told(1, [7]) == [told[7]], "asked again for one task, it is shown the same"


def test_questions_are_used_up_and_a_dry_pool_says_so():
    made = pool(questions=("one two three", "four five six"), share=1.0, uses=1)
    assert sorted(each["questions"][0] for each in made.told(1, [1, 2])) == ["four five six", "one two three"]
    with pytest.raises(RecipeError, match=r"hier\.schedule\.uses: the pool of questions ran dry in step 2") as dry:
        made.told(2, [1])
    assert "\n" not in str(dry.value)
    assert pool(share=1.0).told(1, [1]) == [{"questions": []}], "a pool that was never filled is not dry"
    patient = pool(questions=("one two three",), share=1.0, uses=1, when_dry="without")
    assert [each["questions"] for each in patient.told(1, [1, 2])] == [["one two three"], []]


def test_a_run_that_is_resumed_at_any_step_goes_on_bit_by_bit():
    options = {"questions": ("how old is the moon", "why is grass green"), "share": 0.7, "uses": 3}
    options |= {"when_dry": "without", "capacity": 9}

    def go(made: Any, step: int) -> Any:
        chance = random.Random(step)
        told = made.told(step, [chance.randrange(99) for _ in range(4)])
        words = [" ".join(chance.choice("abcdef") for _ in range(3)) for _ in range(5)]
        table = step_of(*((text, chance.random(), [chance.random(), chance.random()]) for text in words))
        return told, made.table_ready(table, step), table["fresh"].tolist(), json.dumps(made.state_dict())

    whole, states, expected = pool(**options), [], []
    for step in range(1, 21):
        states.append(json.dumps(whole.state_dict()))
        expected.append(go(whole, step))
    for start in range(20):
        resumed = pool(**options)
        resumed.load_state_dict(json.loads(states[start]))
        assert [go(resumed, step) for step in range(start + 1, 21)] == expected[start:]


def test_questions_of_a_file(tmp_path):
    (tmp_path / "q.txt").write_text("one two three\n\nfour five six\n")
    assert len(pool(path=str(tmp_path / "q.txt")).state_dict()["entries"]) == 2
    with pytest.raises(RecipeError, match=r"hier\.schedule\.path: there is no file"):
        pool(path=str(tmp_path / "none.txt"))
    with pytest.raises(RecipeError, match=r"hier\.schedule\.path: /dev/zero is not a regular file"):
        pool(path="/dev/zero")


def test_a_table_without_any_question_is_no_problem():
    table = make_table({"episode": [0], "role": [0], "reward": [1.0]}, names={"role": ("agent",)})
    assert counted(pool().table_ready(table, 1)) == {}
