"""The defaults of recipe lines are those of the page that lists them."""

import pytest

from tests.unit.recipe.documented import differences
from verl_hier.environments.asynchronous import AsyncOptions
from verl_hier.environments.surroundings import ProcessOptions


@pytest.mark.parametrize(
    ("block", "options"),
    [
        ("hier.rollout.asynchronous", AsyncOptions),
        ("hier.rollout.process", ProcessOptions),
    ],
)
def test_defaults_are_those_of_the_page(block, options):
    assert differences(block, options) == {}
