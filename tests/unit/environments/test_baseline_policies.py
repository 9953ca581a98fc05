"""What each policy of one line says in its turns, and when it stops."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from verl_hier.environments.base import Environment, StepResult
from verl_hier.environments.baselines import MARGIN, Baselines, Measured, covering, measure
from verl_hier.errors import RecipeError

TASK = {"instruction": "it is -12 or 7"}


class Written(Environment):
    """Writes down what is said in each episode, and is over when the test wants it."""

    def __init__(self, anchors=None, admissible=(), over="", wins=(), expert=None):
        self.anchors, self.admissible, self.over, self.wins = anchors, admissible, over, wins
        self.episodes: list[list[str]] = []
        if expert is not None:
            self.expert = expert

    def reset(self, task, seed):
        assert seed == 0, "what is measured can be measured again"
        self.episodes.append([])
        return self._seen("")

    def step(self, action):
        self.episodes[-1].append(action)
        return self._seen(action)

    def _seen(self, action):
        said = self.episodes[-1]
        anchor = None if self.anchors is None else self.anchors(len(said))
        ends = {self.over: len(said) == 2} if self.over else {}
        won = {"won": True} if action in self.wins else {}
        return StepResult(f"read {len(said)}", admissible=self.admissible, anchor=anchor, info=won, **ends)


def played(world, baselines, tasks=(TASK,)):
    found = measure(world, tasks, baselines)
    return found, [said for said in world.episodes if said]


ONE_ANSWER = Baselines({}, ("say {}",), lambda task: ["yes"])


@pytest.mark.parametrize("over", ["done", "truncated", ""])
def test_policies_go_on_until_the_world_or_their_turns_are_over(over):
    _, (empty, echo, number, constant, listed, lot) = played(Written(over=over), ONE_ANSWER)
    turns = 2 if over else 60
    assert empty == [""] * turns and number == ["say -12"] * turns
    assert echo == ["say it is -12 or 7", *(f"say read {turn}" for turn in range(1, turns))]
    assert constant == ["yes"], "an answer wins in its first turn"
    assert listed == lot == ["yes"] * turns


def test_what_changed_nothing_is_said_once_more_and_no_longer():
    """Where states have names: the empty action has been said before the first turn, so to speak."""
    _, (empty, echo, number, *_) = played(Written(anchors=lambda turn: "here"), ONE_ANSWER)
    assert (len(empty), len(echo), len(number)) == (1, 60, 2)
    _, (empty, _, number, *_) = played(Written(anchors=lambda turn: str(min(turn, 3))), ONE_ANSWER)
    assert (len(empty), len(number)) == (4, 4)


def test_constants_are_the_possible_actions_that_most_tasks_begin_with():
    names = tuple(f"{number:02d}" for number in range(15))
    found, episodes = played(Written(admissible=names, over="done"), Baselines({}))
    constants, lot = episodes[3:-1], episodes[-1]
    rng = random.Random(0)
    assert [each[0] for each in constants] == list(names[:12]) and lot == [rng.choice(names), rng.choice(names)]
    assert found.chance == found.won["random"] == 0
    assert all(said == [said[0]] * 2 for said in constants)


def test_right_answers_are_counted_once_a_task_and_the_most_frequent_are_tried():
    tasks = [{"instruction": "", "answers": each} for each in (["a", "a", "b"], ["b"], ["c", "d"], ["d", "b"], ["e"])]
    world = Written(wins=("b", "d"), over="done")
    found, _ = played(world, Baselines({}, ("{}",), lambda task: task["answers"]), tasks)
    firsts = [said[0] for said in world.episodes[3:6]]
    assert firsts == ["b", "d", "a"] and found.best["constant"] == "b" and found.best["constant list"] == "b; c; e"
    assert found.chance == max(found.won["random"], 1 / 5)


@pytest.mark.parametrize(("won", "chance", "excess"), [({}, 0.25, -0.25), ({"a": 0.5, "b": 0.75}, 0.25, 0.5)])
def test_the_best_policy_is_compared_with_chance(won, chance, excess):
    assert Measured(4, chance, won).excess == excess


def test_the_page_says_what_is_much_more_than_chance():
    page = (Path(__file__).parents[3] / "docs/baselines.md").read_text("utf-8")
    assert f"won by more than {100 * MARGIN:g} points above" in page


def test_a_list_has_no_more_answers_than_are_listed():
    answers = [{str(number)} for number in range(100)]
    assert len(covering(answers)) == 10 and covering(answers[:3]) == ["0", "1", "2"] and covering([]) == [""]


@pytest.mark.parametrize(("subgoals", "advice", "wins", "lists"), [
    (1, ["a", "b", None], ("b",), ["a; b"]),
    (2, ["a", None, "b", None], ("b",), ["a; b"]),
    (1, ["a", "b", None], (), []),
    (1, ["a"] * 1000, ("a",), ["; ".join(["a"] * 60)]),
])  # fmt: skip
def test_solutions_of_experts_that_win_are_tried_as_lists(subgoals, advice, wins, lists):
    def expert(rng, skip_stage=0.0, remember=True):
        assert rng.getstate() == random.Random(0).getstate()
        said = iter(advice)
        return SimpleNamespace(subgoals=["go"] * subgoals, advise=lambda subgoal: next(said), mistake=None)

    world = Written(wins=wins, expert=expert)
    found, _ = played(world, Baselines({}), [TASK] * 2)
    assert found.best.get("constant list") == (lists[0] if lists else None)


def test_a_world_without_an_expert_for_its_game_has_no_lists():
    def expert(rng, skip_stage=0.0, remember=True):
        raise RecipeError("none.")

    found, _ = played(Written(expert=expert), Baselines({}))
    assert "constant list" not in found.won and found.won["empty"] == 0
