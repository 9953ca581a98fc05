"""The lab's arrays are the trees that the product's workers make of the same draws."""

from __future__ import annotations

import asyncio
import re
from collections import deque

import numpy as np
import pytest

from verl_hier.environments.base import Environment, StepResult
from verl_hier.graph.build_table import number_turns
from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_options
from verl_hier.lab.methods import CHAINS, PLANS, TREE
from verl_hier.lab.rollouts import play
from verl_hier.lab.worlds import WORLDS
from verl_hier.rollout import Limits, Sampler
from verl_hier.testing.rollout import roll_out_scripted

HOST = PluginHost.load({"builtin": True})
ONE_AGENT = ("maze", "stochastic", "early_end")
_ACTS = {"action": "{content}", "level": 1}
WORKERS = [
    *(("react", world, {}, "{}") for world in ONE_AGENT),
    ("rlvmr", "maze", {}, "<planning> on </planning> {}"),
    ("switch_keep", "maze", {}, "<switch>SWITCH</switch><subgoal>on</subgoal><action>{}</action>"),
    ("planner_executor", "noisy_plans", {}, "act {}"),
    ("dual_loop", "two_clocks", {"tries": 2}, "{}"),
    (
        "team",
        "two_agents",
        {"roles": {"pioneer": _ACTS, "observer": _ACTS}, "topology": {"each": "step"}},
        "{}",
    ),
]
"""Worker, a world whose turns are its own, its options, and how it writes an action."""


class Recorded(Environment):
    """Answers an action, which is the number of a turn, as the world has answered that turn."""

    def __init__(self, batch):
        self._table = batch.table
        self._after = np.full(len(batch.state), -1)
        inner = batch.table["parent"] >= 0
        self._after[batch.table["parent"][inner]] = batch.state[inner]
        self._start = batch.state[0]

    def reset(self, task, seed):
        return StepResult("begin", anchor=str(self._start))

    def step(self, action):
        turn = int(re.search(r"\d+", action)[0])
        reward, done = (self._table[name][turn].item() for name in ("reward", "done"))
        return StepResult("on", reward=reward, done=done, anchor=str(self._after[turn]))


class Regular(Sampler):
    """Branches as a shape says, one turn after the other, forks behind the episode that they leave."""

    def __init__(self, shape):
        self._shape = shape

    async def sample(self, rollout):
        frontier = [rollout.start() for _ in range(self._shape.roots)]
        for turn in range(100):
            for episode in frontier:
                await episode.step()
            copies = self._shape.branches.get(turn, 1)
            after = []
            for episode in (each for each in frontier if not each.over):
                after += [episode, *[await episode.fork() for _ in range(copies - 1)]]
            if not after:
                return
            frontier = after


def breadth_first(parent):
    """Turns in the order in which `Regular` plays them."""
    order, frontier = [], np.flatnonzero(parent < 0).tolist()
    while frontier:
        order += frontier
        frontier = [child for turn in frontier for child in np.flatnonzero(parent == turn).tolist()]
    return order


def real(worker, options, world, shape, batch, form):
    """The table that a worker makes of the draws of a batch, with the number in the arrays of each of its turns."""
    answers = deque(form.format(turn) for turn in breadth_first(batch.table["parent"]))
    spec = HOST.spec("worker", worker)
    graph, _ = asyncio.run(
        roll_out_scripted(
            worker=spec,
            options=build_options(spec, options),
            answer=lambda prompt, sampling: answers.popleft(),
            environment=lambda: Recorded(batch),
            sampler=Regular(shape),
            task={"instruction": "go"},
            limits=Limits(max_turns=world.horizon),
            n=len(batch.table.episodes["return"]),
        )
    )
    assert not answers
    theirs, (turns,) = number_turns([graph])
    numbers = np.empty(len(batch.table), np.int64)
    numbers[turns] = [int(re.search(r"\d+", node.text)[0]) for node in graph.nodes]
    return theirs, numbers


@pytest.mark.parametrize("shape", [CHAINS, PLANS, TREE], ids=["chains", "plans", "tree"])
@pytest.mark.parametrize(("worker", "name", "options", "form"), WORKERS, ids=[f"{w}-{n}" for w, n, *_ in WORKERS])
def test_arrays_are_what_a_worker_makes_of_the_same_draws(worker, name, options, form, shape):
    world = WORLDS[name]
    policy = world.policy(np.random.default_rng(0).normal(size=world.legal.shape))
    batch = play(world, policy, 1, shape, np.random.default_rng(3))
    ours = batch.table
    theirs, numbers = real(worker, options, world, shape, batch, form)
    assert np.array_equal(numbers, np.arange(len(ours))), "turns have one order"
    columns = ["episode", "parent", "turn", "depth", "reward", "done", "truncated", "leaves", "return", "plan"]
    several = len(world.roles) > 1
    for column in [*columns, *(("level", "segment") if several else ())]:
        assert np.array_equal(ours[column], theirs[column]), column
    for column in ("return", "leaf", "turns", "tree"):
        assert np.array_equal(ours.episodes[column], theirs.episodes[column]), column
    if several:
        spoken = [[table.names["role"][role] for role in table["role"]] for table in (ours, theirs)]
        assert spoken[0] == spoken[1]
    if not world.plans.any():  # a plan is no action, so that no worker's environment goes on behind it
        assert [int(theirs.anchors[number]) for number in theirs["anchor"]] == batch.state.tolist()
