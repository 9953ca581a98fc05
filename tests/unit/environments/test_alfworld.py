"""ALFWorld as an environment: expert, splits, anchors, forks, goals, options, the data set."""

import json
import random
import subprocess
import sys

import pytest

from tests.fixtures.alfworld_walks import play, tasks_of, wander
from verl_hier.errors import RecipeError
from verl_hier.host.options import build_options
from verl_hier.testing.environment import check_environment
from verl_hier_plugins.environments.alfworld import SPEC
from verl_hier_plugins.environments.alfworld.environment import AlfworldEnvironment
from verl_hier_plugins.environments.alfworld.options import GOAL_TYPES, AlfworldOptions
from verl_hier_plugins.environments.alfworld.pddl import game_data
from verl_hier_plugins.environments.alfworld.texts import shorten
from verl_hier_plugins.environments.alfworld.world import GOALS, build_world, split_of


@pytest.mark.slow
def test_conforms():
    check_environment(SPEC, AlfworldOptions(goal_types=("pick", "look", "two"), level="small"), tasks=2)


@pytest.mark.parametrize("kind", GOAL_TYPES)
@pytest.mark.parametrize("remember", [True, False])
def test_the_expert_wins_every_goal_type(kind, remember):
    tasks, options = tasks_of(goal_types=(kind,), pool=12, max_steps=40)
    environment = AlfworldEnvironment(options)
    for task in tasks:
        *_, (_, last) = play(environment, task, remember=remember)
        assert last.done and last.reward == 1.0 and last.info["goals_done"] == 1


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_the_expert_wins_compounds(count, split):
    tasks, options = tasks_of(
        split, goal_types=GOAL_TYPES, goals=count, level="small", pool=8, validation=8, max_steps=80
    )
    environment = AlfworldEnvironment(options)
    for task in tasks:
        *_, (_, last) = play(environment, task)
        assert last.done and last.info["goals_done"] == count == last.info["goals"]


def test_the_expert_recovers_from_random_actions():
    tasks, options = tasks_of(goals=2, pool=12, max_steps=200)
    environment = AlfworldEnvironment(options)
    won = 0
    for number, task in enumerate(tasks):
        *_, (_, last) = play(environment, task, seed=number, random_share=0.1, remember=False)
        won += last.done
    assert won >= 11


def test_splits_are_disjoint_and_repeatable():
    options = AlfworldOptions(goals=(1, 2), pool=150, validation=50)
    made = {split: SPEC.tasks(options, split) for split in ("train", "val", "test")}
    prints = {split: [build_world(t["world"]).fingerprint for t in tasks] for split, tasks in made.items()}
    rooms = {split: {build_world(t["world"]).room for t in tasks} for split, tasks in made.items()}
    assert [len(set(p)) for p in prints.values()] == [150, 50, 50]
    assert not set(prints["train"]) & set(prints["val"])
    assert not rooms["train"] & rooms["test"] and not rooms["val"] & rooms["test"]
    assert made["train"] == SPEC.tasks(options, "train")
    assert made["val"] == SPEC.tasks(options, "valid_seen")
    # Another seed draws other worlds, but never across the border.
    other = SPEC.tasks(AlfworldOptions(goals=(1, 2), pool=150, validation=50, seed=7), "val")
    assert all(split_of(build_world(task["world"])) == "valid_seen" for task in other)
    assert other != made["val"]
    with pytest.raises(RecipeError, match="no split 'dev'"):
        SPEC.tasks(options, "dev")


def test_tasks_are_small_and_cover_types_and_counts():
    tasks, _ = tasks_of(goal_types=GOAL_TYPES, goals=(1, 2), level="small", pool=120)
    assert max(len(json.dumps(task)) for task in tasks) < 400
    counts = [len(task["world"]["kinds"]) for task in tasks]
    assert counts.count(1) == counts.count(2) == 60
    first = [task["world"]["kinds"] for task in tasks if len(task["world"]["kinds"]) == 1]
    assert {kinds[0] for kinds in first} == set(GOAL_TYPES)
    assert all(kinds.index("look") == len(kinds) - 1 for task in tasks if "look" in (kinds := task["world"]["kinds"]))
    assert all(task["data_source"] == "alfworld" and task["instruction"] for task in tasks)


