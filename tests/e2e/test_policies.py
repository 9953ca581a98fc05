"""Roles with policies of their own through stock verl: what each learns and leaves alone, and how it is resumed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.e2e.test_critic import AGENTS
from tests.e2e.test_himac import check_the_same
from tests.fixtures.byte_model import write_byte_model
from tests.fixtures.chat_endpoint import Endpoint
from tests.fixtures.trainer import Run, Trainer
from verl_hier.graph import Node, RolloutGraph, read_graphs
from verl_hier.host.servers import loader_of
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.rollout import Sampling

pytestmark = pytest.mark.slow

STEPS = 3
ROLES = ("reasoner", "actor")
RECIPE = """
defaults: [ppo_trainer, hier/base, hier/size/cpu, _self_]
hier:
  plugins: {{probe: true}}
  environment: {{name: bytes, steps: 1}}
  worker: {worker}
  sampler: {{name: independent}}
  estimator: {{name: grpo, group_by: [group, role]}}
  schedule: {schedule}
  rollout: {{template: plain, max_tokens_per_turn: 24, environment_processes: 1}}
  policies: {policies}
actor_rollout_ref:
  rollout: {{n: 4, engine_kwargs: {{transformers: {{deterministic: true}}}}}}
  actor: {{ppo_mini_batch_size: 4, use_kl_loss: true, kl_loss_coef: 0.01, optim: {{lr: 1e-3}}}}
critic: {{enable: false}}
data: {{train_batch_size: 4, max_prompt_length: 64, max_response_length: 192, shuffle: false}}
trainer:
  experiment_name: policies_bytes
  total_training_steps: {steps}
  test_freq: -1
  save_freq: 1
  logger: [console, file]
"""


def write_recipe(probes: Path, policies: dict[str, Any], name: str, steps: int = STEPS, **parts: Any) -> str:
    """Put a recipe with these policies, and with other parts than its own, beside the probes; returns its name."""
    blocks = {"worker": AGENTS, "schedule": {"name": "joint"}, **parts, "policies": policies}
    text = RECIPE.format(steps=steps, **{kind: json.dumps(block) for kind, block in blocks.items()})
    (probes / f"{name}.yaml").write_text(text)
    return name


def saved_parts(folder: Path, policy: str, step: int) -> list[Any]:
    """Model and optimiser of a policy in a checkpoint, as plain tensors by name."""
    of = "actor" if policy == "default" else f"policies/{policy}/actor"
    place = folder / f"checkpoints/global_step_{step}" / of
    kinds = ("model", "optim")
    return [torch.load(place / f"{kind}_world_size_1_rank_0.pt", weights_only=False) for kind in kinds]


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Every leaf of a checkpoint by its dotted name."""
    if isinstance(value, dict):
        return {leaf: at for key, below in value.items() for leaf, at in flat(below, f"{name}.{key}").items()}
    if isinstance(value, list | tuple):
        return {leaf: at for key, below in enumerate(value) for leaf, at in flat(below, f"{name}.{key}").items()}
    return {name: value.to_local() if hasattr(value, "to_local") else value}


def check_equal(one: list[Any], two: list[Any]) -> None:
    for left, right in zip(map(flat, one), map(flat, two), strict=True):
        assert left.keys() == right.keys() and len(left) > 10
        for name, value in left.items():
            same = torch.equal(value, right[name]) if isinstance(value, torch.Tensor) else value == right[name]
            assert same, name


