"""The roles of a worker's spec decide who takes turns on which level, and a worker that is told to end must end."""

from __future__ import annotations

import asyncio

import pytest

from tests.fixtures.corridor import Corridor
from verl_hier.errors import PluginError, RolloutError
from verl_hier.host.specs import NoOptions, WorkerSpec
from verl_hier.rollout import EpisodeOver, Limits, Worker
from verl_hier.rollout.budget import BudgetOptions
from verl_hier.testing.rollout import roll_out_scripted
from verl_hier_plugins.samplers.independent import Independent

ROLES = {"planner": 0, "worker": 1}


def roll(run, roles=ROLES, **changes):
    spec = WorkerSpec("stage", lambda options: Stage(run), roles=roles)
    rollout = roll_out_scripted(
        environment=Corridor,
        worker=spec,
        sampler=Independent(NoOptions()),
        answer=lambda prompt, sampling: "right",
        n=1,
        **changes,
    )
    return asyncio.run(rollout)[0]


class Stage(Worker):
    def __init__(self, run):
        self._run = run

    async def run(self, episode):
        await self._run(episode)


async def two_roles(episode):
    step = await episode.reset()
    await episode.generate(episode.context("planner").observe(step.text))
    while not step.done:
        step = await episode.act((await episode.generate(episode.context("worker").observe(step.text))).text)


def test_the_level_of_a_role_comes_from_the_spec():
    graph = roll(two_roles)
    assert [(node.role, node.level) for node in graph.nodes] == [("planner", 0), *[("worker", 1)] * 3]
    upside_down = roll(two_roles, roles={"planner": 1, "worker": 0})
    assert {(node.role, node.level) for node in upside_down.nodes} == {("planner", 1), ("worker", 0)}


async def misspelt(episode):
    await episode.reset()
    episode.context("workr")


async def contradicts(episode):
    await episode.reset()
    episode.context("worker", level=0)


async def repeats_the_spec(episode):
    await episode.reset()
    assert episode.context("worker", level=1).level == 1


async def speaks_for_a_stranger(episode):
    step = await episode.reset()
    turn = await episode.generate(episode.context("planner").observe(step.text))
    turn.set_speaker("critic")


async def moves_a_speaker(episode):
    step = await episode.reset()
    turn = await episode.generate(episode.context("planner").observe(step.text))
    turn.set_speaker("worker", 0)


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (
            misspelt,
            r"worker 'stage' uses the role 'workr' \(did you mean 'worker'\?\), which its WorkerSpec does not declare; "
            r"with these options its roles are: planner \(level 0\), worker \(level 1\)\.",
        ),
        (speaks_for_a_stranger, "worker 'stage' uses the role 'critic', which its WorkerSpec does not declare"),
        (contradicts, "worker 'stage' puts the role 'worker' on level 0, and its WorkerSpec on level 1; leave out"),
        (moves_a_speaker, "worker 'stage' puts the role 'worker' on level 0, and its WorkerSpec on level 1; leave out"),
    ],
)
def test_what_the_spec_does_not_say_is_refused(broken, sentence):
    with pytest.raises(PluginError, match=sentence):
        roll(broken)


def test_the_level_of_the_spec_may_be_repeated():
    roll(repeats_the_spec)


async def endless(episode):
    step = await episode.reset()
    context = episode.context("worker").observe(step.text)
    while True:
        try:
            await episode.generate(context)
        except Exception:
            continue


async def quiet(episode):
    try:
        await two_roles(episode)
    except EpisodeOver:
        return


@pytest.mark.parametrize("worker", [endless, quiet])
@pytest.mark.parametrize(
    "limits",
    [{"limits": Limits(max_turns=2)}, {"limits": Limits(context_tokens=1)}, {"budget": BudgetOptions(turns=4)}],
    ids=["turns", "context", "budget"],
)
def test_a_worker_that_catches_the_end_of_its_episode_is_stopped(worker, limits):
    if "budget" in limits:
        graph = roll(worker, budget=BudgetOptions(turns=2))  # the sampler cancels the worker, nothing is caught
        assert {episode.status for episode in graph.episodes} == {"pruned"}
        return
    with pytest.raises(RolloutError, match="worker Stage caught EpisodeOver, which ends an episode at its limits"):
        roll(worker, **limits)


async def acts_on(episode):
    step = await episode.reset()
    await episode.generate(episode.context("planner").observe(step.text))
    for _ in range(5):
        try:
            await episode.act("wait")
        except Exception:
            break


def test_an_episode_that_the_budget_ends_stays_pruned_whatever_the_worker_does():
    """It came back as a truncated leaf when the worker caught the end and returned."""
    with pytest.raises(RolloutError, match="caught EpisodeOver"):
        roll(acts_on, budget=BudgetOptions(environment_calls=2))
