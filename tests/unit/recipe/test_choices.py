"""Size, model and server are choices of a recipe: short words, what goes together, and the names that recipes had."""

from __future__ import annotations

from pathlib import Path

import pytest

from verl_hier.errors import RecipeError
from verl_hier.recipe.catalogue import find, recipes
from verl_hier.recipe.compose import command, compose

FORMER = [
    line.split(": ") for line in (Path(__file__).parent / "former_names.txt").read_text().splitlines() if ": " in line
]
"""Names of recipes when each held its size, model and server, and the words of today's command."""


def test_short_words_stand_for_groups() -> None:
    short = compose("himac_alfworld", ["size=node", "model=qwen2.5-7b-instruct", "server=sglang"])
    full = compose("himac_alfworld", ["hier/size=node", "hier/model=qwen2.5-7b-instruct", "hier/server=sglang"])
    assert short == full
    assert short.trainer.experiment_name == "himac_alfworld_node_qwen2.5-7b-instruct_sglang"
    assert command("himac_alfworld", ["size=node"])[1:] == ["--config-name", "himac_alfworld", "hier/size=node"]


def test_a_size_brings_its_tasks_prompts_model_and_server() -> None:
    small, node, cluster = (compose("himac_alfworld", [f"size={size}"]) for size in ("cpu", "node", "cluster"))
    assert small == compose("himac_alfworld")
    assert (small.hier.environment.level, node.hier.environment.level) == ("tiny", "room")
    assert "action_tag" in node.hier.worker and "action_tag" not in small.hier.worker
    models = [config.actor_rollout_ref.model.path for config in (small, node, cluster)]
    assert models == [
        "runs/coldstart/alfworld_planner_executor/model",
        "Qwen/Qwen2.5-1.5B-Instruct",
        "Qwen/Qwen2.5-7B-Instruct",
    ]
    assert [config.actor_rollout_ref.rollout.name for config in (small, node)] == ["transformers", "vllm"]
    assert len({config.trainer.default_local_dir for config in (small, node, cluster)}) == 3


@pytest.mark.parametrize(
    ("recipe", "overrides", "sentence"),
    [
        (
            "himac_alfworld",
            ["server=sglang"],
            "hier/server: server=sglang does not go with himac_alfworld at size=cpu; take server=transformers or "
            "server=vllm_cpu, or choose size=node or size=cluster.",
        ),
        (
            "himac_alfworld",
            ["size=node", "model=tiny"],
            "hier/model: model=tiny does not go with himac_alfworld at size=node; take model=qwen2.5-1.5b-instruct or "
            "model=qwen2.5-7b-instruct, or choose size=cpu.",
        ),
        (
            "grpo_frozenlake",
            ["hier/size=node"],
            "hier/size: the recipe grpo_frozenlake is not offered for size=node; it has size=cpu (`verl-hier recipes` "
            "shows what each recipe offers).",
        ),
        (
            "latr_alfworld",
            ["size=node"],
            "hier/server: server=vllm does not go with latr_alfworld at size=node; take server=vllm_topk.",
        ),
        (
            "himac_alfworld",
            ["model=qwen"],
            "recipe 'himac_alfworld' does not compose: hier/model: there is no 'qwen'; it has qwen2.5-1.5b-instruct, "
            "qwen2.5-7b-instruct, smollm2-135m, tiny.",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(recipe: str, overrides: list[str], sentence: str) -> None:
    with pytest.raises(RecipeError) as refusal:
        compose(recipe, overrides)
    assert str(refusal.value) == sentence


def test_choices_in_a_recipe_of_the_users_own_are_checked_too(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("defaults: [ppo_trainer, hier/base, hier/size: cpu, hier/server: sglang, _self_]\n")
    with pytest.raises(RecipeError, match="server=sglang does not go with mine at size=cpu"):
        compose(str(file))


def test_there_are_names_to_try() -> None:
    assert len(FORMER) == 107


@pytest.mark.parametrize(("former", "words"), FORMER, ids=[name for name, _ in FORMER])
def test_a_former_name_says_the_new_command(former: str, words: str) -> None:
    if former == words:
        assert find(former).name == former
        return
    with pytest.raises(RecipeError) as refusal:
        find(former)
    recipe, *choices = words.split()
    assert str(refusal.value) == f"the recipe is now {recipe}: verl-hier train {words}"
    if choices:
        assert any(set(choices) <= set(offered) for offered in find(recipe).combinations())


def test_a_name_that_never_was_gets_the_nearest() -> None:
    with pytest.raises(RecipeError, match="did you mean 'himac_alfworld'"):
        find("himac_alfword")
    assert all(find(recipe.name) == recipe for recipe in recipes())
