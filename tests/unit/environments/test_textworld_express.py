"""TextWorldExpress as an environment: the game's own answers, many games on one machine, tasks, the expert, Java."""

import json
import random
import shutil
from typing import get_args

import pytest

from verl_hier.environments.baselines import measure
from verl_hier.errors import RecipeError
from verl_hier.host.options import build_options
from verl_hier.testing import check_environment
from verl_hier_plugins.environments.textworld_express import SPEC
from verl_hier_plugins.environments.textworld_express.baselines import baselines
from verl_hier_plugins.environments.textworld_express.environment import TextworldExpressEnvironment, short
from verl_hier_plugins.environments.textworld_express.expert import undoing
from verl_hier_plugins.environments.textworld_express.machine import Machine, machine
from verl_hier_plugins.environments.textworld_express.options import Game, TextworldExpressOptions
from verl_hier_plugins.environments.textworld_express.tasks import INSTRUCTIONS, tasks

GAMES = get_args(Game)
SIX_ROOMS = {"numLocations": 6, "maxDistanceApart": 3, "maxDistractorItemsPerLocation": 0, "includeDoors": 0}
needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="needs Java")


def options(*games, **block):
    return TextworldExpressOptions(**{"games": games or ("coin",), "pool": 6, "validation": 2, **block})


def played(environment, task, noise=0.0, seed=0):
    """The expert's episode, with a share of other commands."""
    step, rng = environment.reset(task, 0), random.Random(seed)
    expert = environment.expert(rng)
    for subgoal in range(len(expert.subgoals)):
        while not step.done and (action := expert.advise(subgoal)) is not None:
            assert action in step.admissible
            mistake = expert.mistake(subgoal, rng)
            wander = [said for said in step.admissible if said.startswith(("move", "open", "close", "look"))]
            if rng.random() < noise:
                action = mistake or rng.choice(wander or [action])
            step = environment.step(action)
            assert step.valid is (action != mistake)
    return step


@pytest.mark.slow
@needs_java
@pytest.mark.parametrize("settings", [{"coin": {"numLocations": 4}}, {"mapreader": SIX_ROOMS}], ids="-".join)
def test_it_conforms(settings):
    check_environment(SPEC, options(*settings, settings=settings), tasks=1, steps=8)


@needs_java
def test_the_answers_are_those_of_the_game():
    """Beside one that talks to the game alone: text, commands, score and end, for each game."""
    for game in GAMES:
        environment = TextworldExpressEnvironment(options(game, describe=False, max_steps=200))
        (task,) = tasks(options(game, pool=1), "train")
        other = machine(400).game(game, "")
        stock, step = json.loads(other.generateNewGameJSON(task["seed"], "train", True)), environment.reset(task, 0)
        before = 0.0
        for action in list(other.getGoldActionSequence()):
            assert step.text == stock["observation"].strip()
            assert step.admissible == tuple(sorted(stock["validActions"]))
            stock, step = json.loads(other.stepJSON(action)), environment.step(action)
            assert step.reward == pytest.approx(stock["score"] - before) and step.valid
            before = stock["score"]
            if step.done:
                break
        assert step.done and step.info["won"] and step.info["score"] == 1 == stock["score"], game
        assert not environment.step("look around").valid


@needs_java
@pytest.mark.parametrize("game", GAMES)
def test_games_on_one_machine_do_not_change_one_another(game):
    alone, together = (TextworldExpressEnvironment(options(game, max_steps=100)) for _ in range(2))
    found = tasks(options(game), "train")
    rng, said = random.Random(0), []
    first = [alone.reset(found[0], 0)]
    while len(first) < 8 and not first[-1].done:
        said.append(rng.choice(first[-1].admissible))
        first.append(alone.step(said[-1]))
    others = [TextworldExpressEnvironment(options(game, max_steps=100)) for _ in range(2)]
    second = [together.reset(found[0], 0)]
    steps = [other.reset(task, 0) for other, task in zip(others, found[:2], strict=True)]
    for action in said:
        steps = [o if o.done else other.step(rng.choice(o.admissible)) for other, o in zip(others, steps, strict=True)]
        second.append(together.step(action))
    assert first == second


@needs_java
def test_what_is_not_listed_does_not_reach_the_game():
    environment = TextworldExpressEnvironment(options(invalid_penalty=0.5))
    start = environment.reset(tasks(options(), "train")[0], 0)
    for said in ("take coin; win", "help", "reset", "", "move up", "look around\nlook around"):
        step = environment.step(said)
        assert (step.valid, step.reward, step.anchor) == (False, -0.5, start.anchor), said
    assert environment.step(" LOOK  around ").valid


@needs_java
def test_anchors_name_what_is_known():
    environment = TextworldExpressEnvironment(options("mapreader", settings={"mapreader": SIX_ROOMS}, max_steps=99))
    task = tasks(options("mapreader"), "train")[0]
    start = environment.reset(task, 0)
    assert environment.step("look around").anchor == start.anchor == environment.step("read map").anchor
    way = next(said for said in start.admissible if said.startswith("move"))
    there = environment.step(way)
    back = environment.step(undoing(way))
    assert len({start.anchor, there.anchor, back.anchor}) == 3
    again = [environment.step(way), environment.step(undoing(way))]
    assert [step.anchor for step in again] == [there.anchor, back.anchor], "now both rooms are known"


