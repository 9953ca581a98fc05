"""Episodes from states seen before: which states, in which order, how deep, and what is done without any."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from tests.fixtures.corridor import Corridor
from tests.fixtures.sampler_cases import Trap, check_budgets, check_repeatable, roll, spec, wander
from verl_hier.errors import RecipeError
from verl_hier.graph import build_table
from verl_hier.host.options import build_options
from verl_hier.rollout import Sampler
from verl_hier.testing import credit_of
from verl_hier_plugins.samplers.anchored import Anchored, AnchoredOptions, State, known_states


def make(**options):
    return lambda: Anchored(AnchoredOptions(**options))


def straight(prompt: str, sampling) -> str:
    return "right"


def branches(graph):
    return [e for e in graph.episodes if e.source >= 0]


def anchor_of(graph, episode):
    """State that a branch went on from."""
    return graph.nodes[graph.path(episode.id)[episode.shared]].anchor


def test_half_start_and_half_branch_by_default():
    graph = roll(make()(), n=8, seed=1)
    assert not graph.short and [e.source for e in graph.episodes[:4]] == [-1] * 4 and len(branches(graph)) == 4
    for branch in branches(graph):
        assert branch.shared > 0 and anchor_of(graph, branch) in "0123"
        # The same state at the same place of the source, whose next turn it shares no more.
        assert anchor_of(graph, branch) == graph.nodes[graph.path(branch.source)[branch.shared]].anchor
    table = build_table([graph])
    assert (credit_of("gigpo", table) != 0).any()


def test_each_state_has_its_turn_before_any_has_a_second():
    # Straight through a corridor of four: states 1, 2 and 3 lie after the first turn.
    graph = roll(make(starts=1)(), n=8, answer=straight)
    counts = Counter(anchor_of(graph, branch) for branch in branches(graph))
    assert sorted(counts.values()) == [2, 2, 3] and set(counts) == {"1", "2", "3"}
    assert {branch.decision["states"] for branch in branches(graph)} == {3}


def test_uniform_means_any_state_however_often_it_was_met():
    first = Counter()
    for seed in range(90):
        graph = roll(make(starts=2)(), n=3, answer=straight, seed=seed)
        first[anchor_of(graph, graph.episodes[2])] += 1
    assert set(first) == {"1", "2", "3"} and min(first.values()) > 15


def test_the_shallowest_place_of_a_state_is_branched_from():
    def stumbles(prompt, sampling):
        return stumbles.left.pop(0) if stumbles.left else "right"

    # Side by side: the first episode stands still twice before it reaches 1, the second goes there at once.
    stumbles.left = ["left", "right", "left", "right", "right", "right", "right", "right"]
    graph = roll(make(starts=2)(), n=5, answer=stumbles, environment=lambda: Corridor(3))
    places = {anchor_of(graph, branch): (branch.source, branch.shared) for branch in branches(graph)}
    # The start is a state too, where the first episode met it again.
    assert places == {"0": (0, 1), "1": (1, 1), "2": (1, 2)}


class Told(Sampler):
    """Anchored after three starts with invented outcomes."""

    def __init__(self, choose: str, outcomes: list[bool]) -> None:
        self._inner = Anchored(AnchoredOptions(starts=len(outcomes), choose=choose))
        self._outcomes = outcomes

    async def sample(self, rollout):
        run = rollout.run

        async def judged(episodes):
            episodes = list(episodes)
            await run(episodes)
            for episode in episodes:
                if episode.id < len(self._outcomes):
                    episode.record.success = self._outcomes[episode.id]

        rollout.run = judged
        await self._inner.sample(rollout)


class Crossing(Corridor):
    """`up` and `down` lead to places of their own, everything goes on to the end from there."""

    def reset(self, task, seed):
        self._name = "start"
        return self._answer(0.0, True)

    def step(self, action):
        self._at += 1
        self._name = action if self._at == 1 else f"{self._name}+"
        return self._answer(0.0, True, self._at == 2)

    def _answer(self, reward, valid, done=False):
        return dataclasses.replace(super()._answer(reward, valid, done), anchor=self._name)


def by_turns(*words):
    left = list(words)
    return lambda prompt, sampling: left.pop(0) if left else "on"


def first_choice(choose, outcomes, *words):
    graph = roll(Told(choose, outcomes), n=len(words) + 1, environment=Crossing, answer=by_turns(*words))
    return anchor_of(graph, branches(graph)[0])


def test_the_state_that_fewest_turns_started_in():
    assert first_choice("least_visited", [True] * 3, "up", "down", "up") == "down"


@pytest.mark.parametrize(
    "outcomes, choice",
    [
        # up: one of each; down: both won.
        ([True, False, True, True], "up"),
        ([True, True, True, False], "down"),
    ],
)
def test_the_state_whose_success_is_closest_to_a_half(outcomes, choice):
    assert first_choice("uncertain", outcomes, "up", "up", "down", "down") == choice


def test_little_known_is_uncertain():
    once, mixed, sure = State(outcomes=[1.0]), State(outcomes=[1.0, 0.0]), State(outcomes=[1.0] * 4)
    assert mixed.uncertainty == 0.25 and once.uncertainty == pytest.approx(2 / 9)
    assert mixed.uncertainty > once.uncertainty > sure.uncertainty > 0


def test_returns_stand_in_where_the_world_does_not_judge():
    seen = {}

    class Watch(Sampler):
        async def sample(self, rollout):
            episodes = [rollout.start() for _ in range(3)]
            await rollout.run(episodes)
            for episode, ret in zip(episodes, (1.0, 3.0, 2.0), strict=True):
                episode.record.success = None
                rollout.graph.nodes[episode.path[-1]].reward += ret - episode.ret
            seen["states"] = known_states(episodes)

    roll(Watch(), n=3, environment=Crossing, answer=by_turns("up", "down", "up"))
    start, up, down = seen["states"]
    assert (start.outcomes, up.outcomes, down.outcomes) == ([0.0, 1.0, 0.5], [0.0, 0.5], [1.0])
    assert start.place is None and len(start.turns) == 3


def test_later_rounds_know_the_branches():
    graph = roll(make(starts=2, rounds=3)(), n=8, seed=5)
    assert not graph.short and Counter(b.decision["round"] for b in branches(graph)) == {0: 2, 1: 2, 2: 2}
    assert {b.source for b in branches(graph)} - {0, 1}, "no branch of a branch"


def test_branches_start_no_deeper_than_told():
    graph = roll(make(starts=1, max_depth=1)(), n=6, answer=straight)
    assert {b.shared for b in branches(graph)} == {1}


class Nameless(Corridor):
    """A corridor that does not name its states."""

    def _answer(self, *arguments, **more):
        return dataclasses.replace(super()._answer(*arguments, **more), anchor=None)


def test_without_states_all_episodes_start_afresh():
    graph = roll(make()(), n=4, environment=Nameless)
    assert not branches(graph) and not graph.short and graph.counts["fresh_starts"] == 2


def test_a_broken_world_costs_its_own_branch():
    graphs = [roll(make()(), answer=wander, n=4, seed=s, environment=lambda: Trap(4)) for s in range(12)]
    lost = [g for g in graphs if any(e.status == "failed" for e in branches(g))]
    assert lost and all(sum(1 for _ in g.complete()) >= 1 for g in lost)


@pytest.mark.parametrize("choose", ["uniform", "least_visited", "uncertain"])
def test_the_same_seed_makes_the_same_tree(choose):
    check_repeatable(make(choose=choose, rounds=2), n=6)


def test_budgets():
    check_budgets(make(rounds=2), n=4)


def test_what_cannot_work_is_refused():
    registered = spec("anchored")
    assert registered.needs_fork and registered.episodes(build_options(registered, {}), 2) == 2
    with pytest.raises(RecipeError, match=r"actor_rollout_ref.rollout.n: .* n must be at least 5; got 4"):
        registered.episodes(build_options(registered, {"starts": 4}), 4)
    with pytest.raises(RecipeError, match=r"n must be at least 2; got 1"):
        registered.episodes(build_options(registered, {}), 1)
    for name in ("starts", "rounds", "max_depth"):
        with pytest.raises(RecipeError, match=f"{name} must be at least 1, got 0"):
            build_options(registered, {name: 0})
