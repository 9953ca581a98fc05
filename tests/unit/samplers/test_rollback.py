"""Episodes without the failures they corrected: which turns stay, what the world has to say, what is trained."""

from __future__ import annotations

import dataclasses
import random

import pytest

from tests.fixtures.corridor import Corridor
from tests.fixtures.sampler_cases import Steady, Trap, check_budgets, check_repeatable, roll, spec, wander
from verl_hier.errors import RecipeError
from verl_hier.graph import graph_rows
from verl_hier.graph.nodes import Node
from verl_hier.host.options import build_options
from verl_hier.rollout import Limits, Scored, Worker
from verl_hier.rollout.budget import BudgetOptions
from verl_hier.rollout.transcript import TranscriptTurn
from verl_hier_plugins.samplers.rollback import Rollback, RollbackOptions, corrected


def make(**options):
    return lambda: Rollback(RollbackOptions(**options))


def turns(text: str) -> list[TranscriptTurn]:
    """`v` a valid turn, `x` a failed one; in capitals of another agent."""
    agents = ["other" if letter.isupper() else "agent" for letter in text]
    nodes = [Node(i, i - 1, -1, 0, agent, "role", 0, i, 0, -1, [], [5], []) for i, agent in enumerate(agents)]
    return [TranscriptTurn(dataclasses.replace(n, valid=c in "vV"), c, ()) for n, c in zip(nodes, text, strict=True)]


@pytest.mark.parametrize(
    "text, attempts, left_out",
    [
        ("vvv", None, []),
        ("vxv", None, [1]),
        ("xxvxv", None, [0, 1, 3]),
        ("xxvxv", 1, [3]),
        ("vxx", None, []),  # never corrected
        ("xVxv", None, [2]),  # another agent's turn is no correction
        ("xXv", None, []),
        ("xXV", None, [1]),
    ],
)
def test_which_failures_were_corrected(text, attempts, left_out):
    assert corrected(turns(text), attempts) == left_out


class Reads(Steady):
    """Reads tokens with another log p than it samples them with."""

    async def score(self, prompt, tokens, conversation, top=0, temperature=1.0) -> Scored:
        return Scored([-4.0] * len(tokens))


def says(*words):
    left = [*words]
    return lambda prompt, sampling: left.pop(0)


def texts(graph, episode):
    return [graph.nodes[i].text for i in graph.path(episode)]


def test_a_clean_episode_replaces_the_one_that_stumbled():
    answer = says("right", "left", "jump", "right", "left", "right")
    graph = roll(make()(), n=1, environment=lambda: Corridor(3), answer=answer, policy=Reads)
    original, clean = graph.episodes
    assert (original.status, original.error) == ("pruned", "rolled_back")
    assert texts(graph, 0) == ["right", "left", "jump", "right", "left", "right"]
    assert texts(graph, 1) == ["right", "right", "right"] and (clean.status, clean.ret) == ("finished", 1.0)
    assert clean.shared == 1 and clean.decision == {"why": "rollback", "left_out": [1, 2, 4]}
    first, *forced = (graph.nodes[i] for i in graph.path(1))
    assert first.logprobs == [-1.0, -1.0] and "forced" not in first.decision
    for node in forced:
        assert node.logprobs == [-4.0, -4.0] and node.decision["forced"] == len(node.action) == 2
        assert node.prompt_tokens == 0, "nothing is sampled"
    (row,) = graph_rows(graph, lambda node: True)
    assert [p for p, mask in zip(row.logprobs, row.mask, strict=True) if mask] == [-1.0, -1.0, *[-4.0] * 4]
    assert graph.counts["rolled_back"] == 1 and graph.counts["failures_left_out"] == 3
    assert not graph.short and "rollbacks_resampled" not in graph.counts


def test_episodes_without_failures_stay():
    graph = roll(make()(), n=3, answer=lambda prompt, sampling: "right")
    assert [e.status for e in graph.episodes] == ["finished"] * 3 and "rolled_back" not in graph.counts


def test_a_longer_row_of_failures_stays():
    answer = says("left", "jump", "right", "left", "right")
    graph = roll(make(attempts=1)(), n=1, environment=lambda: Corridor(2), answer=answer)
    assert texts(graph, 1) == ["left", "jump", "right", "right"] and graph.counts["failures_left_out"] == 1


class Clocked(Corridor):
    """Says the time, so that a turn made earlier is answered otherwise."""

    def _answer(self, *arguments, **more):
        self._time = getattr(self, "_time", -1) + 1
        step = super()._answer(*arguments, **more)
        return dataclasses.replace(step, text=f"{step.text} on {self._time}")


