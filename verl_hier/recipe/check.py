"""Everything that can be refused before a process starts, and a report of what would run.

The questions go from cheap to dear: package metadata, the hier block, plugins, the rules of `recipe.checks`, files, and
verl's own validation last. The first answer that is no is raised as one sentence. What is only missing on this machine
comes after that, where it is asked for.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_hier.errors import HierError, RecipeError
from verl_hier.recipe.checks import sampling
from verl_hier.recipe.checks.machine import Missing, accelerator_memory_of, memory_of, missing_here
from verl_hier.recipe.checks.model import ModelFacts, has_chat_template, model_facts
from verl_hier.recipe.checks.resources import Sizes, sizes_of
from verl_hier.recipe.checks.rule import needs_critic, needs_reference, rules
from verl_hier.recipe.checks.unread import unread
from verl_hier.recipe.checks.world import missing_module
from verl_hier.recipe.compose import compose
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.hydra_cache import interpolations_parsed_once
from verl_hier.recipe.hydra_words import unresolved
from verl_hier.recipe.papers import contradictions
from verl_hier.recipe.parts import Parts
from verl_hier.recipe.policies import learning
from verl_hier.recipe.schema import HierConfig
from verl_hier.recipe.sharing import ExpectedSharing, expected_sharing
from verl_hier.verl_facts.validation import require_registration, validate
from verl_hier.verl_facts.versions import require_supported


@dataclass(frozen=True)
class Report:
    """What would run.

    Attributes:
        parts: the five parts with their options.
        further: what else learns or rewards: reward functions, a critic with its heads, second models, probes, further
            policies, an adapter; and what is stored.
        plugins: loaded plugins.
        model: what is known of the policy's model.
        sizes: devices, processes, and what one step does.
        sharing: what the tree engine would save.
        trainer, server: trainer mode and rollout server.
        memory: bytes that a CPU run is expected to hold (PSS), None for GPU recipes.
        held: bytes that each accelerator of a GPU recipe holds for each model, None where nobody knows.
        notes: what could not be checked here, or deserves a thought.
        first: the commands that make the model, where it is the one of the cold start and does not exist yet.
    """

    parts: Parts
    further: tuple[tuple[str, str], ...]
    plugins: tuple[str, ...]
    model: ModelFacts
    sizes: Sizes
    sharing: ExpectedSharing
    trainer: str
    server: str
    memory: int | None
    held: dict[str, int] | None
    notes: tuple[str, ...]
    first: tuple[str, ...] = ()

    def lines(self, verbose: bool = False) -> list[tuple[str, str]]:
        """(what, how much) for printing; `verbose` also says what rows would share in the tree engine."""
        sizes, plan = self.sizes, self.sizes.plan
        rows: list[tuple[str, str]] = []
        rows += [(kind, f"{part.spec.name}  {_options(part.options)}".rstrip()) for kind, part in self.parts.items()]
        rows += self.further
        rows += [
            ("model", f"{self.model.path} ({'to be made first' if self.model.missing else self.model.size})"),
            ("trainer", f"{self.trainer}, {sizes.devices} device(s), {sizes.data_parallel} data-parallel"),
            ("rollout", f"{self.server}, {plan.replicas} replica(s), {plan.agent_workers} rollout worker(s)"),
            ("a step", str(sizes.step)),
            ("longest row", f"{sizes.longest_row} tokens"),
            *([("sharing", str(self.sharing))] if verbose else []),
            ("processes", f"{plan.processes} of Ray, {plan.environment_processes} of worlds"),
        ]
        if self.memory is not None:
            rows.append(("memory", f"about {self.memory / 2**30:.1f} GiB"))
        if self.held is not None:
            each = ", ".join(f"{name} {size / 2**30:.1f}" for name, size in self.held.items())
            whole = sum(self.held.values()) / 2**30
            rows.append(("GPU memory", f"{whole:.1f} GiB a device ({each}), activations and rollouts on top"))
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
    recipe, report = _sound(config, command)
    if not offline:
        for missing in _missing(recipe, report):
            raise RecipeError(missing.why)
    return report


def refusal(reference: str, overrides: Sequence[str] = ()) -> str:
    """Why a recipe with these overrides is refused, in a sentence; "" for one that can run."""
    try:
        check_recipe(compose(reference, overrides))
    except HierError as error:
        return str(error)
    return ""


def check_ready(config: Any, command: str | None = None) -> tuple[Report, tuple[Missing, ...]]:
    """Refuse what cannot run anywhere, and say what this machine lacks to run the rest.

    The arguments and errors are those of `check_recipe`.
    """
    recipe, report = _sound(config, command)
    return report, tuple(_missing(recipe, report))


def _missing(recipe: ComposedRecipe, report: Report) -> Iterator[Missing]:
    require_registration()
    yield from missing_here(recipe, report.model, report.first)


@interpolations_parsed_once()
def _sound(config: Any, command: str | None) -> tuple[ComposedRecipe, Report]:
    require_supported()
    plain = _plain(config)
    recipe = ComposedRecipe.of(plain)
    for rule in rules():
        rule.check(recipe)
    model = model_facts(plain["actor_rollout_ref"]["model"], "actor_rollout_ref.model")
    _check_template(recipe.hier, model)
    _check_model(recipe, model)
    first = (f"verl-hier coldstart {command or recipe.hier.recipe.name}",) if model.missing else ()
    return recipe, Report(
        parts=recipe.parts,
        further=tuple(_further(recipe)),
        plugins=recipe.host.plugins,
        model=model,
        sizes=sizes_of(recipe),
        sharing=expected_sharing(recipe),
        trainer=plain["trainer"]["v1"]["trainer_mode"],
        server=plain["actor_rollout_ref"]["rollout"]["name"],
        memory=None if (needed := memory_of(recipe, model)) is None else sum(needed.values()),
        held=accelerator_memory_of(recipe, model),
        notes=(*_notes(recipe), *validate(plain, needs_reference(plain), needs_critic(plain))),
        first=first,
    )


def _check_template(hier: HierConfig, model: ModelFacts) -> None:
    if hier.rollout.template == "chat" and not has_chat_template(model):
        raise RecipeError(
            f"hier.rollout.template: the tokenizer of {model.path!r} has no chat template; set it to `plain`, or add a "
            "chat_template to the tokenizer."
        )


def _check_model(recipe: ComposedRecipe, model: ModelFacts) -> None:
    """Refuse a local model whose tokenizer, template or architecture would fail in the run."""
    if model.local is None:
        return
    from verl_hier.chat.examined.model import refuse_server, refuse_tokenizer

    config, line = recipe.config, "actor_rollout_ref.model.path"
    refuse_server(model.local, recipe.server, line)
    tokenizer = Path(str(config["actor_rollout_ref"]["model"].get("tokenizer_path") or model.local)).expanduser()
    if recipe.hier.rollout.template == "chat" and tokenizer.exists():
        options = dict(config["data"].get("apply_chat_template_kwargs") or {})
        refuse_tokenizer(model.local, tokenizer, line, options)


def _notes(recipe: ComposedRecipe) -> list[str]:
    config, parts = recipe.config, recipe.parts
    notes: list[str] = []
    tasks, mini = config["data"]["train_batch_size"], config["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"]
    if tasks % mini and not recipe.hier.update.mini_batch.given:
        notes.append(
            f"actor_rollout_ref.actor.ppo_mini_batch_size = {mini} does not divide data.train_batch_size = {tasks}; "
            f"the step is cut into {max(1, tasks // mini)} equal part(s)."
        )
    module = recipe.server.module
    if module and importlib.util.find_spec(module) is None:
        notes.append(
            f"{module} is not installed on this machine; `pip install 'verl-hier[{module}]'` where the recipe runs."
        )
    package = missing_module(parts.environment.spec, recipe.hier.rollout.process.python)
    if package:
        notes.append(f"the environment's package {package!r} is not installed on this machine.")
    for _, part in parts.items():
        notes += [] if part.spec.notes is None else part.spec.notes(part.options)
    notes += sampling.notes(recipe)
    return [*notes, *(found.sentence for found in unread(recipe)), *contradictions(config)]


def _plain(config: Any) -> dict[str, Any]:
    """Plain containers with interpolations resolved."""
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if not isinstance(config, DictConfig):
        return dict(config)
    try:
        plain = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise unresolved(config, error) from error
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _further(recipe: ComposedRecipe) -> Iterator[tuple[str, str]]:
    """What learns or rewards beside the five parts, as (what, how much)."""
    hier, config = recipe.hier, recipe.config
    for name, reward in hier.rewards.items():
        said = f"{reward.function}, for each {reward.per}, weight {reward.weight:g}"
        yield f"reward {name}", f"{said}, roles {', '.join(reward.roles)}" if reward.roles else said
    if needs_critic(config):
        heads = ", ".join(f"{name} (weight {weight:g})" for name, weight in hier.value_heads.items())
        yield "critic", f"{config['critic']['model']['path']}, {f'heads {heads}' if heads else 'a value of each token'}"
    if needs_reference(config):
        yield "reference", "a frozen copy of the policy's first weights"
    if hier.process_reward is not None:
        yield "second model", f"process_reward  {_options(hier.process_reward)}".rstrip()
    if hier.replay is not None:
        yield "second model", f"replay  {_options(hier.replay)}".rstrip()
    if hier.self_imitation is not None:
        yield "self-imitation", _options(hier.self_imitation) or "with its defaults"
    for name, probe in recipe.probes.items():
        yield f"probe {name}", _options(probe.options) or "with its defaults"
    for name, teacher in hier.teachers.items():
        told = f"roles {', '.join(teacher.roles)}" if teacher.roles else "all roles"
        yield f"teacher {name}", f"{teacher.model}, {told}, weight {teacher.weight:g}, credit {teacher.credit:g}"
    for name, policy in hier.policies.items():
        where = f"served at {policy.url}" if policy.url else f"from {policy.model or 'the model of actor_rollout_ref'}"
        learns = {"none": "never learns", "adapter": "learns an adapter"}.get(policy.train, "learns")
        yield f"policy {name}", f"{where}, {learns}, roles {', '.join(policy.roles) or '-'}"
    rank = config["actor_rollout_ref"]["model"].get("lora_rank")
    if rank:
        shared = "which each policy has for itself" if learning(hier.policies) else "which every role shares"
        yield "adapter", f"of rank {rank}, {shared}"
    store = hier.store
    if store.path is None:
        yield "rollouts", "not stored, so there will be nothing to view; hier.store.path=graphs stores them"
    else:
        most = (
            f"at most {store.max_gib:g} GiB of the latest steps" if store.max_gib else "of all steps, without a limit"
        )
        yield "rollouts", f"stored, {most} (hier.store); hier.store.path=null turns it off"


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
