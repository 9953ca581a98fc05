"""What has to be made or installed on this machine before a sound recipe can run here."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_hier.errors import HierError, RecipeError
from verl_hier.recipe.checks.lengths import shards
from verl_hier.recipe.checks.model import ModelFacts, model_facts
from verl_hier.recipe.checks.prompts import require_fields
from verl_hier.recipe.checks.resources import (
    COPY_BYTES_PER_PARAMETER,
    TRAINED_BYTES_PER_PARAMETER,
    available_bytes,
    expected_bytes,
    plan_of,
)
from verl_hier.recipe.checks.rows import data_files
from verl_hier.recipe.checks.rule import needs_critic, needs_reference
from verl_hier.recipe.checks.tasks import require_tasks
from verl_hier.recipe.checks.world import first_answer, missing_module
from verl_hier.recipe.cluster import joins_cluster
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.policies import PolicyOptions, learning
from verl_hier.sandbox.scripts import choose


@dataclass(frozen=True)
class Missing:
    """One thing that this machine lacks."""

    why: str
    """A sentence that names the recipe line."""
    commands: tuple[str, ...] = ()
    """Commands that bring it, in order; empty where none does."""


def missing_here(recipe: ComposedRecipe, model: ModelFacts, first: Sequence[str]) -> Iterator[Missing]:
    """What this machine lacks, the cheapest to find out first.

    Args:
        recipe: a sound recipe.
        model: its model.
        first: commands that make the model, where it does not exist yet.
    """
    packages = [*_environment(recipe), *_server(recipe)]
    yield from packages
    yield from _gpus(recipe)
    yield from _memory(recipe, model)
    yield from _sandbox(recipe)
    yield from _model(recipe, model, first)
    yield from _models_of_policies(recipe)
    if not packages:
        yield from _data(recipe)


def memory_of(recipe: ComposedRecipe, model: ModelFacts) -> dict[str, int] | None:
    """Bytes that a run on a CPU holds (PSS), by the recipe line that most changes them; None for GPU recipes."""
    config = recipe.config
    if config["trainer"]["device"] != "cpu":
        return None
    plan, several = plan_of(recipe), len(learning(recipe.hier.policies))
    servers = plan.replicas // (1 + several)
    copies = servers + needs_reference(config)
    found = expected_bytes(plan, model.parameters or 0, copies, _critic_of(config) or 0)
    others = sum(
        _bytes_of(policy, recipe, model, servers if policy.train == "adapter" else copies)
        for policy in recipe.hier.policies.values()
    )
    taught = sum(_parameters(teacher.model) for teacher in recipe.hier.teachers.values()) * COPY_BYTES_PER_PARAMETER
    beside = {"hier.policies": others, "hier.teachers": taught}
    return found | {line: size for line, size in beside.items() if size}


def _parameters(model: str) -> int:
    """Parameters of a teacher; 0 where there is no such folder, which its own check says."""
    if model.startswith((".", "/")) and not Path(model).is_dir():
        return 0
    return model_facts({"path": model}, "hier.teachers").parameters or 0


def _bytes_of(policy: PolicyOptions, recipe: ComposedRecipe, model: ModelFacts, copies: int) -> int:
    """Bytes of the weights of a policy of `hier.policies`, and of the optimiser of one that learns."""
    if policy.url is not None:
        return 0
    line = {"path": policy.model} if policy.model else recipe.config["actor_rollout_ref"]["model"]
    parameters = (model if policy.model is None else model_facts(line, "hier.policies")).parameters or 0
    if policy.train == "none":
        # Each rollout worker holds it.
        return parameters * COPY_BYTES_PER_PARAMETER * plan_of(recipe).agent_workers
    if policy.train == "adapter":
        return parameters * copies * COPY_BYTES_PER_PARAMETER
    return parameters * (TRAINED_BYTES_PER_PARAMETER + copies * COPY_BYTES_PER_PARAMETER)


def accelerator_memory_of(recipe: ComposedRecipe, model: ModelFacts) -> dict[str, int] | None:
    """Bytes of weights, gradients and optimiser states that each accelerator holds, by model.

    Activations and the rollout server come on top; what a recipe offloads is counted, since an update brings it back.

    Returns:
        The bytes of `policy`, `critic` and `reference` as far as the recipe has them, and of each policy of
        `hier.policies` by `policy NAME`; None for runs on a CPU and for models whose size is not known.
    """
    config = recipe.config
    if config["trainer"]["device"] == "cpu" or model.parameters is None:
        return None
    critic = _critic_of(config)
    if critic is None:
        return None
    adapter = bool(config["actor_rollout_ref"]["model"].get("lora_rank"))
    found = {
        # The weights under an adapter are not trained, and the policy without it is the reference.
        "policy": model.parameters * (COPY_BYTES_PER_PARAMETER if adapter else TRAINED_BYTES_PER_PARAMETER),
        "critic": critic * (TRAINED_BYTES_PER_PARAMETER + COPY_BYTES_PER_PARAMETER * (recipe.hier.replay is not None)),
        "reference": model.parameters * COPY_BYTES_PER_PARAMETER * (needs_reference(config) and not adapter),
    }
    copies = int(needs_reference(config))
    for name, policy in recipe.hier.policies.items():
        if policy.train == "full":
            found[f"policy {name}"] = _bytes_of(policy, recipe, model, copies)
    return {name: size // shards(recipe) for name, size in found.items() if size}


def _critic_of(config: Mapping[str, Any]) -> int | None:
    """Parameters of the critic: 0 without one, None when nothing tells."""
    return model_facts(config["critic"]["model"], "critic.model").parameters if needs_critic(config) else 0


def _environment(recipe: ComposedRecipe) -> Iterator[Missing]:
    spec, python = recipe.parts.environment.spec, recipe.hier.rollout.process.python
    module = missing_module(spec, python)
    needs = f"{spec.name!r} needs the Python package {module!r}, which"
    if python and shutil.which(Path(python).expanduser()) is None:
        yield Missing(f"hier.rollout.process.python: there is no interpreter {python}; make it, or name another one.")
    elif module and python:
        command = f"{python} -m pip install {module}"
        yield Missing(f"hier.rollout.process.python: {needs} {python} does not have; `{command}`.", (command,))
    elif module:
        command = f"pip install 'verl-hier[{spec.extra}]'" if spec.extra else ""
        other = "install it, or let hier.rollout.process.python name an interpreter that has it"
        cure = f"`{command}` brings it" if command else other
        yield Missing(f"hier.environment.name: {needs} is not installed; {cure}.", (command,) if command else ())


def _server(recipe: ComposedRecipe) -> Iterator[Missing]:
    module = recipe.server.module
    if module and importlib.util.find_spec(module) is None:
        command = f"pip install 'verl-hier[{module}]'"
        yield Missing(
            f"actor_rollout_ref.rollout.name: {module} is not installed here; `{command}`, or run the recipe with "
            "size=cpu.",
            (command,),
        )


def _gpus(recipe: ComposedRecipe) -> Iterator[Missing]:
    trainer = recipe.config["trainer"]
    if trainer["device"] != "cuda" or joins_cluster(recipe.config):
        return
    if trainer["nnodes"] > 1:
        yield Missing(
            f"trainer.nnodes: {trainer['nnodes']} nodes need a Ray cluster; start Ray on each and set "
            "ray_kwargs.ray_init.address: auto.",
            ("ray start --head", "ray start --address=HEAD:6379"),
        )
        return
    import torch

    there = torch.cuda.device_count()
    if there < trainer["n_gpus_per_node"]:
        yield Missing(
            f"trainer.n_gpus_per_node: the recipe asks for {trainer['n_gpus_per_node']} GPUs and this machine has "
            f"{there}; lower it, or run the recipe with size=cpu."
        )


def _memory(recipe: ComposedRecipe, model: ModelFacts) -> Iterator[Missing]:
    needed, free = memory_of(recipe, model) or {}, available_bytes()
    if (whole := sum(needed.values())) > free:
        line = max(needed, key=needed.__getitem__)
        cures = {
            "trainer.n_gpus_per_node": "take fewer processes there and in actor_rollout_ref.rollout.agent.num_workers",
            "hier.rollout.environment_processes": "take fewer of them; each rollout worker starts as many",
        }
        cure = cures.get(line, "take a smaller model")
        yield Missing(
            f"{line}: this plan needs about {_gib(whole)} of memory and {_gib(free)} are free; the most of it, "
            f"{_gib(needed[line])}, follows from this line: {cure}."
        )


def _sandbox(recipe: ComposedRecipe) -> Iterator[Missing]:
    if not joins_cluster(recipe.config):
        try:
            choose(recipe.hier.sandbox.provider, recipe.hier.sandbox.require)
        except RecipeError as error:
            yield Missing(str(error))


def _model(recipe: ComposedRecipe, model: ModelFacts, first: Sequence[str]) -> Iterator[Missing]:
    if model.missing:
        commands = ", ".join(f"`{command}`" for command in first)
        yield Missing(
            f"actor_rollout_ref.model.path: there is no model at {model.path!r} yet; make it with {commands}, or name "
            "another one.",
            tuple(first),
        )
    elif model.local is None and not joins_cluster(recipe.config):
        from verl_hier.verl_facts.hub import require_on_hub

        try:
            require_on_hub(model.path, "actor_rollout_ref.model.path")
        except HierError as error:
            yield Missing(str(error))


def _models_of_policies(recipe: ComposedRecipe) -> Iterator[Missing]:
    """Models of cold starts that policies begin with and that are not made yet, such as one of another size."""
    for name, policy in recipe.hier.policies.items():
        line = f"hier.policies.{name}.model"
        if policy.url is None and policy.model is not None and model_facts({"path": policy.model}, line).missing:
            start = Path(policy.model).parent.name
            command = f"verl-hier coldstart {recipe.hier.recipe.name} hier.coldstart.name={start}"
            yield Missing(
                f"{line}: there is no model at {policy.model!r} yet; make it with `{command}`, and with "
                "hier.coldstart.hidden or hier.coldstart.layers for another size."
            )


def _data(recipe: ComposedRecipe) -> Iterator[Missing]:
    """Make the tasks and reset the environment once, which is the first to need its data; look for data files."""
    try:
        recipe.hier.rollout.process.environ()
    except RecipeError as error:
        yield Missing(str(error))
    for line, file in data_files(recipe):
        if not Path(file).expanduser().is_file():
            yield Missing(f"{line}: there is no file {file}.")
    try:
        require_tasks(recipe)
        answer = first_answer(recipe)
        if answer is not None:
            require_fields(recipe, set(answer.info))
    except RecipeError as error:
        yield Missing(str(error))
    except HierError as error:
        yield Missing(f"hier.environment.name: {error}")


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