def test_equal_states_have_equal_anchors():
    tasks, options = tasks_of(pool=1)
    one, two = AlfworldEnvironment(options), AlfworldEnvironment(options)
    room = one.reset(tasks[0], 0).info["places"].split(" ")
    place, other = " ".join(room[:2]), " ".join(room[2:4])
    start = two.reset(tasks[0], 0).anchor
    assert one.step("look").anchor == start, "looking changes nothing that matters"
    assert one.step(f"go to {place}").anchor != start
    one.step(f"go to {other}")
    last = one.step(f"go to {place}")
    assert last.anchor == two.step(f"go to {place}").anchor
    assert last.anchor.startswith("holding nothing | ")


def test_anchors_tell_states_apart_and_hold_in_other_processes():
    tasks, options = tasks_of(pool=2, goals=2)
    environment, rng = AlfworldEnvironment(options), random.Random(0)
    seen = {}
    step = environment.reset(tasks[0], 0)
    for _ in range(300):
        facts = environment.node.facts
        state = tuple((name, facts.get(name)) for name in ("atlocation", "holds", "inreceptacle", "opened", "isclean"))
        assert seen.setdefault(step.anchor, state) == state
        step = environment.step(wander(step.admissible, rng))
    assert len(seen) > 20
    code = (
        "import json, sys; from verl_hier_plugins.environments.alfworld.environment import AlfworldEnvironment;"
        "from verl_hier_plugins.environments.alfworld.options import AlfworldOptions;"
        "print(AlfworldEnvironment(AlfworldOptions()).reset(json.loads(sys.argv[1]), 0).anchor)"
    )
    command = [sys.executable, "-c", code, json.dumps(tasks[1])]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert answer.stdout.strip() == AlfworldEnvironment(AlfworldOptions()).reset(tasks[1], 0).anchor


def test_forks_are_independent():
    tasks, options = tasks_of(pool=1, goals=2)
    environment, rng = AlfworldEnvironment(options), random.Random(0)
    step = environment.reset(tasks[0], 0)
    for _ in range(6):
        step = environment.step(wander(step.admissible, rng))
    forks = [environment.fork() for _ in range(3)]
    for fork in forks:
        for _ in range(5):
            fork.step(rng.choice(fork.node.admissible))
    assert environment.node.anchor == step.anchor
    fork = environment.fork()
    for action in ("look", "inventory"):
        assert fork.step(action) == environment.step(action)


def test_games_interleaved_in_one_process_do_not_disturb_each_other():
    tasks, options = tasks_of(pool=3, goals=2, max_steps=100)
    alone = [[step.text for _, step in play(AlfworldEnvironment(options), task)] for task in tasks]
    from verl_hier_plugins.environments.alfworld.environment import _games

    _games.cache_clear()
    walks = [play(AlfworldEnvironment(options), task) for task in tasks]
    together = [[] for _ in tasks]
    running = set(range(len(tasks)))
    while running:
        for number in sorted(running):
            try:
                together[number].append(next(walks[number])[1].text)
            except StopIteration:
                running.discard(number)
    assert together == alone


def test_invalid_actions_cost_and_change_nothing():
    tasks, options = tasks_of(pool=1, invalid_penalty=0.05, max_steps=3)
    environment = AlfworldEnvironment(options)
    first = environment.reset(tasks[0], 0)
    step = environment.step("heat the moon")
    assert (step.valid, step.reward, step.text, step.anchor) == (False, -0.05, "Nothing happens.", first.anchor)
    assert environment.step("  look \n").valid, "white space around a command does not matter"
    assert environment.step("look").truncated


def test_a_win_pays_what_the_options_say_and_states_may_go_by_their_text():
    tasks, options = tasks_of(pool=2, win_reward=10.0, invalid_penalty=0.0, anchor="text", observation="short")
    plain = AlfworldEnvironment(AlfworldOptions(pool=2))
    for task in tasks:
        environment = AlfworldEnvironment(options)
        first, intro = environment.reset(task, 0), plain.reset(task, 0).text
        assert first.anchor == intro != first.text
        refused = environment.step("heat the moon")
        assert (refused.reward, refused.anchor) == (0.0, "Nothing happens.")
        looked = environment.step("look")
        assert looked.anchor.startswith("You are in the middle of a room") and looked.anchor != looked.text
        steps = [step for _, step in play(AlfworldEnvironment(options), task)]
        assert [step.reward for step in steps] == [0.0] * (len(steps) - 1) + [10.0]
        assert steps[-1].done and steps[-1].info["score"] == 1.0


