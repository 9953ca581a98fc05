"""The defaults of recipe lines are those of the page that lists them."""

import pytest

from tests.unit.recipe.documented import differences
from verl_hier.recipe.policies import PolicyOptions
from verl_hier.recipe.schema import (
    ColdStartOptions,
    HierConfig,
    PaperOptions,
    RecipeOptions,
    RolloutOptions,
    SandboxOptions,
    StoreOptions,
)


@pytest.mark.parametrize(
    ("block", "options"),
    [
        ("hier", HierConfig),
        ("hier.recipe", RecipeOptions),
        ("hier.rollout", RolloutOptions),
        ("hier.store", StoreOptions),
        ("hier.sandbox", SandboxOptions),
        ("hier.policies.NAME", PolicyOptions),
        ("hier.coldstart", ColdStartOptions),
        ("hier.paper", PaperOptions),
    ],
)
def test_defaults_are_those_of_the_page(block, options):
    assert differences(block, options) == {}
