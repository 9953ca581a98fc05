"""The bytes of a policy of `hier.policies`: none elsewhere, copies of the weights, and the optimiser of what learns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from verl_hier.recipe.checks import machine
from verl_hier.recipe.checks.resources import COPY_BYTES_PER_PARAMETER, TRAINED_BYTES_PER_PARAMETER
from verl_hier.recipe.policies import PolicyOptions

PARAMETERS, OTHER, COPIES, WORKERS = 1000, 70, 3, 2
WEIGHTS = COPY_BYTES_PER_PARAMETER


@pytest.mark.parametrize(
    ("policy", "size"),
    [
        ({"train": "none", "url": "http://somewhere", "model": "m"}, 0),
        ({"train": "none", "model": "other"}, OTHER * WEIGHTS * WORKERS),
        ({"train": "adapter"}, PARAMETERS * WEIGHTS * COPIES),
        ({"train": "full"}, PARAMETERS * (TRAINED_BYTES_PER_PARAMETER + WEIGHTS * COPIES)),
        ({"train": "full", "model": "other"}, OTHER * (TRAINED_BYTES_PER_PARAMETER + WEIGHTS * COPIES)),
    ],
)
def test_the_bytes_of_a_policy(monkeypatch: pytest.MonkeyPatch, policy: dict[str, Any], size: int) -> None:
    sizes = {"base": PARAMETERS, "other": OTHER}
    facts = {name: SimpleNamespace(parameters=size) for name, size in sizes.items()}
    monkeypatch.setattr(machine, "model_facts", lambda line, name: facts[line["path"]])
    monkeypatch.setattr(machine, "plan_of", lambda recipe: SimpleNamespace(agent_workers=WORKERS))
    recipe: Any = SimpleNamespace(config={"actor_rollout_ref": {"model": {"path": "base"}}})
    model: Any = facts["base"]
    assert machine._bytes_of(PolicyOptions(roles=("a",), **policy), recipe, model, COPIES) == size
