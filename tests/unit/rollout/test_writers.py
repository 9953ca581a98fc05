"""The turn that wrote an action gets its reward and its validity, wherever it stands in its episode."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.fixtures.light import sent
from verl_hier.credit import Credit
from verl_hier.environments.base import Environment, StepResult
from verl_hier.errors import RolloutError
from verl_hier.graph import Node, RolloutGraph, build_table
from verl_hier.host.manager import PluginHost
from verl_hier.host.part import Part
from verl_hier.host.specs import EstimatorSpec, NoOptions, WorkerSpec
from verl_hier.rollout import EpisodeView, Rollout, Sampler, Turn, Worker
from verl_hier.testing.rollout import SideBySide, roll_out_scripted
from verl_hier.training.options import GuardOptions
from verl_hier.training.step import TrainingStep, train_step
from verl_hier_plugins.schedules.joint import Joint, JointOptions

ROLES = ("drafter", "critic", "checker", "editor")
Paid = list[tuple[Node, float, bool]]
"""The turn that an action was written by, its reward, and whether the world understood it; in the order of time."""


class Payer(Environment):
    """Pays another amount for each action, also negative ones, and understands most of them."""

    def reset(self, task: Any, seed: int) -> StepResult:
        self._chance = random.Random(seed)
        self._calls = 0
        return StepResult("go")

    def step(self, action: str) -> StepResult:
        self._calls += 1
        chance = random.Random(f"{action} {self._calls}")
        return StepResult(
            "went", chance.choice([-3.0, -0.5, 0.25, 1.0, 7.0]), self._calls == 6, valid=chance.random() < 0.7
        )


class Committee(Worker):
    """Some roles speak, some of them twice; then an action of any of the turns so far is taken, up to all of them."""

    def __init__(self, book: dict[int, Paid]) -> None:
        self._book = book

    async def run(self, episode: EpisodeView) -> None:
        paid: Paid = []
        step = await episode.reset()
        contexts = {role: episode.context(role).observe("task") for role in ROLES}
        turns: list[Turn] = []
        while not (step.done or step.truncated):
            for role in episode.rng.choices(ROLES, k=episode.rng.randint(1, 5)):
                turns.append(await episode.generate(contexts[role]))
                contexts[role].observe("more")
            for _ in range(episode.rng.randint(1, 2)):
                if step.done:
                    break
                writer = episode.rng.choice(turns)
                named = None if writer is turns[-1] and episode.rng.random() < 0.5 else writer
                step = await episode.act(writer.text, turn=named)
                paid.append((writer.node, step.reward, step.valid))
        self._book[turns[-1].node.id] = paid


SPEC = {"levels": dict.fromkeys(ROLES, 0)}


def played(seed: int, sampler: Sampler | None = None) -> tuple[RolloutGraph, list[Paid]]:
    book: dict[int, Paid] = {}
    spec = WorkerSpec("committee", lambda options: Committee(book), roles=dict.fromkeys(ROLES, 0))
    rolled = roll_out_scripted(
        environment=Payer, worker=spec, sampler=sampler, n=3, seed=seed,
        answer=lambda prompt, sampling: " ".join(random.Random(sampling.seed).choices("abcdef", k=3)),
    )  # fmt: skip
    graph, _ = asyncio.run(rolled)
    return graph, list(book.values())


def by_turn(paid: Iterator[tuple[Node, float, bool]]) -> tuple[dict[int, float], dict[int, bool]]:
    rewards, valid = defaultdict[int, float](float), defaultdict[int, bool](lambda: True)
    for node, amount, understood in paid:
        rewards[node.id] += amount
        valid[node.id] &= understood
    return rewards, valid


@pytest.mark.parametrize("seed", range(30))
def test_every_reward_lies_on_the_turn_that_was_named(seed: int) -> None:
    graph, books = played(seed)
    rewards, valid = by_turn(entry for paid in books for entry in paid)
    assert len(books) == 3 and len({graph.nodes[number].role for number in rewards}) > 1
    assert [node.reward for node in graph.nodes] == [rewards[node.id] for node in graph.nodes]
    assert [node.valid for node in graph.nodes] == [valid[node.id] for node in graph.nodes]
    assert [node.done for node in graph.nodes] == [
        node.id in {episode.leaf for episode in graph.episodes} for node in graph.nodes
    ]
    table = build_table([graph])
    np.testing.assert_array_equal(table["reward"], [rewards[node.id] for node in graph.nodes])
    np.testing.assert_array_equal(table["valid"], [valid[node.id] for node in graph.nodes])
    # An estimator that hands on the rewards: what verl trains on is each reward on the tokens of its turn.
    for row, advantages in zip(*trained_by_rewards(graph), strict=True):
        turns = np.array(row.turn_index)
        said = turns >= 0
        np.testing.assert_allclose(advantages[said], [rewards[turn] for turn in turns[said]])
        assert not advantages[~said].any()


def trained_by_rewards(graph: RolloutGraph) -> tuple[list[Any], list[np.ndarray]]:
    light, keys, rows = sent([graph])
    spec = EstimatorSpec("rewards", lambda table, options: Credit(table["reward"].copy()), NoOptions)
    fields = train_step(
        TrainingStep(light, keys),
        keys=keys,
        columns={"response_mask": [np.array(row.mask, float) for _, row in rows]},
        host=PluginHost([]),
        estimator=Part(spec, NoOptions()),
        guards=GuardOptions(),
        schedule=Joint(JointOptions()),
        number=1,
        metrics={},
    )
    return [row for _, row in rows], fields["advantages"]


class Bush(Sampler):
    """An episode, and forks of it and of its forks anywhere."""

    async def sample(self, rollout: Rollout) -> None:
        await rollout.start().run()
        for number in range(5):
            chance = rollout.rng(number)
            source = chance.choice([episode for episode in rollout.episodes if episode.complete])
            await (await source.fork(chance.choice(source.boundaries[1:-1]))).run()


@pytest.mark.parametrize("seed", range(30))
def test_forks_leave_every_return_and_every_word_of_the_world_where_it_belongs(seed: int) -> None:
    graph, books = played(seed, Bush())
    complete = list(graph.complete())
    assert len(books) == len({episode.leaf for episode in complete}) > 2
    sums = sorted(sum(amount for _, amount, _ in paid) for paid in books)
    leaves = {episode.leaf: episode.ret for episode in complete}
    assert sorted(leaves.values()) == pytest.approx(sums)
    for episode in complete:
        assert episode.ret == pytest.approx(sum(graph.nodes[number].reward for number in graph.path(episode.id)))
    _, valid = by_turn(entry for paid in books for entry in paid)
    assert [node.valid for node in graph.nodes] == [valid[node.id] for node in graph.nodes]


class Careless(Worker):
    """Names a turn that its episode does not have."""

    kept: Turn | None = None

    def __init__(self, call: str, strange: str) -> None:
        self._call, self._strange = call, strange

    async def run(self, episode: EpisodeView) -> None:
        step = await episode.reset()
        context = episode.context("drafter").observe(step.text)
        own = await episode.generate(context)
        kept, Careless.kept = Careless.kept, Careless.kept or own
        turn: Any = {"another": kept or own, "a node": own.node, "a text": own.text}[self._strange]
        if self._call == "act":
            await episode.act("a", turn=turn)
        elif self._call == "pay":
            episode.pay(turn, 1.0)
        else:
            await episode.generate(context.observe("more"), plan=turn)


class Twigs(Sampler):
    """Two forks of one episode after its first turn: each is another branch for the other one."""

    async def sample(self, rollout: Rollout) -> None:
        trunk = rollout.start()
        await trunk.step()
        await (await trunk.fork(0)).run()


@pytest.mark.parametrize("call", ["act", "pay", "generate"])
@pytest.mark.parametrize("strange", ["another", "a node", "a text"])
@pytest.mark.parametrize("sampler", [SideBySide, Twigs])
def test_a_turn_of_another_episode_or_branch_is_refused(call: str, strange: str, sampler: type[Sampler]) -> None:
    Careless.kept = None
    spec = WorkerSpec("careless", lambda options: Careless(call, strange), roles={"drafter": 0})
    with pytest.raises(RolloutError, match=rf"worker Careless gave `{call}` a turn that its episode does not have"):
        asyncio.run(roll_out_scripted(worker=spec, sampler=sampler(), n=2, answer=lambda prompt, sampling: "right"))


class Generous(Worker):
    """Gives a reward by one of the three ways."""

    def __init__(self, way: str, amount: Any) -> None:
        self._way, self._amount = way, amount

    async def run(self, episode: EpisodeView) -> None:
        step = await episode.reset()
        turn = await episode.generate(episode.context("drafter").observe(step.text))
        if self._way == "reward":
            turn.reward(self._amount)
        elif self._way == "pay":
            episode.pay(turn, self._amount)
        else:
            await episode.act(turn.text, worth=lambda step: self._amount)


def given(way: str, amount: Any) -> list[float]:
    spec = WorkerSpec("generous", lambda options: Generous(way, amount), roles={"drafter": 0})
    graph, _ = asyncio.run(roll_out_scripted(worker=spec, n=2, answer=lambda prompt, sampling: "right"))
    return [node.reward for node in graph.nodes]


@pytest.mark.parametrize("way", ["reward", "pay", "worth"])
@pytest.mark.parametrize("amount", [float("nan"), float("inf"), -float("inf"), 1e7, -1e300, "1.0", None, [1.0]])
def test_a_worker_gives_no_reward_that_is_none(way: str, amount: Any) -> None:
    with pytest.raises(RolloutError, match=rf"worker Generous raised (Type|Value)Error: what `(\w+\.)?{way}`"):
        given(way, amount)


@pytest.mark.parametrize("way", ["reward", "pay", "worth"])
@pytest.mark.parametrize("amount", [True, np.float32(0.5), np.int64(-3), 1e6])
def test_a_worker_gives_numbers_of_any_type(way: str, amount: Any) -> None:
    assert given(way, amount) == [float(amount)] * 2
