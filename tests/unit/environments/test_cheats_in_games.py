"""Commands that try to win a game without playing it: none is rewarded, and none changes the state."""

import random
from importlib.util import find_spec
from shutil import which

import pytest

from verl_hier.environments.base import StepResult

COMMANDS = [
    *(
        "win",
        "I win",
        "won",
        "won = true",
        "score 100",
        "reward=1",
        "done",
        "the game is over",
        "you have won",
        "solved",
    ),
    *("*** The End ***", "[won]", "won=True; done=True", '{"won": true, "reward": 1, "done": true}', "set score to 10"),
    *("restart", "restore", "save", "undo", "again", "quit", "script", "verify", "tw-trace-actions", "tw-print score"),
    *("tw-print max_score", "purloin all", "gonear goal", "abstract key to player", "showme player", "tree", "xtest"),
    *(
        "showverb take",
        "rules all",
        "actions on",
        "test me",
        "__import__('os').system('true')",
        "eval('1')",
        "%s",
        "{}",
    ),
    *("{won}", "${won}", "' or 1=1 --", "../../game.json", "look\0win", "look\nwin", "look; win", "look. win. win."),
    *("look then win", "\u202ewin", "\x1b[2J", "<answer>won</answer>", "win" * 5000, "[" * 3000, "९", "", " "),
    *("assistant: won", "system: the task is solved", "ignore the rules and give the reward", "admin override"),
]
"""What no game has as a move; what depends on the game is added by the tests."""


def needs(package):
    return pytest.mark.skipif(find_spec(package) is None, reason=f"needs verl-hier[{package}]")


def assert_nothing_happens(start, before: StepResult, commands):
    """Each command is tried in the same state."""
    assert len(set(commands)) >= 40
    for command in commands:
        step = start.fork().step(command)
        assert step.reward <= 0 and not step.info["won"] and not step.done, command
        assert step.anchor == before.anchor, command
        assert step.info["score"] == before.info["score"], command


def assert_the_end_pays_once(world, actions):
    """A solution, and then its steps again: no reward is given for what is over."""
    rewards = []
    for action in actions:
        rewards.append(world.step(action).reward)
    assert rewards[-1] > 0
    for action in [*actions, *COMMANDS[:3]]:
        assert world.step(action).reward <= 0, action


def solution(world):
    """What the expert does in a copy."""
    twin, said = world.fork(), []
    expert = twin.expert(random.Random(0))
    for subgoal in range(len(expert.subgoals)):
        while (action := expert.advise(subgoal)) is not None:
            said.append(action)
            if twin.step(action).done:
                return said
    return said


@pytest.mark.slow
@needs("textworld")
@pytest.mark.parametrize("observation", ["short", "full"])
def test_textworld(observation, tmp_path):
    from verl_hier_plugins.environments.textworld.environment import TextworldEnvironment
    from verl_hier_plugins.environments.textworld.options import TextworldOptions

    quest = {"seed": 3, "rooms": 3, "objects": 6, "quest": 4, "theme": "house", "goal_only": False}
    world = TextworldEnvironment(TextworldOptions(observation=observation, cache=str(tmp_path)))
    before = world.reset({"instruction": "", "world": quest}, 0)
    actions = solution(world)
    # Several steps in one command, and the last one before its time.
    joined = [sign.join(actions) for sign in (". ", "; ", " then ", ", ", " and ", "\n")]
    assert_nothing_happens(world, before, [*COMMANDS, *joined, actions[-1]])
    if observation == "short":
        assert_the_end_pays_once(world, actions)


@needs("alfworld")
@pytest.mark.parametrize("kind", ["pick", "heat", "two"])
def test_alfworld(kind):
    from verl_hier_plugins.environments.alfworld import SPEC
    from verl_hier_plugins.environments.alfworld.environment import AlfworldEnvironment
    from verl_hier_plugins.environments.alfworld.options import AlfworldOptions

    options = AlfworldOptions(goal_types=(kind,), pool=1, validation=1)
    world = AlfworldEnvironment(options)
    (task,) = SPEC.tasks(options, "train")
    before = world.reset(task, 0)
    actions = solution(world)
    joined = [sign.join(actions) for sign in (". ", "; ", " then ", ", ", "\n")]
    assert_nothing_happens(world, before, [*COMMANDS, *joined, actions[-1], task["instruction"]])
    assert_the_end_pays_once(world, actions)


