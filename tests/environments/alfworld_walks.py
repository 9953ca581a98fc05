"""Worlds and walks that the ALFWorld tests share."""

import random

from verl_hier_plugins.environments.alfworld import SPEC
from verl_hier_plugins.environments.alfworld.options import AlfworldOptions

MANIPULATIONS = ("take", "move", "heat", "cool", "clean", "use", "open", "close")


def tasks_of(split="train", **options):
    """Tasks and the options they were made with."""
    made = AlfworldOptions(**options)
    return SPEC.tasks(made, split), made


def play(environment, task, seed=0, random_share=0.0, remember=True):
    """Let the expert play to the end, with a share of random actions; yields (action, step)."""
    rng = random.Random(seed)
    step = environment.reset(task, seed)
    expert = environment.expert(rng, remember=remember)
    yield None, step
    for number in range(len(expert.subgoals)):
        while not (step.done or step.truncated):
            action = expert.advise(number)
            if action is None:
                break
            if rng.random() < random_share:
                action = rng.choice(step.admissible)
            step = environment.step(action)
            yield action, step


def wander(admissible, rng):
    """A random action that rather changes something than looks around."""
    doing = [action for action in admissible if action.split()[0] in MANIPULATIONS]
    return rng.choice(doing if doing and rng.random() < 0.6 else admissible)
