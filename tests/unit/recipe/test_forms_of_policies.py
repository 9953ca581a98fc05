"""The choices of `hier/policies`: every recipe that offers one composes, is checked, and is played as it says."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.fixtures.tiers import spread
from verl_hier.coldstart.tiny import TinyShape, build_tiny
from verl_hier.errors import RecipeError
from verl_hier.graph import RolloutGraph
from verl_hier.recipe import pairs
from verl_hier.recipe.catalogue import find
from verl_hier.recipe.check import check_ready, check_recipe, refusal
from verl_hier.recipe.compose import compose
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.policies import PolicyOptions, full, learning, lines_of_adapters, played, trained
from verl_hier.recipe.runner import Beside, RolloutRunner
from verl_hier.rollout import Limits, Request
from verl_hier.rollout.plain_renderer import PlainRenderer
from verl_hier.rollout.policy import DEFAULT_POLICY
from verl_hier.rollout.roles import Roles
from verl_hier.testing.rollout import CharacterTokenizer, InlinePool, ScriptedPolicy

SHARED = "shared"
SAYS = ("<local>who</local>", "<web>who</web>", "<answer>1</answer>", "search who", "reject", "stop", "1")
"""What scripted policies say, drawn by the seed of the turn, so that every role has turns."""


def offered() -> Iterator[tuple[str, str]]:
    """Each recipe that was tried, with each choice of `hier/policies` that it offers besides `shared`."""
    for name in pairs.tried():
        yield from ((name, form) for form in find(name).policies if form != SHARED)


OFFERED = list(offered())
WHY_NOT = {
    "separate": "stand on the same devices and would take 0.6 + 0.6",
    "adapters": "stand on the same devices and would take 0.6 + 0.6",
    "frozen": "serve it, such as with vLLM, and name its OpenAI-compatible endpoint here",
}
"""What a check says of a choice on GPUs."""


@cache
def composed(name: str, form: str) -> ComposedRecipe:
    return ComposedRecipe.named(name, [f"policies={form}"])


def rolled_out(recipe: ComposedRecipe, step: int) -> RolloutGraph:
    """The first task in a training step, with a scripted policy of its own for each one of the recipe."""
    tokenizer, environment = CharacterTokenizer(), recipe.parts.environment
    # A designer's plan is the name of a role.
    says = (*SAYS, "compute") if recipe.parts.worker.spec.name == "designer_executor" else SAYS

    def scripted() -> ScriptedPolicy:
        return ScriptedPolicy(tokenizer, lambda prompt, sampling: random.Random(sampling.seed).choice(says))

    runner = RolloutRunner(
        recipe,
        PlainRenderer(tokenizer),
        1000,
        Limits(30, 40, 4000),
        beside=lambda: Beside({policy: scripted() for policy in recipe.hier.policies}),
    )
    task = environment.spec.tasks(environment.options, "train")[0]
    request = Request(task, {"uid": "one", "index": 0}, n=16, step=step)
    pool = InlinePool(lambda: environment.spec.factory(environment.options), environment.spec.fork)
    return asyncio.run(runner.roll_out(request, scripted(), pool))


def test_the_recipes_that_papers_ask_for_are_there() -> None:
    assert {("hiersearch_search", "separate"), ("agentflow_search", "frozen"), ("dr_mas_math", "separate")} <= {
        *OFFERED
    }
    forms = ("separate", "adapters")
    assert [form for name, form in OFFERED if name == "at_grpo_team_math"] == [*forms]
    assert {path.stem for path in (pairs.folder() / "hier" / "policies").glob("*.yaml")} == {*pairs.FORMS}


@pytest.mark.parametrize(("name", "form"), spread(5, OFFERED))
def test_a_choice_is_sound_on_a_cpu_and_a_check_says_why_it_is_not_elsewhere(name: str, form: str) -> None:
    assert refusal(name, [f"policies={form}"]) == ""
    why = refusal(name, [f"policies={form}", "size=node"])
    assert WHY_NOT[form] in why
    if servers := why.count("0.6"):
        assert why.endswith(f"set it to {0.9 / servers:g} or less.")
    if form != "frozen":
        smaller = "actor_rollout_ref.rollout.gpu_memory_utilization=0.3"
        assert refusal(name, [f"policies={form}", "size=node", smaller]) == ""
    shared = compose(name)
    assert "policies" not in shared.hier and shared.hier.recipe.policies == SHARED
    apart = compose(name, [f"policies={form}"])
    assert apart.hier.recipe.policies == form
    assert apart.trainer.experiment_name == f"{shared.trainer.experiment_name}_{form}"


def test_a_model_that_never_learns_is_sound_on_gpus_where_it_is_served() -> None:
    served = ["policies=frozen", "size=node", "hier.policies.modules.url=http://localhost:8000/v1"]
    assert refusal("agentflow_search", served) == ""


@pytest.mark.parametrize(("name", "form"), OFFERED)
def test_every_role_is_played_by_its_policy(name: str, form: str) -> None:
    recipe = composed(name, form)
    roles = Roles.of(recipe.parts.worker.spec, recipe.parts.worker.options).levels
    owners = played(recipe.hier.policies, [*roles], 6, recipe.hier.exchange_policies)
    graph = rolled_out(recipe, 6)
    seen = {(node.role, node.policy) for node in graph.nodes}
    assert seen == {(role, owners.get(role, DEFAULT_POLICY)) for role, _ in seen}
    assert {policy for _, policy in seen} == {DEFAULT_POLICY, *recipe.hier.policies}
    trained = {node.policy for node in graph.nodes if node.trained}
    assert trained == {DEFAULT_POLICY, *learning(recipe.hier.policies)}


def test_the_copies_of_cory_learn_in_every_step_and_exchange_their_roles() -> None:
    recipe = composed("cory_search", "separate")
    assert recipe.parts.schedule.spec.name == "joint"
    assert composed("cory_search", SHARED).parts.schedule.spec.name == "agents"
    first, sixth = ({node.role: node.policy for node in rolled_out(recipe, step).nodes} for step in (1, 6))
    assert first == {"pioneer": "default", "observer": "second"}
    assert sixth == {"pioneer": "second", "observer": "default"}


def test_adapters_have_the_rank_of_pettingllms() -> None:
    model = compose("at_grpo_team_math", ["policies=adapters"]).actor_rollout_ref.model
    assert (model.lora_rank, model.lora_alpha, model.lora.merge) == (16, 32, True)


def test_a_model_of_another_size_is_a_line_more(tmp_path: Path) -> None:
    texts = ["what is the last digit of 2 + 3 approve wrong"]
    large, small = (build_tiny(tmp_path / str(hidden), texts, shape=TinyShape(hidden=hidden)) for hidden in (96, 48))
    models = [f"actor_rollout_ref.model.path={large}", f"hier.policies.verifier.model={small}"]
    report = check_recipe(compose("dr_mas_math", ["policies=separate", *models]))
    assert ("policy verifier", f"from {small}, learns, roles verifier") in report.further


def test_a_model_of_another_size_that_is_not_made_yet_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = "hier.policies.verifier.model=runs/coldstart/math_dr_mas_small/model"
    _, missing = check_ready(compose("dr_mas_math", ["policies=separate", model]))
    assert [each.why for each in missing if each.why.startswith("hier.policies")] == [
        "hier.policies.verifier.model: there is no model at 'runs/coldstart/math_dr_mas_small/model' yet; make it with "
        "`verl-hier coldstart dr_mas_math hier.coldstart.name=math_dr_mas_small`, and with hier.coldstart.hidden or "
        "hier.coldstart.layers for another size."
    ]


def test_a_method_without_a_choice_says_which_it_has() -> None:
    with pytest.raises(RecipeError) as refused:
        compose("gigpo_alfworld", ["policies=separate"])
    assert str(refused.value) == (
        "hier/policies: the method 'gigpo' does not say who is played by which model with policies=separate; take "
        "policies=shared, or write a policy for each role in hier.policies."
    )
    with pytest.raises(RecipeError, match=r"there is no 'apart' .* it has adapters, frozen, separate, shared"):
        compose("dr_mas_math", ["policies=apart"])


def test_policies_take_each_others_roles_after_so_many_steps() -> None:
    policies = {"b": PolicyOptions(("x",)), "c": PolicyOptions(("y",), "none")}
    own, other = {"w": DEFAULT_POLICY, "x": "b", "y": "c"}, {"w": "b", "x": DEFAULT_POLICY, "y": "c"}
    for every, steps in ((1, [own, own, other, own, other]), (2, [own, own, own, other, other, own])):
        assert [played(policies, ["w", "x", "y"], step, every) for step in range(len(steps))] == steps
    assert played(policies, ["w", "x", "y"], 7, None) == {"x": "b", "y": "c"}


def test_who_learns_and_who_learns_an_adapter() -> None:
    own = {"actor": {"optim": {"lr": 0.5}}}
    policies = {
        "whole": PolicyOptions(("x",)),
        "part": PolicyOptions(("y",), "adapter", actor_rollout_ref=own),
        "never": PolicyOptions(("z",), "none"),
    }
    assert learning(policies) == ["whole", "part"] and full(policies) == ["whole"]
    assert trained(policies) == {DEFAULT_POLICY, "whole", "part"} and lines_of_adapters(policies) == {"part": own}
