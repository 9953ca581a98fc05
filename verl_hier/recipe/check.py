"""Everything that can be refused before a process starts, and a report of what would run.

The questions go from cheap to dear: package metadata, the hier block, plugins, parts, sizes, files, memory, and verl's
own validation last, which is the first to import verl. The first answer that is no is raised as one sentence.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_hier.compat.servers.table import rollout_server
from verl_hier.compat.versions import require_supported
from verl_hier.errors import RecipeError
from verl_hier.recipe.checks.model import ModelFacts, cold_start, has_chat_template, model_facts
from verl_hier.recipe.checks.parts import check_curriculum, check_needs, check_source, check_tasks, needs_critic
from verl_hier.recipe.checks.resources import Sizes, check_memory, check_resources, lower_bound
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.parts import Parts
from verl_hier.recipe.rewards import check_rewards
from verl_hier.recipe.schema import HierConfig


@dataclass(frozen=True)
class Report:
    """What would run.

    Attributes:
        parts: the five parts with their options.
        plugins: loaded plugins.
        model: what is known of the policy's model.
        sizes: devices, processes, tasks, episodes and optimiser steps.
        trainer, server: trainer mode and rollout server.
        memory: bytes that a CPU run takes at least, None for GPU recipes.
        notes: what could not be checked here, or deserves a thought.
        first: the commands that make the model, where it is the one of the cold start and does not exist yet.
    """

    parts: Parts
    plugins: tuple[str, ...]
    model: ModelFacts
    sizes: Sizes
    trainer: str
    server: str
    memory: int | None
    notes: tuple[str, ...]
    first: tuple[str, ...] = ()

    def lines(self) -> list[tuple[str, str]]:
        """(what, how much) for printing."""
        sizes, plan = self.sizes, self.sizes.plan
        rows: list[tuple[str, str]] = []
        rows += [(kind, f"{part.spec.name}  {_options(part.options)}".rstrip()) for kind, part in self.parts.items()]
        rows += [
            ("model", f"{self.model.path} ({'to be made first' if self.model.missing else self.model.size})"),
            ("trainer", f"{self.trainer}, {sizes.devices} device(s), {sizes.data_parallel} data-parallel"),
            ("rollout", f"{self.server}, {plan.replicas} replica(s), {plan.agent_workers} rollout worker(s)"),
            ("a step", f"{sizes.tasks} tasks x {sizes.episodes} episodes, {sizes.optimiser_steps} optimiser step(s)"),
            ("longest row", f"{sizes.longest_row} tokens"),
            (
                "processes",
                f"{plan.ranks + plan.replicas + plan.services} of Ray, {plan.environment_processes} of worlds",
            ),
        ]
        if self.memory is not None:
            rows.append(("memory", f"at least {self.memory / 2**30:.1f} GiB"))
        return rows


def check_recipe(config: Any, *, offline: bool = True, command: str | None = None) -> Report:
    """Refuse what cannot run.

    Args:
        config: a composed recipe, an OmegaConf `DictConfig` or a plain mapping.
        offline: only ask whether the recipe is sound; False also asks whether this machine can run it now, whether its
            model is there and whether its tasks can be made.
        command: the recipe and its overrides as on the command line, for the commands that a user is told to run; None
            takes the recipe's name.

    Raises:
        RecipeError: when the recipe has to change.
        PluginError: when a plugin it lists cannot be loaded.
        HierError: when the installed verl is outside the tested range.
    """
    require_supported()
    plain = _plain(config)
    recipe = ComposedRecipe.of(plain)
    hier, host, parts = recipe.hier, recipe.host, recipe.parts
    episodes = check_needs(plain, hier, parts, host)
    check_source(plain, parts.environment)
    check_rewards(recipe.rewards, parts.worker)
    sizes = check_resources(plain, hier, episodes)
    model = model_facts(plain["actor_rollout_ref"]["model"], "actor_rollout_ref.model")
    _check_template(hier, model)
    first = cold_start(command or hier.recipe.name, hier, parts) if model.missing else ()
    notes = _notes(plain, parts)
    memory = _memory(plain, sizes, model)
    if not offline:
        _check_model(model, first)
        check_machine(plain)
        _check_hub(plain, model)
        check_tasks(plain, parts.environment)
        check_curriculum(plain, hier, parts.environment)
    notes += _validate(plain)
    return Report(
        parts=parts,
        plugins=host.plugins,
        model=model,
        sizes=sizes,
        trainer=plain["trainer"]["v1"]["trainer_mode"],
        server=plain["actor_rollout_ref"]["rollout"]["name"],
        memory=memory,
        notes=tuple(notes),
        first=first,
    )


def check_machine(config: Mapping[str, Any]) -> None:
    """Refuse a recipe that this machine cannot run: its rollout engine or its GPUs are missing."""
    module = rollout_server(str(config["actor_rollout_ref"]["rollout"]["name"])).module
    if module and importlib.util.find_spec(module) is None:
        raise RecipeError(
            f"actor_rollout_ref.rollout.name: {module} is not installed here; `pip install 'verl-hier[{module}]'`, "
            "or run one of the *_cpu recipes."
        )
    trainer = config["trainer"]
    if trainer["device"] == "cuda" and not _remote(config):
        _check_gpus(trainer)


def _check_gpus(trainer: Mapping[str, Any]) -> None:
    import torch

    if trainer["nnodes"] > 1:
        raise RecipeError(
            f"trainer.nnodes: {trainer['nnodes']} nodes need a Ray cluster; start Ray on each and set "
            "ray_kwargs.ray_init.address: auto."
        )
    there = torch.cuda.device_count()
    if there < trainer["n_gpus_per_node"]:
        raise RecipeError(
            f"trainer.n_gpus_per_node: the recipe asks for {trainer['n_gpus_per_node']} GPUs and this machine has "
            f"{there}; "
            "lower it, or run one of the *_cpu recipes."
        )


def _check_model(model: ModelFacts, first: Sequence[str]) -> None:
    if model.missing:
        commands = ", ".join(f"`{command}`" for command in first)
        raise RecipeError(
            f"actor_rollout_ref.model.path: there is no model at {model.path!r} yet; make it with {commands}, or name "
            "another one."
        )


def _check_hub(config: Mapping[str, Any], model: ModelFacts) -> None:
    """Refuse a model that cannot be downloaded; a cluster may have what this machine has not."""
    if model.local is None and not model.missing and not _remote(config):
        from verl_hier.compat.hub import require_on_hub

        require_on_hub(model.path, "actor_rollout_ref.model.path")


def _remote(config: Mapping[str, Any]) -> bool:
    return bool(config["ray_kwargs"]["ray_init"].get("address") or os.environ.get("RAY_ADDRESS"))


def _check_template(hier: HierConfig, model: ModelFacts) -> None:
    if hier.rollout.template == "chat" and not has_chat_template(model):
        raise RecipeError(
            f"hier.rollout.template: the tokenizer of {model.path!r} has no chat template; set it to `plain`, or add a "
            "chat_template to the tokenizer."
        )


def _memory(config: Mapping[str, Any], sizes: Sizes, model: ModelFacts) -> int | None:
    if config["trainer"]["device"] != "cpu":
        return None
    actor, algorithm = config["actor_rollout_ref"]["actor"], config["algorithm"]
    reference = bool(actor.get("use_kl_loss") or algorithm.get("use_kl_in_reward"))
    critic = 0
    if needs_critic(config):
        critic = model_facts(config["critic"]["model"], "critic.model").parameters or 0
    needed = lower_bound(sizes.plan, model.parameters or 0, sizes.plan.replicas + reference, critic)
    check_memory(needed, config)
    return needed


def _notes(config: Mapping[str, Any], parts: Parts) -> list[str]:
    notes: list[str] = []
    tasks, mini = config["data"]["train_batch_size"], config["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"]
    if tasks % mini:
        notes.append(
            f"actor_rollout_ref.actor.ppo_mini_batch_size = {mini} does not divide data.train_batch_size = {tasks}; "
            f"the step is cut into {max(1, tasks // mini)} equal part(s)."
        )
    module = rollout_server(str(config["actor_rollout_ref"]["rollout"]["name"])).module
    if module and importlib.util.find_spec(module) is None:
        notes.append(
            f"{module} is not installed on this machine; `pip install 'verl-hier[{module}]'` where the recipe runs."
        )
    if needs_critic(config) and not parts.estimator.spec.needs_critic:
        notes.append(f"a critic is trained, but estimator {parts.estimator.spec.name!r} does not read its values.")
    return notes


def _validate(config: Mapping[str, Any]) -> list[str]:
    from omegaconf import OmegaConf

    from verl_hier.compat.validation import validate

    return validate(OmegaConf.create(dict(config)))


def _plain(config: Any) -> dict[str, Any]:
    """Plain containers with interpolations resolved."""
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if not isinstance(config, DictConfig):
        return dict(config)
    try:
        plain = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise RecipeError(f"the recipe does not resolve: {str(error).splitlines()[0]}.") from error
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _options(options: Any) -> str:
    """The options that differ from their defaults."""
    from dataclasses import MISSING, fields

    shown = []
    for field in fields(options):
        value = getattr(options, field.name)
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if value != default:
            text = str(value).replace("\n", " ")
            shown.append(f"{field.name}={text if len(text) <= 40 else text[:37] + '…'}")
    return ", ".join(shown)