def test_observation_styles():
    tasks, options = tasks_of(pool=1, observation="short", show_admissible=True)
    step = AlfworldEnvironment(options).reset(tasks[0], 0)
    assert step.text.splitlines()[0] == step.info["places"]
    assert step.text.splitlines()[1].startswith("You can: go to ")
    full = AlfworldEnvironment(AlfworldOptions()).reset(tasks[0], 0).text
    assert full.startswith("-= Welcome") and tasks[0]["instruction"] in full
    assert shorten("You arrive at fridge 1. The fridge 1 is closed.") == "fridge 1 closed"
    assert (
        shorten("You open the fridge 1. The fridge 1 is open. In it, you see a egg 1, and a pan 2.")
        == "fridge 1 open : egg 1 pan 2"
    )
    assert shorten("You arrive at shelf 1. On the shelf 1, you see nothing.") == "shelf 1 : nothing"
    assert shorten("You pick up the apple 1 from the shelf 1.") == "pick up apple 1 from shelf 1"
    assert shorten("Nothing happens.") == "nothing happens"


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ({"goal_types": ["fly"]}, "goal_types must name some of"),
        ({"goals": 0}, "goals must be at least 1"),
        ({"goals": 2, "goal_types": ["look"]}, "cannot be solved"),
        ({"receptacles": 3}, "receptacles must be at least 5"),
        ({"objects": 2, "goals": 3}, "objects must be at least 3"),
        ({"levl": "tiny"}, "did you mean 'level'"),
    ],
)
def test_options_are_refused_in_a_sentence(block, sentence):
    with pytest.raises(RecipeError, match=sentence):
        build_options(SPEC, block)


def test_a_recipe_may_mix_goal_counts():
    assert build_options(SPEC, {"goals": [1, 2]}).goal_counts == (1, 2)


def write_dataset(root):
    """Two games in the layout of ALFWorld's download, one of them unsolvable."""
    world = build_world({"seed": 5, "kinds": ["heat"], "receptacles": 6, "objects": 6})
    goal = world.goals[0]
    for number, solvable in enumerate((True, False)):
        folder = root / "json_2.1.1" / "train" / f"{GOALS['heat']}-{goal.item}-None-{goal.target}-{number}" / "trial_1"
        folder.mkdir(parents=True)
        (folder / "game.tw-pddl").write_text(json.dumps(game_data(world) | {"solvable": solvable}))
        params = {"object_target": goal.item, "parent_target": goal.target, "toggle_target": ""}
        (folder / "traj_data.json").write_text(json.dumps({"task_type": GOALS["heat"], "pddl_params": params}))
    return world


def test_the_data_set_plays(tmp_path):
    world = write_dataset(tmp_path)
    options = AlfworldOptions(source="dataset", data=str(tmp_path), pool=0, goal_types=GOAL_TYPES)
    tasks = SPEC.tasks(options, "train")
    assert [task["instruction"] for task in tasks] == [world.instruction]
    *_, (_, last) = play(AlfworldEnvironment(options), tasks[0])
    assert last.done and last.info["goals_done"] == 1
    with pytest.raises(RecipeError, match="alfworld-download"):
        SPEC.tasks(options, "val")
    with pytest.raises(RecipeError, match="no solvable game"):
        SPEC.tasks(AlfworldOptions(source="dataset", data=str(tmp_path), goal_types=("cool",)), "train")


def test_the_spec_is_light_to_import():
    code = (
        "import verl_hier_plugins.environments.alfworld, sys; "
        "print([m for m in ('textworld', 'torch') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert answer.stdout.strip() == "[]"


def test_translation_leaves_the_command_line_alone():
    before = list(sys.argv)
    tasks, options = tasks_of(pool=1, seed=99)
    AlfworldEnvironment(options).reset(tasks[0], 0)
    assert sys.argv == before


@pytest.mark.parametrize(
    "source",
    [
        "__import__('os').system('touch pwned')",
        "o.__class__",
        "o.name.upper()",
        "o.name.name",
        "[o for o in r]",
        "1",
        "(" * 150,
        "o.name" + " + o.name" * 100,
        "o if r else o",
        "f'{o}'",
    ],
)
def test_expressions_of_a_stranger_are_not_evaluated(source, tmp_path, monkeypatch):
    from verl_hier_plugins.environments.alfworld.grammar import expression

    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match="the file is not ALFWorld's"):
        expression(source)
    assert not list(tmp_path.iterdir())


def test_expressions_of_alfworld_are_understood():
    from verl_hier_plugins.environments.alfworld.grammar import Entity, expression

    names = {"o": Entity("apple_1", "apple 1"), "r": Entity("fridge_1", "")}
    assert expression("o.indefinite + ' ' + o.name")(names) == "a apple 1"
    assert expression("r.name or r.id")(names) == "fridge_1" and str(expression("o")(names)) == "apple 1"
