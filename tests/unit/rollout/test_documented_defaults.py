"""The defaults of recipe lines are those of the page that lists them."""

import pytest

from tests.unit.recipe.documented import differences
from verl_hier.rollout.budget import BudgetOptions
from verl_hier.rollout.entropy import EntropyOptions
from verl_hier.rollout.rewards import RewardOptions


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
