"""ScienceWorld as an environment: the world's own answers, many games on one machine, folds, the expert."""

import random
import shutil

import pytest

from verl_hier.errors import RecipeError
from verl_hier.host.options import build_options
from verl_hier.testing import check_environment
from verl_hier_plugins.environments.scienceworld import SPEC
from verl_hier_plugins.environments.scienceworld.environment import Machine, ScienceworldEnvironment, machine, short
from verl_hier_plugins.environments.scienceworld.options import VARIATIONS, ScienceworldOptions
from verl_hier_plugins.environments.scienceworld.tasks import fold, tasks

MEMORY = ScienceworldOptions().java_memory_mb
needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="needs Java")


def options(*experiments, **block):
    return ScienceworldOptions(
        **{"experiments": experiments or ("find-living-thing",), "pool": 3, "validation": 1, **block}
    )


def played(environment, task):
    """The expert's episode: every step."""
    steps = [environment.reset(task, 0)]
    expert = environment.expert(random.Random(0))
    for subgoal in range(len(expert.subgoals)):
        while not steps[-1].done and (action := expert.advise(subgoal)) is not None:
            steps.append(environment.step(action))
    return steps


@needs_java
@pytest.mark.slow
def test_it_conforms():
    check_environment(SPEC, options(), tasks=1, steps=4)


@needs_java
@pytest.mark.slow
def test_the_answers_are_those_of_the_world():
    """Beside one that talks to the world alone, as its package does: texts, score and end."""
    chosen = options("power-component", describe=False)
    environment = ScienceworldEnvironment(chosen)
    (task, *_) = tasks(chosen, "train")
    steps = played(environment, task)
    stock = machine(MEMORY).game()
    stock.load("power-component", task["seed"], "teleportAction,openDoors,openContainers,selfWateringFlowerPots", False)
    assert steps[0].text == stock.step("look around").strip()
    for action, step in zip(environment.path, steps[1:], strict=True):
        assert step.text == stock.step(action).strip() and step.info["score"] == pytest.approx(stock.getScore())
    assert (
        steps[-1].done
        and steps[-1].info["won"]
        and sum(step.reward for step in steps) == pytest.approx(1 - steps[0].info["score"])
    )


@needs_java
def test_what_is_not_understood_costs_a_penalty_and_a_wrong_focus_the_experiment():
    environment = ScienceworldEnvironment(options(invalid_penalty=0.5))
    first = environment.reset(tasks(options(), "train")[0], 0)
    assert first.text.startswith(first.info["task"]) and "Your task is to find" in first.info["task"]
    refused = environment.step("win the game")
    assert (refused.valid, refused.reward, refused.anchor) == (False, -0.5, first.anchor)
    assert environment.step("look around").anchor == first.anchor
    lost = environment.step("focus on agent")
    assert (lost.done, lost.info["won"], lost.info["score"], lost.reward) == (True, False, 0.0, -first.info["score"])
    assert not environment.step("look around").valid
    environment.close()


@needs_java
def test_a_machine_has_room_for_the_episodes_of_a_step():
    """Eight tasks of sixteen episodes in one process; with 600 MB, 64 episodes were too many."""
    few, own = 8, Machine(MEMORY)
    java = own.jvm.java.lang
    runtime = java.Runtime.getRuntime()

    def used_mb() -> float:
        java.System.gc()
        return (runtime.totalMemory() - runtime.freeMemory()) / 2**20

    before = used_mb()
    games = [own.game() for _ in range(few)]
    for number, game in enumerate(games):
        game.load("find-plant", number, "easy", False)
    assert 128 * (used_mb() - before) / few < MEMORY


@needs_java
def test_only_a_success_is_rewarded_where_the_options_say_so():
    chosen = options("find-plant", reward="success", win_reward=10.0)
    steps = played(ScienceworldEnvironment(chosen), tasks(chosen, "train")[0])
    assert [step.reward for step in steps[1:]] == [0.0] * (len(steps) - 2) + [10.0]


@needs_java
@pytest.mark.slow
def test_possible_actions_are_listed_if_they_are_asked_for():
    chosen = options(list_actions=True)
    environment = ScienceworldEnvironment(chosen)
    step = environment.reset(tasks(chosen, "train")[0], 0)
    assert len(step.admissible) > 50 and "look around" in step.admissible
    environment.close()


@needs_java
@pytest.mark.slow
def test_the_folds_are_those_of_the_world():
    game = machine(MEMORY).game()
    assert {name: game.getTaskMaxVariations(name) for name in game.getTaskNames()} == VARIATIONS
    for name in ("boil", "identify-life-stages-1", "grow-plant", "lifespan-longest-lived", "find-plant"):
        game.load(name, 0, "", False)
        found = (list(game.getVariationsTrain()), list(game.getVariationsDev()), list(game.getVariationsTest()))
        assert found == tuple(list(fold(name, split)) for split in SPEC.splits), name
    machine(MEMORY).give_back("game", game)


def test_experiments_have_equal_shares_while_their_variations_last():
    chosen = options("boil", "find-plant", pool=20, validation=7)
    found = [task["experiment"] for task in tasks(chosen, "train")]
    assert found == ["boil", "find-plant"] * 10
    more = [task["experiment"] for task in tasks(options("boil", "find-plant", pool=164), "train")]
    assert more.count("boil") == 14 and len({*zip(more, range(164), strict=True)}) == 164
    with pytest.raises(RecipeError, match=r"environment.pool: the experiments have 14 variations .* 15 are asked for"):
        tasks(options("boil", pool=15), "train")
    with pytest.raises(RecipeError, match="no split 'dev'"):
        tasks(options(), "dev")


def test_short_texts():
    text = "This room is called the kitchen. In it, you see: \n\tthe agent\n\ta substance called air\n\ta glass jar "
    text += "(containing a substance called sodium chloride)\n\ta table. On the table is: nothing.\nYou also see:\n"
    text += "\tA door to the hallway (that is open)"
    assert short(text) == "kitchen ; glass jar sodium chloride ; table ; door to hallway open"
    assert short("Your task is to find a(n) animal.") == "your task to find animal"


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ({"experiments": []}, "experiments must name at least one"),
        ({"experiments": ["fly"]}, "there is no 'fly'; there are boil, "),
        ({"experiments": ["power-component"], "simplifications": ["noElectricalAction"]}, "needs electricity"),
        ({"show_admissible": True}, "show_admissible needs list_actions"),
    ],
)
def test_options_are_refused_in_a_sentence(block, sentence):
    with pytest.raises(RecipeError, match=sentence):
        build_options(SPEC, block)
