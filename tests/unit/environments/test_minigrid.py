"""MiniGrid in words: what is seen, what is possible, states, tasks, BabyAI's bot."""

import random

import pytest

from tests.fixtures.tiers import spread
from verl_hier.errors import RecipeError
from verl_hier.host.options import build_options
from verl_hier.testing import check_environment
from verl_hier_plugins.environments.minigrid import SPEC
from verl_hier_plugins.environments.minigrid.environment import ACTIONS, MinigridEnvironment, make, tasks
from verl_hier_plugins.environments.minigrid.options import MinigridOptions

LOCAL = "BabyAI-GoToLocal-v0"


def options(*levels, **block):
    return MinigridOptions(**{"levels": levels or (LOCAL,), "pool": 6, "validation": 2, "max_steps": 64, **block})


def room(*things, carrying=None):
    """An agent in the middle of an empty room of 14 by 14 cells, looking right, and things at (column, row)."""
    environment = MinigridEnvironment(options("MiniGrid-Empty-16x16-v0"))
    environment.reset({"level": "MiniGrid-Empty-16x16-v0", "seed": 0}, 0)
    world = environment.world
    world.agent_pos, world.agent_dir, world.carrying = (7, 7), 0, carrying
    for thing, place in things:
        world.grid.set(*place, thing)
    return environment


def seen(environment):
    return environment.view.text(environment.world, environment.world.gen_obs(), {})


@pytest.mark.parametrize("level", spread(1, [LOCAL, "MiniGrid-DoorKey-5x5-v0"]))
def test_it_conforms(level):
    check_environment(SPEC, options(level), tasks=1)


def test_what_is_seen():
    from minigrid.core.world_object import Ball, Box, Door, Goal, Key

    assert seen(room()) == "you see nothing; wall out of sight"
    things = [(Ball("red"), (9, 6)), (Key("blue"), (7, 9)), (Goal(), (8, 7)), (Box("grey"), (5, 7))]
    assert seen(room(*things)) == (
        "you see a goal 1 forward, a blue key 2 right, a red ball 2 forward 1 left; wall out of sight"
    ), "the box is behind"
    near = room(carrying=Key("green"))
    near.world.agent_pos = (13, 1)
    assert seen(near) == "you see nothing; wall 2 forward, 1 left; you carry a green key"
    for state in ("open", "closed", "locked"):
        door = Door("purple", is_open=state == "open", is_locked=state == "locked")
        assert seen(room((door, (10, 7)))).startswith(f"you see a {state} purple door 3 forward;")


def test_what_is_possible():
    from minigrid.core.world_object import Ball, Door, Wall

    turns = {"turn left", "turn right"}
    assert set(room().admissible) == turns | {"go forward"}
    assert set(room((Ball("red"), (8, 7))).admissible) == turns | {"pick up"}
    assert set(room((Ball("red"), (8, 7)), carrying=Ball("blue")).admissible) == turns
    assert set(room(carrying=Ball("blue")).admissible) == turns | {"go forward", "drop"}
    assert set(room((Door("red"), (8, 7))).admissible) == turns | {"toggle"}
    assert set(room((Wall(), (8, 7))).admissible) == turns
    blocked = room((Wall(), (8, 7)))
    steps = blocked.world.step_count
    answer = blocked.step("go forward")
    assert not answer.valid and blocked.world.step_count == steps


def test_each_action_is_the_one_of_its_name():
    world = make(LOCAL)
    names = [action.name for action in sorted(world.actions)][:6]
    assert names == ["left", "right", "forward", "pickup", "drop", "toggle"]
    assert [said.split()[-1] for said in ACTIONS] == ["left", "right", "forward", "up", "drop", "toggle"]


def test_anchors_tell_states():
    from minigrid.core.world_object import Ball, Box, Key

    environment = room((Ball("red"), (9, 7)))
    first = environment.step("turn left").anchor
    assert environment.step("turn right").anchor != first
    assert environment.step("turn left").anchor == first, "however many steps it took"
    boxes = [room((Box("red", contains=inside), (9, 7))) for inside in (None, Ball("red"), Key("red"))]
    assert len({box.view.anchor(box.world) for box in boxes}) == 3


def test_parts_of_a_mission_are_part_of_the_state():
    environment = MinigridEnvironment(options("BabyAI-GoToSeq-v0", max_steps=500))
    found = set()
    for task in tasks(options("BabyAI-GoToSeq-v0"), "train"):
        step = environment.reset(task, 0)
        expert = environment.expert(random.Random(0))
        while not (step.done or step.truncated) and (action := expert.advise(0)) is not None:
            found.add(environment.view.anchor(environment.world).rpartition("[")[2])
            step = environment.step(action)
    assert len(found) > 1


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_the_bot_wins_and_recovers(noise):
    chosen = options(LOCAL, "BabyAI-PickupLoc-v0", reward="won")
    environment, won = MinigridEnvironment(chosen), []
    for number, task in enumerate(tasks(chosen, "train")):
        step, rng = environment.reset(task, 0), random.Random(number)
        expert = environment.expert(rng)
        assert expert.subgoals == (task["instruction"],)
        while not (step.done or step.truncated) and (action := expert.advise(0)) is not None:
            assert expert.advise(0) == action, "asked twice, it says the same"
            mistake = expert.mistake(0, rng)
            assert mistake is None or mistake not in step.admissible
            step = environment.step(rng.choice(step.admissible) if rng.random() < noise else action)
        won.append(step.info["won"] and step.reward == 1.0)
    assert all(won)


def test_rewards():
    task = tasks(options(), "train")[0]
    for reward in ("world", "won"):
        environment = MinigridEnvironment(options(reward=reward))
        step, expert = environment.reset(task, 0), environment.expert(random.Random(0))
        while not step.done:
            step = environment.step(expert.advise(0))
        share = environment.world.step_count / environment.world.max_steps
        assert step.reward == (1.0 if reward == "won" else pytest.approx(1 - 0.9 * share)) and step.info["score"] == 1.0


def test_tasks_have_missions_and_levels_in_turns(capsys):
    found = tasks(options(LOCAL, "BabyAI-Unlock-v0"), "train")
    assert [task["level"] for task in found] == [LOCAL, "BabyAI-Unlock-v0"] * 3
    assert all(task["instruction"].split()[0] in ("go", "open") for task in found)
    assert capsys.readouterr().out == ""


def test_sentences():
    with pytest.raises(
        RecipeError, match=r"MiniGrid has no world 'BabyAI-GoToLocl-v0' \(did you mean 'BabyAI-GoToLocal-v0'"
    ):
        tasks(options("BabyAI-GoToLocl-v0"), "train")
    environment = MinigridEnvironment(options("MiniGrid-Empty-5x5-v0"))
    environment.reset({"level": "MiniGrid-Empty-5x5-v0", "seed": 0}, 0)
    with pytest.raises(RecipeError, match="only BabyAI's worlds have an expert"):
        environment.expert(random.Random(0))
    with pytest.raises(RecipeError, match="levels must name at least one world"):
        build_options(SPEC, {"levels": []})
