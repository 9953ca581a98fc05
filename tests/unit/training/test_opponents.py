"""Opponents from past checkpoints: which are drawn, how they are beaten, and that a resumed run goes on bit by bit."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.builtin_parts import part
from verl_hier.credit.tables import make_table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for step in (4, 8, 12):
        save(tmp_path, step)
    (tmp_path / "global_step_16").mkdir()  # not whole yet
    return tmp_path


def save(folder: Path, step: int) -> None:
    model = folder / f"global_step_{step}" / "actor" / "huggingface"
    model.mkdir(parents=True)
    (model / "config.json").touch()


def against(*games: tuple[int, float, float]) -> Any:
    """A table of games (step of the checkpoint in the second seat, reward of the first seat, reward of the second)."""
    turns = {
        "episode": [number for number in range(len(games)) for _ in range(2)],
        "opponent": [step for step, _, _ in games for _ in range(2)],
        "past": [int(seat and step > 0) for step, _, _ in games for seat in range(2)],
        "reward": [reward for _, first, second in games for reward in (first, second)],
    }
    return make_table(turns)


def test_only_checkpoints_of_earlier_steps_are_drawn(folder):
    made = part("schedule", "opponents", folder=str(folder), share=1.0)
    assert made.told(4, [1, 2]) == [{"opponent": {}}] * 2
    told = made.told(9, list(range(60)))
    assert {each["opponent"]["step"] for each in told} == {4, 8}
    assert Path(told[0]["opponent"]["path"]).joinpath("config.json").is_file()
    assert made.told(9, [7]) == [told[7]], "asked again for one task, it is told the same"
    half = part("schedule", "opponents", folder=str(folder), share=0.5).told(13, list(range(400)))
    assert 150 < sum(bool(each["opponent"]) for each in half) < 250
    newest = part("schedule", "opponents", folder=str(folder), share=1.0, newest=1).told(99, list(range(20)))
    assert {each["opponent"]["step"] for each in newest} == {12}


def test_those_that_are_beaten_are_drawn_less_often(folder):
    made = part("schedule", "opponents", folder=str(folder), share=1.0)
    made.told(13, [])
    metrics = made.table_ready(against(*[(4, 1.0, -1.0)] * 18, (8, -1.0, 1.0), (8, 0.0, 0.0), (0, 1.0, -1.0)), 13)
    assert made.state_dict() == {"games": {"4": [18.0, 18.0], "8": [2.0, 0.5], "12": [0.0, 0.0]}}
    assert metrics["hier/opponents/pool"] == 3 and metrics["hier/opponents/share"] == pytest.approx(20 / 21)
    assert metrics["hier/opponents/hardest"] == pytest.approx(1 / 3)
    drawn = Counter(each["opponent"]["step"] for each in made.told(14, list(range(600))))
    assert drawn[8] > drawn[12] > 5 * drawn[4]
    alike = part("schedule", "opponents", folder=str(folder), share=1.0, prefer="any")
    alike.load_state_dict(made.state_dict())
    drawn = Counter(each["opponent"]["step"] for each in alike.told(14, list(range(600))))
    assert min(drawn.values()) > 150


def test_a_checkpoint_that_is_gone_leaves_the_table(folder):
    made = part("schedule", "opponents", folder=str(folder))
    made.load_state_dict({"games": {"2": [9.0, 9.0], "4": [3.0, 1.0]}})
    made.told(5, [])
    assert made.state_dict() == {"games": {"4": [3.0, 1.0]}}


def test_a_run_that_is_resumed_at_any_step_goes_on_bit_by_bit(folder):
    options = {"folder": str(folder), "share": 0.8}

    def go(made: Any, step: int) -> Any:
        chance, told = random.Random(step), made.told(step, [1, 2, 3])
        steps = [each["opponent"].get("step", 0) for each in told]
        metrics = made.table_ready(against(*((number, chance.choice((-1, 0, 1)), 0.0) for number in steps)), step)
        return told, metrics, json.dumps(made.state_dict())

    whole, states, expected = part("schedule", "opponents", **options), [], []
    for step in range(1, 21):
        states.append(json.dumps(whole.state_dict()))
        expected.append(go(whole, step))
    for start in range(20):
        resumed = part("schedule", "opponents", **options)
        resumed.load_state_dict(json.loads(states[start]))
        assert [go(resumed, step) for step in range(start + 1, 21)] == expected[start:]


def test_turns_of_other_workers_are_nobodys_games(folder):
    made = part("schedule", "opponents", folder=str(folder))
    made.told(13, [])
    nan = float("nan")
    turns = {"episode": [0, 0, 1], "opponent": [8, 8, nan], "past": [0, 1, nan], "reward": [1.0, -1.0, 5.0]}
    assert made.table_ready(make_table(turns), 13)["hier/opponents/share"] == 0.5
    assert made.state_dict()["games"]["8"] == [1.0, 1.0]


def test_a_table_of_another_worker_is_no_problem():
    metrics = part("schedule", "opponents").table_ready(make_table({"episode": [0], "reward": [1.0]}), 1)
    assert [metrics[f"hier/opponents/{name}"] for name in ("pool", "share", "won", "hardest")] == [0.0, 0.0, 0.5, 0.5]