@needs_java
@pytest.mark.parametrize("noise", [0.0, 0.25])
def test_the_expert_wins_and_comes_back(noise):
    chosen = options("mapreader", "coin", "arithmetic", max_steps=200)
    environment = TextworldExpressEnvironment(chosen)
    ends = [played(environment, task, noise, seed) for seed, task in enumerate(tasks(chosen, "train"))]
    assert all(step.info["won"] for step in ends)


@needs_java
def test_the_expert_plays_every_game():
    for game in GAMES:
        environment = TextworldExpressEnvironment(options(game, max_steps=200))
        assert played(environment, tasks(options(game), "train")[1]).info["won"], game


@needs_java
def test_the_first_observation_tells_the_task():
    task = tasks(options("mapreader"), "train")[0]
    told = TextworldExpressEnvironment(options("mapreader")).reset(task, 0)
    silent = TextworldExpressEnvironment(options("mapreader", describe=False)).reset(task, 0)
    assert told.text == f"{told.info['task']}\n{silent.text}" and "Your task is to take the coin" in told.info["task"]
    few = TextworldExpressEnvironment(options("mapreader", observation="short")).reset(task, 0)
    assert few.text.startswith(f"{few.info['task']} ; ") and len(few.text) < 0.6 * len(told.text)


def test_short_texts():
    text = "You are in the corridor. In one part of the room you see a key holder, that has nothing on it. "
    text += "There is also a shoe cabinet that is closed. \nTo the North you see the backyard. It's empty inside."
    assert short(text) == "corridor ; key holder nothing ; shoe cabinet closed ; north backyard ; empty inside"


@needs_java
def test_games_are_used_again_and_a_dead_machine_is_replaced():
    environment, task = TextworldExpressEnvironment(options(java_memory_mb=300)), tasks(options(), "train")[0]
    first = environment.reset(task, 0)
    used = environment.world._played
    environment.reset(task, 0)
    assert environment.world._played is used
    old = machine(300)
    old._process.kill()
    old._process.wait()
    environment.close()
    assert environment.reset(task, 0) == first and machine(300) is not old


@needs_java
def test_settings_are_refused_in_a_sentence():
    refused = TextworldExpressEnvironment(options(settings={"coin": {"numRooms": 3}}))
    with pytest.raises(RecipeError, match=r"settings: coin refuses 'numRooms=3': Unrecognized property name"):
        refused.reset(tasks(options(), "train")[0], 0)
    small = TextworldExpressEnvironment(options("mapreader", settings={"mapreader": {"numLocations": 4}}))
    with pytest.raises(RecipeError, match=r"mapreader makes no world of 'numLocations=4': No locations could be found"):
        small.reset({"game": "mapreader", "fold": "train", "seed": 5}, 0)


def test_without_java_a_sentence_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RecipeError, match=r"needs Java, and there is no `java` on the PATH; install one"):
        Machine(400)


def test_tasks_are_those_of_the_folds():
    found = {split: tasks(options("coin", "twc", pool=2000, validation=50), split) for split in SPEC.splits}
    assert [len({(t["game"], t["seed"]) for t in those}) for those in found.values()] == [2000, 50, 50]
    assert [{t["fold"] for t in those} for those in found.values()] == [{"train"}, {"dev"}, {"test"}]
    assert [t["game"] for t in found["val"][:3]] == ["coin", "twc", "coin"]
    assert found["train"][0]["instruction"] == INSTRUCTIONS["coin"] and set(INSTRUCTIONS) == set(GAMES)
    with pytest.raises(RecipeError, match=r"environment.pool: 1 games have 1000 tasks .* 1001 are asked for"):
        tasks(options(pool=1001), "train")
    with pytest.raises(RecipeError, match="no split 'dev'"):
        tasks(options(), "dev")


@needs_java
def test_the_seeds_are_those_of_the_games():
    game = machine(400).game("coin", "")
    assert list(game.getSeedsTrain()) == list(range(1000)) and list(game.getSeedsDev()) == list(range(10_000, 11_000))
    assert list(game.getSeedsTest()) == list(range(20_000, 21_000))


@needs_java
def test_constant_policies_win_no_map():
    chosen = options("mapreader", pool=20, settings={"mapreader": SIX_ROOMS})
    found = measure(TextworldExpressEnvironment(chosen), tasks(chosen, "train"), baselines())
    assert max(won for policy, won in found.won.items() if policy != "random") <= 0.3


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ({"games": []}, "games must name at least one game"),
        ({"games": ["sorting"]}, "is not one of"),
        ({"games": ["coin"], "settings": {"twc": {}}}, "settings are for 'twc', which is not among the games coin"),
        ({"java_memory_mb": 0}, "at least 1"),
    ],
)
def test_options_are_refused_in_a_sentence(block, sentence):
    with pytest.raises(RecipeError, match=sentence):
        build_options(SPEC, block)
