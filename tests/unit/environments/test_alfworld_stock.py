"""The fast engine against ALFWorld as installed: the same texts, commands and outcome, word for word."""

import random

import pytest
import textworld
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
from textworld.envs.pddl import PddlEnv

from tests.fixtures.alfworld_walks import play, tasks_of, wander
from tests.fixtures.tiers import quick, spread
from verl_hier_plugins.environments.alfworld.engine import NOTHING_HAPPENS, Game
from verl_hier_plugins.environments.alfworld.environment import AlfworldEnvironment
from verl_hier_plugins.environments.alfworld.pddl import game_data
from verl_hier_plugins.environments.alfworld.world import build_world

GAMES = [
    (["pick"], 5, 5),
    (["clean"], 8, 8),
    (["heat"], 5, 6),
    (["cool"], 14, 12),
    (["look"], 5, 5),
    (["two"], 8, 6),
    (["heat", "cool"], 5, 5),
    (["two", "look"], 6, 7),
]


class Stock:
    """TextWorld's environment with ALFWorld's wrapper, as ALFWorld itself builds it."""

    def __init__(self, data):
        infos = textworld.EnvInfos(admissible_commands=True, won=True)
        self.env = AlfredDemangler(PddlEnv(infos), shuffle=False)
        self.env.load(data)
        self.generate(self.env.reset())

    def generate(self, state):
        self.text = state["feedback"]
        self.admissible = tuple(state["admissible_commands"])
        self.won = bool(state["won"])

    def step(self, command):
        state, score, done = self.env.step(command)
        self.generate(state)
        assert (score, done) == (int(self.won), self.won)


@pytest.mark.parametrize("number", spread(2, range(len(GAMES))))
def test_random_walks_say_the_same(number):
    kinds, receptacles, objects = GAMES[number]
    world = build_world({"seed": number, "kinds": kinds, "receptacles": receptacles, "objects": objects})
    data = game_data(world)
    stock, game = Stock(data), Game(data)
    assert stock.text == game.intro
    node, rng = game.start, random.Random(number)
    for _ in range(40):
        assert stock.admissible == node.admissible
        assert stock.won == node.won
        command = "fly to the moon" if rng.random() < 0.05 else wander(node.admissible, rng)
        walked = node.walk(command)
        stock.step(command)
        node, text = walked if walked is not None else (node, NOTHING_HAPPENS)
        assert stock.text == text, command


@pytest.mark.parametrize("kinds", quick(1, ["clean heat cool", "look two pick"]))
def test_expert_walks_say_the_same_and_win(kinds):
    tasks, options = tasks_of(goal_types=tuple(kinds.split()), pool=3, level="small", max_steps=100)
    environment = AlfworldEnvironment(options)
    for task in tasks:
        stock = Stock(game_data(build_world(task["world"])))
        for action, step in play(environment, task, seed=1, random_share=0.1):
            if action is not None:
                stock.step(action)
            assert stock.text == step.text
            assert stock.admissible == step.admissible
            assert (stock.won, float(stock.won)) == (step.info["won"], step.info["score"])
        assert stock.won


def test_receptacles_that_share_a_place_read_as_in_stock():
    """In the data set several cabinets stand at one location, which the grammar words in its own way."""
    world = build_world({"seed": 3, "kinds": ["pick"], "receptacles": 6, "objects": 6})
    data = game_data(world)
    places = sorted(
        {line.split()[2].rstrip(")") for line in data["pddl_problem"].splitlines() if "receptacleAt" in line}
    )
    data["pddl_problem"] = data["pddl_problem"].replace(f" {places[1]})", f" {places[0]})")
    stock, game = Stock(data), Game(data)
    node, rng = game.start, random.Random(0)
    for _ in range(80):
        command = wander(node.admissible, rng)
        walked = node.walk(command)
        stock.step(command)
        assert walked is not None
        node, text = walked
        assert (stock.text, stock.admissible) == (text, node.admissible)