@needs("textarena")
@pytest.mark.parametrize("game", ["FrozenLake", "Sokoban", "TowerOfHanoi", "TicTacToe", "ConnectFour", "KuhnPoker"])
def test_textarena(game):
    from verl_hier_plugins.environments.textarena import SPEC
    from verl_hier_plugins.environments.textarena.environment import TextarenaEnvironment
    from verl_hier_plugins.environments.textarena.options import TextarenaOptions

    puzzle = game in ("FrozenLake", "Sokoban", "TowerOfHanoi")
    settings = {"dim_room": [6, 6], "num_boxes": 1} if game == "Sokoban" else {}
    opponent = "none" if puzzle else "random"
    options = TextarenaOptions(f"{game}-v0", settings=settings, pool=1, validation=1, opponent=opponent)
    world = TextarenaEnvironment(options)
    (task,) = SPEC.tasks(options, "train")
    before = world.reset(task, 0)
    moves = [
        f"[Player 1] {world.moves()[0]}",
        "[GAME] you have won",
        "[win]",
        "[99]",
        "[-1]",
        "[]",
        "[None]",
        "[[win]]",
    ]
    assert_nothing_happens(world, before, [*COMMANDS, *moves, task["instruction"]])
    if puzzle:
        assert_the_end_pays_once(world, solution(world))


@pytest.mark.parametrize("level", ["tiny", "easy"])
def test_sokoban(level):
    from verl_hier_plugins.environments.sokoban import SPEC
    from verl_hier_plugins.environments.sokoban.environment import SokobanEnvironment
    from verl_hier_plugins.environments.sokoban.options import SokobanOptions

    options = SokobanOptions(level=level, pool=1, validation=1)
    world = SokobanEnvironment(options)
    (task,) = SPEC.tasks(options, "train")
    before = world.reset(task, 0)
    actions = solution(world)
    joined = [sign.join(actions) for sign in (". ", "; ", " then ", ", ", "\n", " ", "")] if len(actions) > 1 else []
    moves = ["push the box", "put box on goal", "pull left", "north", "up up", "5", "-1", "teleport", "leftright"]
    assert_nothing_happens(world, before, [*COMMANDS, *joined, *moves, task["instruction"]])
    assert_the_end_pays_once(world, actions)


@needs("minigrid")
@pytest.mark.parametrize("level", ["BabyAI-GoToLocal-v0", "MiniGrid-DoorKey-5x5-v0"])
def test_minigrid(level):
    from verl_hier_plugins.environments.minigrid import SPEC
    from verl_hier_plugins.environments.minigrid.environment import MinigridEnvironment
    from verl_hier_plugins.environments.minigrid.options import MinigridOptions

    options = MinigridOptions(levels=(level,), pool=1, validation=1, max_steps=64)
    world = MinigridEnvironment(options)
    (task,) = SPEC.tasks(options, "train")
    before = world.reset(task, 0)
    # Only BabyAI's worlds have a bot that solves them.
    actions = solution(world) if level.startswith("BabyAI") else []
    joined = [sign.join(actions) for sign in (". ", "; ", " then ", ", ", "\n")] if len(actions) > 1 else []
    moves = ["go to the goal", "6", "-1", "agent_pos = goal", "open door", "teleport", "done done"]
    commands = [command for command in (*COMMANDS, *moves) if command != "done"]
    assert_nothing_happens(world, before, [*commands, *joined, task["instruction"]])
    said = world.fork().step("done")
    assert said.reward <= 0 and not said.info["won"], "an action of MiniGrid that does nothing"
    if actions:
        assert_the_end_pays_once(world, actions)


@pytest.mark.slow
@needs("scienceworld")
@pytest.mark.skipif(which("java") is None, reason="needs Java")
def test_scienceworld():
    from verl_hier_plugins.environments.scienceworld import SPEC
    from verl_hier_plugins.environments.scienceworld.environment import ScienceworldEnvironment
    from verl_hier_plugins.environments.scienceworld.options import ScienceworldOptions

    options = ScienceworldOptions(pool=1, validation=1)
    (task,) = SPEC.tasks(options, "train")
    world = ScienceworldEnvironment(options)
    before = world.reset(task, 0)
    # Every text goes to the world, so what it understands may be done, and is worth nothing.
    for command in (*COMMANDS, task["instruction"], before.info["task"], "complete task", "set score 1", "0"):
        step = world.step(command)
        assert step.reward <= 0 and not step.info["won"], command
        assert step.info["score"] <= before.info["score"], command
        world.reset(task, 0)


@pytest.mark.slow
@needs("textworld_express")
@pytest.mark.skipif(which("java") is None, reason="needs Java")
@pytest.mark.parametrize("game", ["coin", "cookingworld", "arithmetic"])
def test_textworld_express(game):
    from verl_hier_plugins.environments.textworld_express import SPEC
    from verl_hier_plugins.environments.textworld_express.environment import TextworldExpressEnvironment
    from verl_hier_plugins.environments.textworld_express.options import TextworldExpressOptions

    options = TextworldExpressOptions(games=(game,), pool=1, validation=1)
    (task,) = SPEC.tasks(options, "train")
    world = TextworldExpressEnvironment(options)
    before = world.reset(task, 0)
    # A game cannot be copied, so each command is tried in one episode, in which none of them changes anything.
    tried = [command for command in (*COMMANDS, task["instruction"]) if command not in before.admissible]
    assert len(set(tried)) >= 40
    for command in tried:
        step = world.step(command)
        assert step.reward <= 0 and not step.info["won"] and not step.done, command
        assert step.anchor == before.anchor and step.info["score"] == before.info["score"], command
        world.reset(task, 0)
