"""What passes between worlds, processes and scorers, exactly at the bounds of each rule."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_hier.environments import wire
from verl_hier.environments.action_parsing import parse_verb
from verl_hier.environments.base import StepResult
from verl_hier.environments.frames import Frames
from verl_hier.environments.gym_text import OVER, GymOptions, GymText, TextView, seeded_tasks
from verl_hier.environments.question_rows import answers_of, boxed, question_of
from verl_hier.environments.reward_values import LARGEST_REWARD, reward_of, truth_of
from verl_hier.environments.scoring import exact_match, f1, number, number_or_words, unfit
from verl_hier.environments.splits import MISSES, SPLITS, Balance, draw_tasks, hash_number, pool, split_of
from verl_hier.environments.tools import action_of, turn_of
from verl_hier.environments.wire import cut, from_step, pack, to_step, unpack
from verl_hier.errors import RecipeError

quick = settings(max_examples=60, deadline=None)


# Numbers of strangers


def test_rewards_and_truths_are_taken_up_to_their_bounds():
    for good in (LARGEST_REWARD, -LARGEST_REWARD, 0, True, np.float32(0.5), np.array(2.0)):
        assert reward_of("x", good) == float(good)
    for bad in (np.nextafter(1e6, 2e6), np.nextafter(-1e6, -2e6), math.nan, math.inf, -math.inf, 10**400):
        with pytest.raises(ValueError, match=r"x is .* which is no finite number"):
            reward_of("x", bad)
    for bad in ("1", b"1", None, [1, 2], np.zeros(2)):
        with pytest.raises(TypeError, match="x has to be a number"):
            reward_of("x", bad)
    assert [truth_of("x", each) for each in (None, 0, 1, True, False, np.bool_(True), 1.0)] == [
        *[False, False, True, True, False, True, True]
    ]
    for bad in ("false", "1", b"1", 2, -1, 0.5, [1], np.ones(1)):
        with pytest.raises(TypeError, match="x has to be true or false"):
            truth_of("x", bad)


# Messages of processes


@pytest.mark.parametrize("most", [0, 1, 3, 4, 5, 9, 10])
def test_a_text_is_cut_to_its_length(most):
    text = "0123456789"
    found = cut(text, most)
    assert len(found) <= most and (found == text) == (most >= 10)
    assert most >= 10 or found == (text[: max(most - len(wire.CUT), 0)] + wire.CUT)[:most]


def test_what_a_world_may_say_is_bounded_by_these_sizes():
    sizes = (wire.LONGEST_TEXT, wire.LONGEST_ANCHOR, wire.LONGEST_ERROR, wire.LARGEST_INFO, wire.LARGEST_MESSAGE)
    assert sizes == (200_000, 10_000, 2_000, 4 * 1024**2, 256 * 1024**2)


def test_steps_are_said_without_their_defaults():
    assert from_step(StepResult("x")) == {"text": "x"}
    step = StepResult(
        "x", np.float64(0.5), True, True, False, ("a", "b"), "s", {"won": True, "n": np.int64(3)}, {"b": 2}
    )
    said = from_step(step)
    assert said == {
        **{"text": "x", "reward": 0.5, "done": True, "truncated": True, "valid": False, "admissible": ["a", "b"]},
        **{"anchor": "s", "info": {"won": True, "n": 3}, "rewards": {"b": 2}},
    }
    again = to_step(said)
    assert again.admissible == ("a", "b") and again.info == {"won": True, "n": 3} and again.rewards == {"b": 2}
    for anchor, kept in (("a" * wire.LONGEST_ANCHOR, True), ("a" * (wire.LONGEST_ANCHOR + 1), False)):
        found = from_step(StepResult("x", anchor=anchor))["anchor"]
        assert (found == anchor) == kept and (kept or len(found) == 64)
    long = from_step(StepResult("x" * (wire.LONGEST_TEXT + 1)))["text"]
    assert len(long) == wire.LONGEST_TEXT and len(from_step(StepResult("x" * wire.LONGEST_TEXT))["text"]) == len(long)
    room = len(json.dumps({"k": ""}))
    from_step(StepResult("x", info={"k": "a" * (wire.LARGEST_INFO - room)}))
    with pytest.raises(ValueError, match="more than"):
        from_step(StepResult("x", info={"k": "a" * (wire.LARGEST_INFO - room + 1)}))
    half = "b" * (wire.LONGEST_TEXT // 2)
    assert from_step(StepResult("x", admissible=(half, half, "c")))["admissible"] == [half, half]
    assert from_step(StepResult("x", admissible=("c", half, half)))["admissible"] == ["c", half]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ([], "a step is a mapping, not list"),
        ({}, "a step has a `text`"),
        ({"text": 1}, "`text` of a step has to be a text"),
        ({"text": "x", "done": 1}, "`done` of a step has to be a bool"),
        ({"text": "x", "more": 1}, "`more` of a step has to be left out"),
        ({"text": "x", "admissible": [1]}, "`admissible` of a step has to be texts"),
        ({"text": "x", "info": {"won": "no"}}, "`won` in the `info`"),
        ({"text": "x", "info": {"won": 2}}, "`won` in the `info`"),
        ({"text": "x", "rewards": {"a": "1"}}, "reward of 'a' in a step has to be a number"),
        ({"text": "x", "anchor": 3}, "`anchor` of a step"),
    ],
)
def test_what_is_no_step_is_refused(said, words):
    with pytest.raises(TypeError, match=words):
        to_step(said)
    with pytest.raises(ValueError, match="`reward` of a step"):
        to_step({"text": "x", "reward": math.nan})
    for won in (None, True, False, 0, 1, 1.0):
        assert to_step({"text": "x", "info": {"won": won}}).info["won"] == won


@quick
@given(st.lists(st.text(max_size=5), max_size=5), st.lists(st.integers(1, 40), max_size=6))
def test_frames_are_taken_however_they_arrive(messages, cuts):
    async def plays():
        taken, closed = [], []
        transport = SimpleNamespace(set_protocol=lambda protocol: None, close=lambda: closed.append(1))
        frames = Frames(transport, lambda body: taken.append(unpack(body)))
        data = b"".join(map(pack, messages))
        for size in cuts:
            frames.data_received(data[:size])
            data = data[size:]
        frames.data_received(data)
        assert not frames.lost.done() and not closed
        return taken

    assert asyncio.run(plays()) == messages


def test_frames_end_where_the_other_end_breaks_the_rules():
    async def plays():
        closed, written = [], []
        transport = SimpleNamespace(
            set_protocol=lambda protocol: None,
            close=lambda: closed.append(1),
            is_closing=lambda: bool(closed),
            write=written.append,
        )
        frames = Frames(transport, lambda body: None)
        frames.send({"a": 1})
        frames.send([2])
        await asyncio.sleep(0)
        assert written == [pack({"a": 1}) + pack([2])]
        frames.data_received(wire.HEADER.pack(wire.LARGEST_MESSAGE))
        assert not frames.lost.done()
        other = Frames(transport, lambda body: None)
        other.data_received(wire.HEADER.pack(wire.LARGEST_MESSAGE + 1))
        assert await other.lost == f"it answered with {wire.LARGEST_MESSAGE + 1} bytes" and closed == [1]
        frames.connection_lost(None)
        frames.connection_lost(None)
        frames.send("late")
        await asyncio.sleep(0)
        return await frames.lost, len(written)

    assert asyncio.run(plays()) == ("", 1)


# Thoughts, actions and turns


def test_the_last_pair_of_tags_is_the_action():
    verbs = ("search", "answer")
    assert parse_verb("<search>a</search> <answer> b </answer>", verbs) == ("answer", "b")
    assert parse_verb("<answer>b</answer> then <search>a</search>", verbs) == ("search", "a")
    assert parse_verb("<search>x<search>a</search>", verbs) == ("search", "a")
    assert parse_verb("Search: what", verbs) == ("search", "what") and parse_verb("  answer  b", verbs) == (
        "answer",
        "b",
    )
    assert parse_verb("searching", verbs) is None and parse_verb("a</search>", verbs) is None
    assert parse_verb("<search>```py\nx\n```</search>", verbs) == ("search", "x")
    assert parse_verb("<search>```x```</search>", verbs) == ("search", "```x```")
    assert parse_verb("<think><search>a</search></think>answer b", verbs) == ("answer", "b")
    assert parse_verb("</search>", verbs) is None


def test_turns_are_tokens_only_where_they_are_whole():
    assert turn_of(action_of([1, 0, 2**31 - 1])) == [1, 0, 2**31 - 1] and turn_of(action_of([])) == []
    for text in (
        "go",
        '{"tokens": [1',
        '{"tokens": [-1]}',
        '{"tokens": [2147483648]}',
        '{"tokens": [true]}',
        '{"tokens": [1.0]}',
    ):
        assert turn_of(text) == text


# Splits of generated tasks


def test_a_fifth_of_the_tasks_is_for_each_held_out_split():
    assert hash_number("a", 4) < 2**32 <= hash_number("a") and hash_number("a") == hash_number("a")
    counts = Counter(split_of(str(n)) for n in range(3000))
    assert {name: round(counts[name] / 3000, 1) for name in SPLITS} == {"train": 0.6, "val": 0.2, "test": 0.2}
    options = SimpleNamespace(pool=3, validation=0)
    assert pool(options, "train") == 3 and pool(options, "val") == math.inf


def test_tasks_are_drawn_until_there_are_enough():
    drawn = []

    def make(draw, there):
        drawn.append((draw, there))
        return None if draw == 0 else (str(draw // 2), {"n": draw})

    found = draw_tasks(make, "val", 3, "world")
    fingerprints = [str(task["n"] // 2) for task in found]
    assert len({*fingerprints}) == 3 and {split_of(each) for each in fingerprints} == {"val"}
    assert [task["id"] for task in found] == ["val-00000", "val-00001", "val-00002"] and drawn[0] == (0, 0)
    assert [number for number, _ in drawn] == list(range(len(drawn))) and draw_tasks(make, "val", 0, "world") == []
    fingerprint = next(str(n) for n in range(99) if split_of(str(n)) == "train")
    calls = []
    with pytest.raises(RecipeError, match=r"hier\.environment\.pool: world found only 1 different tasks"):
        draw_tasks(lambda draw, there: calls.append(draw) or (fingerprint, {}), "train", 2, "world")
    assert len(calls) == MISSES + 1
    late = draw_tasks(lambda draw, there: (fingerprint, {}) if draw >= MISSES - 1 else None, "train", 1, "world")
    assert len(late) == 1
    with pytest.raises(RecipeError, match="validation: world found only 0"):
        draw_tasks(lambda draw, there: None, "test", 1, "world")
    with pytest.raises(RecipeError, match="has no split 'dev'"):
        draw_tasks(make, "dev", 1, "world")


@quick
@given(st.lists(st.sampled_from("abc"), max_size=30), st.sampled_from([0.0, 0.1, 0.5]))
def test_no_answer_is_right_too_often(answers, more):
    balance, counts, there = Balance(more), Counter(), 0
    for answer in answers:
        different = len({*counts, answer})
        fits = counts[answer] <= (1 / different + more) * (there + 1)
        assert balance.admits((answer,), there) == fits
        if fits:
            counts[answer] += 1
            there += 1


def test_a_task_that_was_not_added_counts_nothing():
    balance = Balance(0.0)
    assert balance.admits(("a",), 0) and balance.admits(("a",), 0) and balance.admits(("b",), 1)
    assert balance._counts == Counter("a")


def test_an_answer_that_is_new_counts_among_the_different_ones():
    """Of two answers each may be that of half of three tasks, and one has been that of two."""
    balance = Balance(0.0)
    assert balance.admits(("a",), 0) and balance.admits(("a",), 1)
    assert not balance.admits(("a", "b"), 2) and balance.admits(("b",), 2)


# Answers of data sets


def test_questions_and_answers_are_found_in_their_columns():
    assert (
        question_of({"question": " a ", "problem": "b"}) == "a"
        and question_of({"question": " ", "problem": "b"}) == "b"
    )
    assert (
        question_of({"extra_info": {"question": "c"}}) == "c"
        and question_of({"extra_info": "x"}) == question_of({}) == ""
    )
    said = [
        {"role": "user", "content": "one"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "x"},
    ]
    assert question_of({"prompt": said}) == "two" and question_of({"prompt": "text"}) == ""
    assert answers_of({"answer": ["a", "a", " b ", ""]}) == ["a", "b"] and answers_of({}) == []
    assert answers_of({"answer": {"value": "v", "aliases": ["w", "v"], "target": 3}}) == ["3", "v", "w"]
    assert (
        answers_of({"answer": 0.5}) == ["0.5"]
        and answers_of({"answer": True}) == []
        and answers_of({"answer": 0}) == ["0"]
    )
    assert answers_of({"golden_answers": [], "answer": "b"}) == ["b"]
    assert answers_of({"solution": "so \\boxed{x{1}y} \\boxed{z}"}) == ["z"] and answers_of({"solution": 3}) == []
    assert answers_of({"reward_model": {"ground_truth": "g"}}) == ["g"] and answers_of({"reward_model": "g"}) == []
    assert boxed("\\boxed{x{1}{2}y} b}") == "x{1}{2}y" and boxed("\\boxed{x{1}") == boxed("none") == ""
    assert boxed("\\boxed{}") == "" and boxed("a \\boxed{ 2 }") == "2"


def test_scores_see_what_they_say():
    assert exact_match("The Cat!", ["a cat"]) and not exact_match("the", ["a"]) and not exact_match("x", ["y"])
    assert number("so 3, no: -5", ["-5.0"]) and not number("5", ["-5"]) and not number("none", ["none"])
    assert number_or_words("1/2", ["0.5"]) and number_or_words("Paris.", ["paris"]) and number_or_words("A.", ["A"])
    assert number_or_words("+", ["+"]) and not number_or_words("+.", ["+"]) and not number_or_words("", [""])
    assert f1("a b c", ["b c d"]) == pytest.approx(2 * 2 / 5) and f1("x", []) == 0.0 and f1("x", ["y", "x"]) == 1.0
    assert f1("yes sir", ["yes"]) == f1("no", ["no way"]) == 0.0 and f1("yes", ["yes"]) == 1.0 and f1("", [""]) == 0.0
    assert f1("b b", ["b c"]) == 0.5
    for scorer in ("exact_match", "f1"):
        assert (
            "is a number" in unfit(scorer, "-5")
            and "leaves nothing" in unfit(scorer, "A")
            and unfit(scorer, "cat") == ""
        )
    assert "has no number" in unfit("number", "cat") and unfit("number", "5") == unfit("number_or_words", "A") == ""
    assert unfit("number", " ") == "is empty"


# Secrets


# Worlds of gymnasium's form


class Doors:
    """Door 2 is the goal; going left from 0 ends without a reward."""

    closed = 0

    def __init__(self, start=0):
        self.at = start

    def reset(self, seed):
        self.seed = seed
        return self.at, {}

    def step(self, move):
        self.at += move
        return self.at, float(self.at == 2), self.at in (2, -1), False, {}

    def close(self):
        Doors.closed += 1


class InWords(TextView):
    def actions(self, world):
        return {"left": -1, "Right": 1, "right on": 1, "RIGHT ON": 1}

    def anchor(self, world):
        return str(world.at)


def test_a_world_is_told_in_words_up_to_its_limit():
    options = GymOptions(max_steps=3)
    world = GymText(lambda task: Doors(), InWords(), options)
    first = world.reset({"seed": 5}, 9)
    assert first.text == "0" and first.reward == 0 and not first.done and not first.truncated and first.valid
    assert first.info == {"won": False, "score": 0.0} and first.admissible == ("left", "Right", "right on", "RIGHT ON")
    assert world.world.seed == 5 and first.anchor == world.reset({"seed": 5}, 9).anchor
    moved = world.step("<think>left</think>  right ")
    assert moved.text == "1" and moved.valid and world.path == ("right",) and moved.anchor != first.anchor
    refused = world.step("Right On")
    assert not refused.valid and refused.reward == -0.02 and not refused.truncated and world.path == ("right",)
    twin = world.fork()
    won = world.step("right")
    assert won.done and not won.truncated and won.reward == 1.0 and won.info == {"won": True, "score": 1.0}
    assert won.admissible == () and world.step("left").text == OVER and twin.world.at == 1
    cut_off = twin.step("left")
    assert (
        cut_off.truncated
        and not cut_off.done
        and GymText(lambda task: Doors(), InWords(), options, False).fork() is None
    )
    lost = GymText(lambda task: Doors(), InWords(), options)
    lost.reset({"seed": 5}, 0)
    over = lost.step("left")
    assert over.done and not over.info["won"] and over.reward == 0
    before = Doors.closed
    lost.close()
    lost.close()
    assert Doors.closed == before + 1
    shown = GymText(lambda task: Doors(), InWords(), GymOptions(show_admissible=True))
    assert "left" in shown.reset({"seed": 1}, 0).text


@pytest.mark.parametrize("parts", [1, 3, 4])
def test_an_older_interface_is_named(parts):
    class Old(Doors):
        def reset(self, seed):
            return (0,) * parts

    with pytest.raises(RecipeError, match="`reset` of this world does not return the 2 values"):
        GymText(lambda task: Old(), InWords(), GymOptions()).reset({"seed": 1}, 0)


def test_seeded_tasks_begin_in_different_states():
    world = GymText(lambda task: Doors(task["seed"] % 50), InWords(), GymOptions(seed=3))
    tasks = seeded_tasks(world, GymOptions(pool=4, seed=3), "train", "doors", [{"level": 1}, {"level": 2}])
    assert [task["level"] for task in tasks] == [1, 2, 1, 2] and len({task["seed"] % 50 for task in tasks}) == 4
    assert tasks[0]["data_source"] == "doors" and tasks[0]["instruction"] == "reach the goal"
