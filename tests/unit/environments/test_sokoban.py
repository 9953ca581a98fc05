"""Sokoban: boards that can be solved, moves by its rules, rewards, what is read, the expert."""

import random
import re

import pytest

from verl_hier.environments.baselines import measure
from verl_hier.errors import RecipeError
from verl_hier.host.options import build_options
from verl_hier.testing import check_environment
from verl_hier_plugins.environments.sokoban import SPEC
from verl_hier_plugins.environments.sokoban.baselines import baselines
from verl_hier_plugins.environments.sokoban.environment import SokobanEnvironment
from verl_hier_plugins.environments.sokoban.levels import SIZES, WAYS, Level, distances, generate, moved
from verl_hier_plugins.environments.sokoban.options import SokobanOptions
from verl_hier_plugins.environments.sokoban.solver import solve

CORRIDOR = """
#######
#@$_.$#
#_____#
#.____#
#######
#######
#######
"""


def level(text):
    """A board from its signs."""
    cells = {(r, c): sign for r, row in enumerate(text.split()) for c, sign in enumerate(row)}

    def where(signs):
        return frozenset(cell for cell, sign in cells.items() if sign in signs)

    return Level(7, where("_.$@*+"), where(".*+"), where("$*"), next(iter(where("@+"))))


def at(text, **options):
    """An environment on a given board."""
    environment = SokobanEnvironment(SokobanOptions(**options))
    environment.reset({"seed": 0}, 0)
    environment.world.level = level(text)
    environment.world.boxes, environment.world.player = environment.world.level.boxes, environment.world.level.player
    return environment


@pytest.mark.parametrize("name", ["tiny", "easy"])
def test_it_conforms(name):
    check_environment(SPEC, SokobanOptions(level=name, pool=6, validation=3), tasks=2)


@pytest.mark.parametrize(("name", "boards"), [("tiny", 30), ("easy", 20), ("medium", 2)])
def test_every_board_can_be_solved_and_is_as_large_and_hard_as_its_level(name, boards):
    size = SIZES[name]
    for seed in range(boards):
        board = generate(name, seed)
        cells = [*board.floor, *board.goals]
        assert len(board.goals) == len(board.boxes) == size.boxes and board.player not in board.boxes
        assert all(0 < row < size.side - 1 and 0 < column < size.side - 1 for row, column in cells)
        solution = solve(board.floor, board.goals, board.boxes, board.player)
        assert solution is not None and len(solution) >= size.least


def test_a_solution_obeys_the_rules():
    """Each move of the solver is played by a second account of the rules."""
    board = generate("easy", 5)
    boxes, player = set(board.boxes), board.player
    for push in solve(board.floor, board.goals, board.boxes, board.player):
        for name in push.walk:
            player = moved(player, WAYS[name])
            assert player in board.floor and player not in boxes
        assert push.box in boxes and moved(push.box, WAYS[push.way], -1) == player
        boxes.remove(push.box)
        target, player = moved(push.box, WAYS[push.way]), push.box
        assert target in board.floor and target not in boxes
        boxes.add(target)
    assert boxes == board.goals


def test_corners_are_dead():
    board = level("#####\n#__##\n#_$_#\n#@__#\n##.##\n#####")
    away = distances(board.floor, board.goals)
    assert away[2, 2] == 2 and (1, 1) not in away and (2, 3) not in away
    assert solve(board.floor, board.goals, frozenset({(1, 1)}), board.player) is None


def test_moves_and_rewards():
    environment = at(CORRIDOR, step_penalty=0.1, box_reward=1.0, finish_reward=10.0, max_steps=100)
    assert environment.admissible == ("down", "right")
    right = environment.step("right")
    assert right.reward == pytest.approx(-0.1) and right.info["score"] == 0
    assert environment.step("right").reward == pytest.approx(0.9), "the first box reaches its goal"
    assert environment.step("right").valid is False, "two boxes in a row are not pushed"
    assert environment.step("up").valid is False and environment.step("UP").reward == pytest.approx(-0.02)
    assert environment.world.rows()[1] == "#__@*$#"
    environment = at(CORRIDOR)
    for way in "down right right right".split():
        environment.step(way)
    assert environment.step("up").reward == pytest.approx(-0.1), "onto the goal, with no box"
    assert environment.world.rows()[1] == "#_$_+$#"


