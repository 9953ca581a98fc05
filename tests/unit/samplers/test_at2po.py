"""One tree a task whose least certain turns are sampled again."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.fixtures.sampler_cases import Steady, Trap, check_budgets, check_repeatable, roll, spec, wander
from verl_hier.errors import RecipeError, RolloutError
from verl_hier.host.options import build_options
from verl_hier_plugins.samplers.at2po import AT2POSampler, AT2POSamplerOptions, breadth_first, expansions


def make(**options):
    return lambda: AT2POSampler(AT2POSamplerOptions(**{"chains": 2, "rounds": 2, "turns": 2, **options}))


class Moody(Steady):
    """Log-probs that differ from request to request."""

    async def generate(self, prompt, sampling, conversation):
        answer = await super().generate(prompt, sampling, conversation)
        surprise = random.Random(sampling.seed).random() * 2
        return replace(answer, logprobs=[-surprise] * len(answer.token_ids))


def test_a_tree_is_read_level_by_level():
    assert breadth_first([-1, 0, 0, 2, 1, 3]) == [0, 1, 2, 4, 3, 5]


def test_the_least_certain_turns_are_chosen_and_siblings_cost():
    parent, leaf = [-1, 0, 1, 0, 3, 3], [False, False, True, False, True, True]
    # The task has two children: -0.05. Turns 1 and 3 have one sibling each: 0.45 and 0.95.
    assert expansions(parent, leaf, [0.0, 0.5, 9.0, 1.0, 9.0, 9.0], 3) == [3, 1, 0]
    assert expansions(parent, leaf, [0.0, 0.5, 9.0, 1.0, 9.0, 9.0], 5) == [3, 1, 0, 3, 1]
    # Turn 2 beats its parent only without the penalty of the parent's siblings.
    deep = [-1, 0, 1, 2, 0], [False, False, False, True, True], [0.0, 0.52, 0.5, 0.0, 0.0]
    assert expansions(*deep, 1) == [2] and expansions(*deep, 1, penalty=0.0) == [1]


def test_every_round_samples_the_turns_that_were_least_certain():
    graph = roll(make(chains=3, rounds=1, turns=2)(), n=5, seed=2, policy=Moody)
    assert not graph.short and len(list(graph.complete())) == 5

    def score(episode: int, place: int) -> float:
        """Entropy of a turn of a chain, less 0.05 for each sibling: the first turns are siblings of each other."""
        node = graph.nodes[graph.path(episode)[place]]
        return -sum(node.logprobs) / len(node.logprobs) - (0.1 if place == 0 else 0.0)

    candidates = [(e, place) for e in range(3) for place in range(len(graph.path(e)) - 1)]
    ranked = sorted(candidates, key=lambda at: -score(*at))[:2]
    forks = [(fork.source, fork.shared) for fork in graph.episodes[3:]]
    assert forks == ranked


def test_the_last_turn_of_an_episode_is_not_sampled_again():
    graph = roll(make(rounds=3, turns=4)(), n=14, seed=5, policy=Moody)
    for fork in graph.episodes[2:]:
        assert fork.shared < len(graph.path(fork.source)) - (fork.shared > 0)


def test_surplus_leaves_are_given_up_at_random():
    graph = roll(make(turns=4)(), n=3, seed=1, policy=Moody)
    assert len(list(graph.complete())) == 3 and graph.counts["not_kept"] == 7


def test_random_choice_needs_no_log_probs_to_differ():
    assert not roll(make(choose="random")(), n=6, seed=1).short


def test_without_log_probs_it_says_what_to_set():
    class Silent(Steady):
        async def generate(self, prompt, sampling, conversation):
            return replace(await super().generate(prompt, sampling, conversation), logprobs=[])

    with pytest.raises(RolloutError, match="calculate_log_probs: true"):
        roll(make()(), n=6, policy=Silent)


def test_the_same_seed_makes_the_same_tree_and_budgets_hold():
    check_repeatable(make(), n=6)
    check_budgets(make(), n=6)


def test_a_broken_world_costs_its_own_branch():
    for seed in range(6):
        graph = roll(make()(), answer=wander, n=6, seed=seed, environment=lambda: Trap(4))
        assert len(list(graph.complete())) == sum(e.status != "failed" for e in graph.episodes)


def test_n_fits_the_tree():
    registered = spec("at2po")
    options = build_options(registered, {})
    assert registered.needs_fork and registered.episodes(options, 22) == 22
    with pytest.raises(RecipeError, match=r"actor_rollout_ref.rollout.n: .* between 1 and 22; got 23"):
        registered.episodes(options, 23)
    with pytest.raises(RecipeError, match="chains and turns must be at least 1"):
        build_options(registered, {"turns": 0})
