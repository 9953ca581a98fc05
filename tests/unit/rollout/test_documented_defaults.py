"""The defaults of recipe lines are those of the page that lists them."""

import inspect
import json

import pytest

from tests.unit.recipe.documented import differences, documented
from verl_hier.rollout import Generation, Limits, Sampling, Scored
from verl_hier.rollout.budget import BudgetOptions
from verl_hier.rollout.entropy import EntropyOptions
from verl_hier.rollout.policy import Policy
from verl_hier.rollout.recorded_policy import RecordedPolicy
from verl_hier.rollout.rewards import RewardOptions
from verl_hier.rollout.task import TaskRollout
from verl_hier.served.policy import ServedPolicy
from verl_hier.served.rollout_server import ServerPolicy
from verl_hier.testing.rollout import ScriptedPolicy


@pytest.mark.parametrize(
    ("block", "options"),
    [
        ("hier.rollout.budget", BudgetOptions),
        ("hier.rollout.entropy", EntropyOptions),
        ("hier.rewards.NAME", RewardOptions),
    ],
)
def test_defaults_are_those_of_the_page(block, options):
    assert differences(block, options) == {}


def test_limits_and_requests_are_those_of_a_recipe_that_says_nothing():
    page = {name: json.loads(documented()[f"hier.rollout.{name}"]) for name in ("max_turns", "max_tokens_per_turn")}
    limits = Limits()
    assert (limits.max_turns, limits.max_tokens_per_turn) == (page["max_turns"], page["max_tokens_per_turn"])
    assert limits.quote_characters == json.loads(documented()["hier.rollout.quote_characters"])
    assert Sampling() == Sampling(1.0, 1.0, -1, page["max_tokens_per_turn"], None, (), 0, ())


def test_an_answer_that_says_nothing_else_is_of_the_first_weights_and_cached_nothing():
    assert Generation([1], [-1.0]) == Generation([1], [-1.0], None, (0, 0), 0, [], [], None)
    assert Scored([-1.0]) == Scored([-1.0], [], (0, 0))


@pytest.mark.parametrize("policy", [Policy, RecordedPolicy, ScriptedPolicy, ServedPolicy, ServerPolicy])
def test_tokens_are_scored_as_they_would_be_sampled_and_alone(policy):
    defaults = {name: each.default for name, each in inspect.signature(policy.score).parameters.items()}
    assert (defaults["top"], defaults["temperature"]) == (0, Sampling().temperature)


def test_a_sampler_that_scores_tokens_is_told_about_these_alone():
    assert inspect.signature(TaskRollout.score).parameters["top"].default == 0