def test_a_box_that_leaves_its_goal_takes_its_reward_with_it():
    environment = at("#######\n#_@*__#\n#.$___#\n#######")
    assert environment.step("right").reward == pytest.approx(-1.1)


def test_the_last_box_ends_it():
    environment = at("#####\n#@$.#\n#####")
    step = environment.step("right")
    assert step.done and step.reward == pytest.approx(1 + 10 - 0.1) and step.info["won"] and step.info["score"] == 1
    after = environment.step("left")
    assert not after.valid and after.reward < 0 and environment.world.rows()[1].startswith("#_@*#")


def test_what_is_read():
    lines, words = at(CORRIDOR), at(CORRIDOR, board="changes", layout="words")
    board = lines.view.text(lines.world, lines.world.rows(), {})
    assert board == CORRIDOR.strip()
    first = words.view.text(words.world, words.world.rows(), {})
    assert first.split(" | ")[1] == "wall me box floor goal box wall"
    assert words.step("right").text == "row 1 wall floor me box goal box wall"
    assert (
        words.step("down").text
        == "row 1 wall floor floor box goal box wall | row 2 wall floor me floor floor floor wall"
    )
    legend = lines.reset({"seed": 1}, 0).info["legend"]
    assert legend.startswith("# = wall, _ = floor, . = goal, $ = box, * = box on a goal, @ = you")
    assert set(re.findall(r"(\w+) = ", words.reset({"seed": 1}, 0).info["legend"])) <= set(words.vocabulary())


def test_equal_boards_are_one_state():
    one, two = at(CORRIDOR, max_steps=100), at(CORRIDOR, max_steps=100)
    for way in ("down", "right"):
        first = one.step(way)
    for way in ("down", "right", "right", "left"):
        second = two.step(way)
    assert first.anchor == second.anchor


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_the_expert_wins_and_recovers(noise):
    options = SokobanOptions(level="tiny", pool=15, validation=1, max_steps=80)
    environment, lost = SokobanEnvironment(options), 0
    for number, task in enumerate(SPEC.tasks(options, "train")):
        step, rng = environment.reset(task, 0), random.Random(number)
        expert = environment.expert(rng)
        assert expert.subgoals and all(re.fullmatch(r"box \d \d to \d \d", text) for text in expert.subgoals)
        for subgoal in range(len(expert.subgoals)):
            while not step.done and (action := expert.advise(subgoal)) is not None:
                mistake = expert.mistake(subgoal, rng)
                step = environment.step(mistake if mistake and rng.random() < noise else action)
        lost += not step.info["won"]
    assert lost == 0, "a blocked move is never fatal"


def test_the_expert_gives_up_on_what_is_lost():
    environment = at("#####\n#$__#\n#@._#\n#####")
    assert environment.expert(random.Random(0)).subgoals == ()


def test_constant_policies_win_little():
    variants = baselines().variants
    assert set(variants) == set(SIZES)
    options = SokobanOptions(level="easy", pool=20, validation=1)
    found = measure(SokobanEnvironment(options), SPEC.tasks(options, "train"), baselines())
    assert max(found.won.values()) <= 0.1


def test_splits_share_no_board():
    options = SokobanOptions(level="tiny", pool=40, validation=15)
    boards = {split: {generate("tiny", task["seed"]) for task in SPEC.tasks(options, split)} for split in SPEC.splits}
    assert [len(found) for found in boards.values()] == [40, 15, 15]
    assert not boards["train"] & boards["val"] and not boards["val"] & boards["test"]


@pytest.mark.parametrize(
    ("block", "sentence"),
    [({"level": "huge"}, "is not one of"), ({"step_penalty": -1.0}, "at least 0"), ({"pool": 0}, "at least 1")],
)
def test_options_are_refused_in_a_sentence(block, sentence):
    with pytest.raises(RecipeError, match=sentence):
        build_options(SPEC, block)