@pytest.mark.parametrize("environment, then", [(Clocked, "recorded"), (Corridor, "sampled")])
def test_after_another_answer_or_on_request_the_rest_is_sampled(environment, then):
    answer = says("left", "right", "right", "right", "right", "jump", "right")
    graph = roll(make(then=then)(), n=1, environment=environment, answer=answer, policy=Reads)
    assert texts(graph, 0) == ["left", "right", "right", "right"]
    assert texts(graph, 1) == ["right", "right", "jump", "right"], "the first is forced, the others are new"
    assert [node.decision.get("forced", 0) for node in graph.nodes[4:]] == [2, 0, 0, 0]
    assert [node.logprobs[0] for node in graph.nodes[4:]] == [-4.0, -1.0, -1.0, -1.0]
    assert graph.counts.get("rollbacks_resampled", 0) == (then == "recorded")


def test_what_the_shorter_episode_has_room_for_is_sampled():
    answer = says("left", "right", "right", "right")
    graph = roll(make()(), n=1, environment=Corridor, answer=answer, limits=Limits(max_turns=3))
    assert (graph.episodes[0].ret, graph.episodes[1].ret) == (-0.1, 1.0)
    assert [n.decision.get("forced", 0) for n in graph.nodes[3:]] == [2, 2, 0]


class Shifts(Worker):
    """Two agents that take two turns each."""

    async def run(self, episode):
        step = await episode.reset()
        number = 0
        while not step.done:
            context = episode.context("ab"[number // 2 % 2]).observe(step.text)
            step = await episode.act((await episode.generate(context)).text)
            number += 1


def test_a_turn_is_not_put_into_another_agents_mouth():
    answer = says("left", *["right"] * 5)
    graph = roll(make()(), n=1, answer=answer, environment=lambda: Corridor(3), worker=Shifts)
    said = [[(graph.nodes[i].agent, graph.nodes[i].decision.get("forced", 0)) for i in graph.path(e)] for e in (0, 1)]
    assert said == [[("a", 0), ("a", 0), ("b", 0), ("b", 0)], [("a", 2), ("a", 0), ("b", 0)]]
    assert graph.counts["rollbacks_resampled"] == 1


def test_a_clean_episode_that_is_lost_leaves_the_original():
    class Once(Corridor):
        """Breaks under the second world that goes right."""

        worlds = 0

        def step(self, action):
            if action == "right" and self._at == 0:
                Once.worlds += 1
                if Once.worlds == 2:
                    raise RuntimeError("the floor broke")
            return super().step(action)

    answer = says("left", "right", "right")
    graph = roll(make()(), n=1, environment=lambda: Once(2), answer=answer)
    assert [e.status for e in graph.episodes] == ["finished", "failed"] and not graph.short
    assert graph.counts["rollbacks_lost"] == 1 and "rolled_back" not in graph.counts


def test_broken_worlds_cost_their_own_episodes():
    graphs = [roll(make()(), answer=wander, n=4, seed=s, environment=lambda: Trap(4)) for s in range(12)]
    for graph in graphs:
        lost = sum(e.status == "failed" and e.source < 0 for e in graph.episodes)
        assert sum(1 for _ in graph.complete()) == 4 - lost and graph.short == (lost > 0)
    assert any(graph.counts.get("rolled_back") for graph in graphs)


def stumbles(prompt, sampling):
    return random.Random(sampling.seed).choice(["right", "left", "right right"])


@pytest.mark.parametrize("then", ["recorded", "sampled"])
def test_the_same_seed_makes_the_same_tree(then):
    check_repeatable(make(then=then), n=4, answer=stumbles)


def test_budgets():
    check_budgets(make(), n=4)
    graph = roll(make()(), n=4, seed=1, budget=BudgetOptions(leaves=4))
    assert graph.counts["budget_skipped"] > 0 and "rolled_back" not in graph.counts and not graph.short


def test_what_cannot_work_is_refused():
    registered = spec("rollback")
    assert registered.needs_fork and registered.needs_scores
    assert registered.episodes(build_options(registered, {}), 1) == 1
    with pytest.raises(RecipeError, match=r"actor_rollout_ref.rollout.n: .* n >= 1; got 0"):
        registered.episodes(build_options(registered, {}), 0)
    with pytest.raises(RecipeError, match="attempts: must be at least 1, got 0"):
        build_options(registered, {"attempts": 0})
