"""The defaults of recipe lines are those of the page that lists them."""

import pytest

from tests.unit.recipe.documented import differences
from verl_hier.training import options as of


@pytest.mark.parametrize(
    ("block", "options"),
    [
        ("hier.guards", of.GuardOptions),
        ("hier.update", of.UpdateOptions),
        ("hier.update.mini_batch", of.MiniBatchOptions),
        ("hier.refill", of.RefillOptions),
        ("hier.launch_order", of.LaunchOrderOptions),
        ("hier.process_reward", of.ProcessRewardOptions),
        ("hier.replay", of.ReplayOptions),
        ("hier.curriculum", of.CurriculumOptions),
    ],
)
def test_defaults_are_those_of_the_page(block, options):
    assert differences(block, options) == {}