@pytest.fixture(scope="module")
def two(byte_model: Path, probes: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """Three steps of two policies that begin alike, the actor's own."""
    folder = tmp_path_factory.mktemp("policies")
    train = Trainer(folder, byte_model, probes)
    name = write_recipe(probes, {"second": {"roles": ["actor"]}}, "two_policies")
    return train(name, [f"hier.store.path={folder}/run/graphs"]), folder / "run"


def test_two_policies_learn_their_own_roles(two: tuple[Run, Path]) -> None:
    run, folder = two
    steps = run.trained_steps()
    assert len(steps) == STEPS
    for step in steps:
        assert step["actor/grad_norm"] > 0 and step["policy/second/actor/grad_norm"] > 0
        # What each server generated is what its trainer finds likely.
        assert max(step[f"hier/logprob_difference/{role}"] for role in ROLES) < 1e-4
        assert step["actor/kl_loss"] >= 0 and step["policy/second/actor/kl_loss"] >= 0
        assert step["hier/rows/trained"] > step["policy/second/hier/rows/trained"] > 0
    for graph in read_graphs(folder / "graphs" / "step_000001"):
        assert {(node.role, node.policy) for node in graph.nodes} == {("reasoner", "default"), ("actor", "second")}
        assert all(node.trained for node in graph.nodes)
    first, second = (flat(saved_parts(folder, policy, STEPS)[0]) for policy in ("default", "second"))
    assert any(not torch.equal(first[name], second[name]) for name in first)


def test_a_resumed_run_of_two_policies_is_the_run_in_one_go(two: tuple[Run, Path], train: Trainer) -> None:
    _, folder = two
    resume = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={folder}/checkpoints/global_step_1"]
    assert len(train("two_policies", resume, "resumed").trained_steps()) == STEPS - 1
    for policy in ("default", "second"):
        check_equal(*(saved_parts(at, policy, STEPS) for at in (folder, train.folder / "resumed")))


ADAPTERS = ["actor_rollout_ref.model.lora_rank=4", "actor_rollout_ref.model.lora.merge=true"]


@pytest.fixture(scope="module")
def adapters(byte_model: Path, probes: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """Three steps of two policies that are adapters on one model, and greedy rollouts of what they have become."""
    folder = tmp_path_factory.mktemp("adapters")
    name = write_recipe(probes, {"second": {"roles": ["actor"], "train": "adapter"}}, "two_adapters")
    greedy = ["trainer.test_freq=3", "actor_rollout_ref.rollout.val_kwargs.do_sample=false"]
    stored = [f"hier.store.path={folder}/run/graphs", "hier.store.validation=true"]
    run = Trainer(folder, byte_model, probes)(name, [*ADAPTERS, *greedy, *stored])
    return run, folder / "run"


def test_each_role_learns_an_adapter_on_one_model(adapters: tuple[Run, Path], byte_model: Path) -> None:
    run, folder = adapters
    steps = run.trained_steps()
    assert len(steps) == STEPS
    for step in steps:
        assert step["actor/grad_norm"] > 0 and step["policy/second/actor/grad_norm"] > 0
        # The weights are served in bfloat16.
        assert max(step[f"hier/logprob_difference/{role}"] for role in ROLES) < 1e-2
    assert steps[-1]["actor/kl_loss"] > 0 and steps[-1]["policy/second/actor/kl_loss"] > 0
    first, second = (saved_parts(folder, policy, STEPS)[0] for policy in ("default", "second"))
    for tensor, value in second.items():
        assert not torch.equal(value.to_local(), first[tensor.replace(".second.", ".default.")].to_local())
    start = AutoModelForCausalLM.from_pretrained(byte_model).state_dict()
    below = {name: value.to_local() for name, value in first.items() if "lora_" not in name}
    assert below and all(torch.equal(value, start[plain(name)]) for name, value in below.items())


def test_the_saved_policies_say_what_the_servers_of_the_run_said(adapters: tuple[Run, Path]) -> None:
    """The validation after the last step was greedy; each turn is generated again by the model of the checkpoint."""
    run, folder = adapters
    assert run.code == 0
    recipe = ComposedRecipe.named("grpo_sokoban", ["size=cpu"])
    load, saved = loader_of(recipe.host, recipe.config), folder / f"checkpoints/global_step_{STEPS}"
    places = {"default": saved / "actor/huggingface", "second": saved / "policies/second/actor/huggingface"}
    policies = {name: load(place) for name, place in places.items()}
    seen = set()
    for graph in read_graphs(folder / f"graphs/validation/step_{STEPS:06}"):
        for node in graph.nodes[:8]:
            prompt = [token for at in contexts_of(graph, node) for token in (*at.observation, *at.action)]
            prompt = prompt[: len(prompt) - len(node.action)]
            greedy = Sampling(0.0, 1.0, -1, max_tokens=len(node.action), stop_tokens=(0,))
            said = asyncio.run(policies[node.policy].generate(prompt, greedy, "again"))
            assert said.token_ids == node.action, node
            seen.add(node.policy)
    assert seen == {*policies}


def contexts_of(graph: RolloutGraph, node: Node) -> list[Node]:
    """The turns of a node's context, from the first one to the node itself."""
    before = [] if node.context < 0 else contexts_of(graph, graph.nodes[node.context])
    return [*before, node]


@pytest.mark.long
def test_a_resumed_run_of_adapters_is_the_run_in_one_go(adapters: tuple[Run, Path], train: Trainer) -> None:
    _, folder = adapters
    resume = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={folder}/checkpoints/global_step_1"]
    greedy = ["trainer.test_freq=3", "actor_rollout_ref.rollout.val_kwargs.do_sample=false"]
    assert len(train("two_adapters", [*ADAPTERS, *greedy, *resume], "resumed").trained_steps()) == STEPS - 1
    for policy in ("default", "second"):
        check_equal(*(saved_parts(at, policy, STEPS) for at in (folder, train.folder / "resumed")))


@pytest.mark.long
def test_exchanged_names_of_adapters_exchange_what_is_learned(
    adapters: tuple[Run, Path], train: Trainer, probes: Path
) -> None:
    run, folder = adapters
    name = write_recipe(probes, {"second": {"roles": ["reasoner"], "train": "adapter"}}, "exchanged_adapters")
    exchanged = train(name, ADAPTERS).trained_steps()
    for here, there in zip(run.trained_steps(), exchanged, strict=True):
        for metric in ("actor/pg_loss", "actor/kl_loss", "actor/grad_norm", "actor/entropy"):
            assert here[metric] == there[f"policy/second/{metric}"], metric
            assert there[metric] == here[f"policy/second/{metric}"], metric
    for mine, theirs in (("default", "second"), ("second", "default")):
        one, two = (saved_adapter(*of) for of in ((folder, mine), (train.folder / "run", theirs)))
        check_equal(one, two)


def saved_adapter(folder: Path, policy: str) -> list[Any]:
    """The adapter of a policy without its name, and its optimiser."""
    model, optimiser = saved_parts(folder, policy, STEPS)
    return [{name.replace(f".{policy}.", "."): model[name] for name in model if "lora_" in name}, optimiser]


@pytest.mark.long
def test_one_server_keeps_the_adapters_of_all_policies(train: Trainer, probes: Path) -> None:
    """Not merged, they are served in the type that they are trained in."""
    name = write_recipe(probes, {"second": {"roles": ["actor"], "train": "adapter"}}, "adapters_apart")
    steps = train(name, ["actor_rollout_ref.model.lora_rank=4"]).trained_steps()
    assert len(steps) == STEPS
    for step in steps:
        assert step["actor/grad_norm"] > 0 and step["policy/second/actor/grad_norm"] > 0
        assert max(step[f"hier/logprob_difference/{role}"] for role in ROLES) < 1e-4


@pytest.mark.long
@pytest.mark.parametrize("how", ["full", "adapter"])
def test_a_schedule_that_trains_one_policy_alone_leaves_the_other_as_it_was(
    train: Trainer, probes: Path, how: str
) -> None:
    policies = {"second": {"roles": ["actor"], "train": how}}
    name = write_recipe(probes, policies, f"in_turns_{how}", schedule={"name": "alternating"})
    run = train(name, ADAPTERS if how == "adapter" else [])
    assert run.code == 0, run.log[-5000:]
    steps = [step for step in run.steps if "hier/rows/trained" in step]
    learned = [{"actor/grad_norm", "policy/second/actor/grad_norm"} & step.keys() for step in steps]
    assert learned == [{"actor/grad_norm"}, {"policy/second/actor/grad_norm"}, {"actor/grad_norm"}]
    for policy, idle in (("default", (1, 2)), ("second", (2, 3))):
        states = [flat(saved_parts(train.folder / "run", policy, step)) for step in range(1, STEPS + 1)]
        for step, (before, after) in enumerate(pairwise(states), 1):
            same = all(torch.equal(before[at], after[at]) for at in before if isinstance(before[at], torch.Tensor))
            assert same == ((step, step + 1) == idle), (policy, step)


def plain(tensor: str) -> str:
    """The name of a weight below an adapter in the model without adapters."""
    return tensor.removeprefix("base_model.model.").replace(".base_layer", "")


KILLED = {
    "weights": ({"second": {"roles": ["actor"]}}, {}, ["+hier.exchange_policies=2"]),
    "adapters": ({"second": {"roles": ["actor"], "train": "adapter"}}, {}, ADAPTERS),
    "opponents": (
        {"second": {"roles": ["then"]}},
        {
            "worker": {
                "name": "self_play",
                "seats": {"now": {}, "then": {"by": "past"}},
                "prompt": "x:{instruction}",
                "observation_prompt": "x:",
            },
            "schedule": {"name": "opponents", "folder": "${trainer.default_local_dir}", "share": 0.5},
        },
        ["hier.environment.steps=3"],
    ),
}
"""Policies beside the first one, the other parts of the recipe, and its further lines."""


@pytest.mark.long
@pytest.mark.parametrize("kind", KILLED)
def test_killed_at_a_random_step_every_policy_goes_on_bit_by_bit(train: Trainer, probes: Path, kind: str) -> None:
    policies, parts, lines = KILLED[kind]
    name, steps = write_recipe(probes, policies, f"killed_{kind}", 5, **parts), 5

    def settings(of: str) -> list[str]:
        return [*lines, f"hier.store.path={train.folder / of}/graphs"]

    whole = train(name, settings("whole"), "whole")
    assert len(whole.trained_steps()) == steps
    killed = train(name, settings("parts"), "parts", watch=train.kill_after(random.randrange(1, steps - 1), "parts"))
    assert killed.code == 137, killed.log[-3000:]
    saved = int((train.folder / "parts/checkpoints/latest_checkpointed_iteration.txt").read_text())
    resumed = train(name, settings("parts"), "parts").trained_steps()
    check_the_same((whole, train.folder / "whole"), resumed, train.folder / "parts", saved, steps)
    for step in range(saved + 1, steps + 1):
        for policy in ("default", "second"):
            check_equal(*(saved_parts(train.folder / of, policy, step) for of in ("whole", "parts")))
        one, two = (train.folder / of / f"checkpoints/global_step_{step}/hier.json" for of in ("whole", "parts"))
        assert one.read_text() == two.read_text()
    if kind == "weights":
        for step in range(1, steps + 1):
            graphs = read_graphs(train.folder / f"whole/graphs/step_{step:06}")
            owners = ("default", "second") if step in (1, 2, 5) else ("second", "default")
            assert {(node.role, node.policy) for graph in graphs for node in graph.nodes} == {*zip(ROLES, owners)}
    if kind == "opponents":
        graphs = [
            graph
            for step in range(2, steps + 1)
            for graph in read_graphs(train.folder / f"parts/graphs/step_{step:06}")
        ]
        seen = {(node.role, node.policy.partition(":")[0], node.trained) for graph in graphs for node in graph.nodes}
        assert seen == {("now", "default", True), ("then", "second", True), ("then", "saved", False)}


@pytest.mark.long
def test_a_run_without_the_policies_of_its_checkpoint_is_refused(two: tuple[Run, Path], train: Trainer) -> None:
    _, folder = two
    resume = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={folder}/checkpoints/global_step_1"]
    refused = train("two_policies", [*resume, "~hier.policies"], "without")
    assert refused.code and "there is second (train: full) in" in refused.log


@pytest.mark.long
def test_exchanged_names_exchange_what_is_learned(two: tuple[Run, Path], train: Trainer, probes: Path) -> None:
    run, folder = two
    name = write_recipe(probes, {"second": {"roles": ["reasoner"]}}, "exchanged")
    exchanged = train(name, []).trained_steps()
    for here, there in zip(run.trained_steps(), exchanged, strict=True):
        for metric in ("actor/pg_loss", "actor/kl_loss", "actor/grad_norm", "actor/entropy"):
            assert here[metric] == there[f"policy/second/{metric}"], metric
            assert there[metric] == here[f"policy/second/{metric}"], metric
    for mine, theirs in (("default", "second"), ("second", "default")):
        check_equal(saved_parts(folder, mine, STEPS), saved_parts(train.folder / "run", theirs, STEPS))


@pytest.mark.long
@pytest.mark.parametrize("lines", [[], ADAPTERS], ids=["full", "adapter"])
def test_one_policy_declared_is_none_declared(train: Trainer, probes: Path, lines: list[str]) -> None:
    declared = {"none": {}, "one": {"default": {"roles": [*ROLES]}}}
    none, one = (
        train(write_recipe(probes, policies, f"{name}_declared", 2), lines, name).trained_steps()
        for name, policies in declared.items()
    )
    left_out = ("timing", "perf/", "hier/server", "hier/time/")
    for here, there in zip(none, one, strict=True):
        names = {name for name in here if not any(part in name for part in left_out)}
        assert names == {name for name in there if not any(part in name for part in left_out)}
        assert {name: here[name] for name in names} == {name: there[name] for name in names}
    check_equal(*(saved_parts(train.folder / at, "default", 2) for at in ("none", "one")))


ELSEWHERE = {
    "on two ranks": ["trainer.n_gpus_per_node=2"],
    "colocated and asynchronous": ["trainer.v1.trainer_mode=hier_colocate_async", "data.gen_batch_size=1"],
}


@pytest.mark.long
@pytest.mark.parametrize("how", ["full", "adapter"])
@pytest.mark.parametrize("where", ELSEWHERE)
def test_two_policies_elsewhere(train: Trainer, probes: Path, how: str, where: str) -> None:
    name = write_recipe(probes, {"second": {"roles": ["actor"], "train": how}}, "elsewhere", 2)
    lines = [*ELSEWHERE[where], *(ADAPTERS if how == "adapter" else []), "trainer.save_freq=2"]
    steps = train(name, lines, f"{how} {where}".replace(" ", "_")).trained_steps()
    assert len(steps) == 2
    for step in steps:
        assert step["actor/grad_norm"] > 0 and step["policy/second/actor/grad_norm"] > 0
        # An asynchronous run trains turns of the weights before too.
        if where == "on two ranks":
            assert max(step[f"hier/logprob_difference/{role}"] for role in ROLES) < (1e-4 if how == "full" else 1e-2)


@pytest.mark.long
def test_a_frozen_model_and_an_endpoint_play_roles(train: Trainer, probes: Path, tmp_path: Path) -> None:
    frozen = write_byte_model(tmp_path / "model", hidden=32, seed=1)
    before = digest(frozen)
    policies = {"judge": {"roles": ["reasoner"], "train": "none", "model": str(frozen)}}
    schedule = {"name": "joint", "roles": ["actor"]}
    name = write_recipe(probes, policies, "frozen_role", 1, schedule=schedule)
    train(name, [f"hier.store.path={tmp_path}/graphs"], "frozen").trained_steps()
    graphs = list(read_graphs(tmp_path / "graphs" / "step_000001"))
    trained = {(node.policy, node.trained) for graph in graphs for node in graph.nodes}
    assert trained == {("judge", False), ("default", True)}
    assert digest(frozen) == before and not (train.folder / "frozen/checkpoints/global_step_1/policies").exists()
    with Endpoint(lambda request: "ab") as served:
        policies = {"helper": {"roles": ["reasoner"], "train": "none", "url": served.url, "model": "m"}}
        name = write_recipe(probes, policies, "served_role", 1)
        train(name, [f"hier.store.path={tmp_path}/served"], "served").trained_steps()
        nodes = [n for g in read_graphs(tmp_path / "served" / "step_000001") for n in g.nodes if n.policy == "helper"]
        assert nodes and all(node.text == "ab" and not node.trained for node in nodes)
        assert len(served.requests) == len(nodes)


def digest(folder: Path) -> str:
    files = sorted(folder.glob("*.safetensors"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
