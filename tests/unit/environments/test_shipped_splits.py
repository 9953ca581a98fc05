"""No task of a shipped environment, with the options of its recipes, is in two splits."""

import pytest

from verl_hier.ops.baselines import recipe_for
from verl_hier.recipe import pairs
from verl_hier.testing.environment_spec import check_splits
from verl_hier_plugins.environments.gateway import SPEC
from verl_hier_plugins.environments.gateway.options import GatewayOptions

GENERATES_GAMES = ("textworld",)
SHIPPED = [
    pytest.param(name, marks=pytest.mark.slow if name in GENERATES_GAMES else ())
    for name in sorted({environment for _, environment in pairs.by_name().values()})
]


@pytest.mark.parametrize("name", SHIPPED)
def test_nothing_is_measured_that_was_trained(name: str) -> None:
    part = recipe_for(name, None, [], []).parts.environment
    if part.spec.tasks is not None:
        check_splits(part.spec, part.options)


@pytest.mark.parametrize("sample", ["seeker", "lead"])
def test_all_houses_of_the_gateway(sample) -> None:
    """Also where many tasks are wanted, of which there are only so many."""
    check_splits(SPEC, GatewayOptions(sample=sample, pool=4000, validation=400))
