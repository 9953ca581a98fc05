"""The kit for samplers passes on every built-in one and refuses each broken one with its sentence."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.fixtures.sampler_cases import wander
from tests.fixtures.tiers import spread
from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_options
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import EndReason, Sampler
from verl_hier.rollout.budget import BudgetSpent
from verl_hier.testing import check_sampler

HOST = PluginHost.load({"builtin": True})
SPECS: dict[str, Any] = HOST.specs("sampler")
REACT: Any = HOST.spec("worker", "react")
TEAM: Any = HOST.spec("worker", "team")


def in_steps(role: dict[str, Any]) -> Any:
    """A team of two that acts again and again."""
    roles = {"first": role, "second": {**role, "action": "{content}", "level": 1}}
    return build_options(TEAM, {"roles": roles, "topology": {"each": "step"}})


CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *((name, {}, {}) for name in SPECS if name not in ("rollback", "treerpo", "ccpo", "magrpo", "mars2")),
    ("mars2", {"roles": ["first", "second"], "batch": 2}, {"worker": TEAM, "worker_options": in_steps({})}),
    ("ccpo", {"without": ["planner"]}, {}),
    ("c3", {"fanout": [2, 2, 2], "replays": 2, "train_rest": True}, {}),
    ("magrpo", {"stop_above": 0.4}, {"worker": TEAM, "worker_options": in_steps({})}),
    ("magrpo", {"joint": "cross"}, {"worker": TEAM, "worker_options": in_steps({"sees": []}), "n": (2,)}),
    ("best_of_turn", {"candidates": "slot"}, {"worker": TEAM, "worker_options": in_steps({})}),
    ("treerpo", {"children": 2, "depth": 2, "segment_tokens": 7}, {}),
    ("rollback", {}, {"worker": REACT, "answer": wander}),  # rolls back failures that were corrected
    ("nested", {"plans": 2, "select": "random", "greedy_trial": False}, {}),
    ("overprovision", {"launch": 1.5, "max_age": 1}, {}),
    ("designs", {"designs": 2, "executions": 2, "failed": "keep"}, {}),
    ("tree_grpo", {"trees": 1, "rounds": 2, "leaves": 2}, {"worker": REACT}),
]


@pytest.mark.parametrize(("name", "options", "changes"), spread(12, CASES), ids=lambda value: str(value)[:40])
def test_every_builtin_passes(name: str, options: dict[str, Any], changes: dict[str, Any]) -> None:
    check_sampler(SPECS[name], build_options(SPECS[name], options), **changes)


class Plays(Sampler):
    """A sound sampler."""

    async def sample(self, rollout):
        await rollout.run([rollout.start() for _ in range(rollout.n)])


class Twins(Sampler):
    """A sound sampler that forks."""

    async def sample(self, rollout):
        first = [rollout.start() for _ in range((rollout.n + 1) // 2)]
        await rollout.advance(first)
        going = [episode for episode in first if not episode.over]
        twins = [await episode.fork(after=1) for episode in going[: rollout.n - len(first)]]
        rollout.expected = len(first) + len(twins)
        await rollout.run([*first, *twins])


@pytest.mark.parametrize(
    "changes", [{"factory": lambda _: Plays()}, {"factory": lambda _: Twins(), "needs_fork": True}]
)
def test_a_sound_sampler_passes(changes: dict[str, Any]) -> None:
    check_sampler(SamplerSpec("mine", **changes))


class Many(Sampler):
    async def sample(self, rollout):
        await rollout.run([rollout.start() for _ in range(rollout.n + 1)])


class Few(Sampler):
    async def sample(self, rollout):
        await rollout.run([rollout.start() for _ in range(rollout.n - 1)])


class Leaves(Sampler):
    async def sample(self, rollout):
        await rollout.run([rollout.start() for _ in range(rollout.n)])
        await rollout.advance([rollout.start()])


class Copies(Sampler):
    """A fork of a finished episode takes no turn of its own."""

    async def sample(self, rollout):
        trunk = await rollout.start().run()
        for _ in range(rollout.n - 1):
            await (await trunk.fork()).run()


class Dice(Sampler):
    async def sample(self, rollout):
        episodes = [rollout.start(draw=random.random()) for _ in range(rollout.n)]
        await rollout.run(episodes)


class Races(Sampler):
    """Forks whoever is first."""

    async def sample(self, rollout):
        episodes = [rollout.start() for _ in range(rollout.n - 1)]
        turns = [asyncio.ensure_future(self._turn(episode)) for episode in episodes]
        done, _ = await asyncio.wait(turns, return_when=asyncio.FIRST_COMPLETED)
        first = min((turn.result() for turn in done), key=lambda episode: episode.id)
        await rollout.gather(turns)
        await rollout.run([*episodes, await first.fork(after=1)])

    async def _turn(self, episode):
        await episode.step()
        return episode


class Impatient(Sampler):
    """Starts again until it has enough."""

    async def sample(self, rollout):
        done = 0
        while done < rollout.n:
            done += (await rollout.start().run()).complete


class Spins(Sampler):
    """Catches the end of the budget and tries again."""

    async def sample(self, rollout):
        started = []
        while len(started) < rollout.n:
            try:
                started.append(rollout.start())
            except BudgetSpent:
                continue
        await rollout.run(started)


class Assumes(Sampler):
    async def sample(self, rollout):
        episodes = [rollout.start() for _ in range(rollout.n)]
        await rollout.run(episodes)
        rollout.count("tokens", sum(episode.last_node.turn for episode in episodes))


class Asks(Sampler):
    async def sample(self, rollout):
        episodes = [rollout.start() for _ in range(rollout.n)]
        await rollout.run(episodes)
        for episode in episodes:
            if episode.nodes:
                await rollout.score([5], episode.nodes[0].action)


class Looks(Plays):
    async def sample(self, rollout):
        rollout.top_logprobs = 2
        await super().sample(rollout)


class Spends(Plays):
    """Takes what is not its own."""

    async def sample(self, rollout):
        rollout.budget.limits = type(rollout.budget.limits)()
        await super().sample(rollout)


class Resumes(Plays):
    """Resumes every unfinished episode twice."""

    async def sample(self, rollout):
        again = [rollout.resume(unfinished) for unfinished in rollout.unfinished for _ in range(2)]
        await rollout.run(again)
        for episode in again:
            episode.discard(EndReason.NOT_KEPT)
        await super().sample(rollout)


@pytest.mark.parametrize(
    ("make", "changes", "sentence"),
    [
        (dict, {}, "has a factory that makes no Sampler but a dict"),
        (Many, {}, "makes 3 leaves with n = 2; `SamplerSpec.episodes` says 2, and `rollout.expected` 2"),
        (Few, {}, "makes 1 leaves with n = 2 although nothing failed"),
        (Leaves, {}, "returns while 1 episodes are running, whose turns are thrown away"),
        (Copies, {"needs_fork": True}, "makes a leaf twice with n = 2"),
        (Dice, {}, r"makes another tree with equal seeds \(nodes\[0\].decision.draw differs"),
        (Races, {"needs_fork": True}, r"makes another tree when the policy answers in another order"),
        (Impatient, {}, ", (with n|in a world).* (does not come to an end|breaks: AttributeError)"),
        (Spins, {}, r", with n = 2 and BudgetOptions\(.*leaves=1.*, does not come to an end"),
        (Assumes, {}, ", .* breaks: AttributeError: 'NoneType' object has no attribute 'turn'"),
        (Asks, {}, "does ask for the log-probs of given tokens, and its spec does not say `needs_scores=True`"),
        (Looks, {}, "does ask for the likeliest tokens, and its spec does not say `needs_top_logprobs=True`"),
        (Twins, {}, "does fork episodes, and its spec does not say `needs_fork=True`"),
        (
            Plays,
            {"needs_fork": True},
            "did not fork episodes in any of these plays, and its spec says `needs_fork=True`",
        ),
        (Plays, {"provides": ("colour",)}, "declares the column 'colour' in `provides`"),
        (Plays, {"episodes": lambda options, n: 0}, "accepts no n up to 64 with these options; pass `n`"),
        (Spends, {}, r"spends \d+ tokens of a budget of 1\."),
        (Resumes, {}, "resumes 4 episodes; an earlier step has left 2"),
    ],
)
@pytest.mark.slow
def test_each_broken_sampler_is_refused(make: Any, changes: dict[str, Any], sentence: str) -> None:
    spec = SamplerSpec("mine", lambda options: make(), **changes)
    with pytest.raises(AssertionError, match=f"^sampler 'mine' ?({sentence})"):
        check_sampler(spec, patience=1.0 if make in (Impatient, Spins) else 60.0)
