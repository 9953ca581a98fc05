"""Policies of roles that could not be trained, served or told apart."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Iterator
from pathlib import Path

from verl_hier.errors import RecipeError
from verl_hier.host.servers import rollout_server, servers_with
from verl_hier.recipe.checks.lengths import ROLLOUT
from verl_hier.recipe.checks.model import HUB_NAME
from verl_hier.recipe.checks.roles import MOST_STEPS, require_role, worker_levels
from verl_hier.recipe.checks.rule import needs_critic, rule, there, value
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.engine import wants_tree
from verl_hier.recipe.paths import COLD_START
from verl_hier.recipe.policies import (
    NAME,
    PolicyOptions,
    assigned,
    is_own,
    learning,
    lines_of,
    own_lines,
    played,
    trained,
)
from verl_hier.rollout.policy import DEFAULT_POLICY

MOST_MEMORY = 0.9
"""Share of an accelerator's memory that the servers of all policies may have together, since all are awake while a
batch is generated: what vLLM takes where nobody says it."""


@rule
def check_policy_names(recipe: ComposedRecipe) -> None:
    """Refuse names that no metric, folder or process could have."""
    for name, policy in recipe.hier.policies.items():
        if name == DEFAULT_POLICY and policy != PolicyOptions(roles=policy.roles):
            raise RecipeError(
                f"hier.policies.{name}: so the policy of actor_rollout_ref is called; name its roles here, and nothing "
                "else: all its other lines stand in actor_rollout_ref."
            )
        require_name("hier.policies", name, "a policy")


def require_name(block: str, name: str, what: str) -> None:
    """Refuse a name that metrics and folders cannot have.

    Args:
        block: the recipe line in which the name is a key.
        name: the name.
        what: what has it, with its article.

    Raises:
        RecipeError: naming the block.
    """
    if not NAME.fullmatch(name):
        raise RecipeError(
            f"{block}: {name!r:.60} is no name for {what}; use up to 40 small letters, digits and _, a letter first."
        )


@rule
def check_policy_roles(recipe: ComposedRecipe) -> None:
    """Refuse roles that the worker does not have, that two policies have, and policies without a role."""
    if not recipe.hier.policies:
        return
    known, owner = worker_levels(recipe.parts.worker), dict[str, str]()
    for name, policy in recipe.hier.policies.items():
        line = f"hier.policies.{name}.roles"
        if not policy.roles:
            raise RecipeError(f"{line}: name the roles whose turns it generates, of {', '.join(known)}.")
        for role in policy.roles:
            require_role(recipe.parts.worker, role, line)
            if role in owner:
                raise RecipeError(f"{line}: the role {role!r} has the policy {owner[role]!r} already; a role has one.")
            owner[role] = name
    if DEFAULT_POLICY not in {owner.get(role, DEFAULT_POLICY) for role in known}:
        raise RecipeError(
            "hier.policies: every role of the worker has a policy here, and the one of actor_rollout_ref would play "
            f"nothing; leave out one of {', '.join(recipe.hier.policies)} and set its lines in actor_rollout_ref."
        )


@rule
def check_policy_lines(recipe: ComposedRecipe) -> None:
    """Refuse lines that a policy cannot have for itself, or that do not go together."""
    for name, policy in recipe.hier.policies.items():
        line = f"hier.policies.{name}"
        if policy.url is not None and policy.train != "none":
            raise RecipeError(f"{line}.url: an endpoint plays the roles and nothing can be trained; set train: none.")
        if policy.url is not None and importlib.util.find_spec("openai") is None:
            raise RecipeError(f"{line}.url: an endpoint is asked by the package openai; pip install openai.")
        given = lines_of(policy.actor_rollout_ref)
        if given and policy.train == "none":
            raise RecipeError(f"{line}.actor_rollout_ref.{given[0]}: a policy that never learns reads none of it.")
        for key in given:
            if not is_own(key, policy):
                raise RecipeError(
                    f"{line}.actor_rollout_ref.{key}: a policy has no such line for itself: other lines follow it "
                    f"or policies share it; it may have {', '.join(own_lines(policy))}."
                )
            if not there(recipe.config, f"actor_rollout_ref.{key}"):
                raise RecipeError(f"{line}.actor_rollout_ref.{key}: actor_rollout_ref has no such line.")


@rule
def check_adapters(recipe: ComposedRecipe) -> None:
    """Refuse adapters without a model that has them, and weights of their own beside adapters."""
    config = recipe.config
    rank = value(config, "actor_rollout_ref.model.lora_rank") or 0
    for name, policy in recipe.hier.policies.items():
        line = f"hier.policies.{name}"
        if name == DEFAULT_POLICY or policy.train == "none":
            continue
        if policy.train == "full" and rank:
            raise RecipeError(
                f"{line}.train: full: the weights of actor_rollout_ref are frozen below an adapter "
                f"(actor_rollout_ref.model.lora_rank: {rank}); set it to adapter, so that this policy has one too."
            )
        if policy.train == "full":
            continue
        if not rank:
            raise RecipeError(
                f"{line}.train: adapter: the model of actor_rollout_ref has no adapters; set "
                "actor_rollout_ref.model.lora_rank to their rank, such as 16."
            )
        if policy.model is not None:
            raise RecipeError(
                f"{line}.model: an adapter stands on the model of actor_rollout_ref; leave it out, or train: full."
            )
        if not (value(config, "actor_rollout_ref.model.lora.merge") or recipe.server.adapters):
            able = servers_with(recipe.host, "adapters")
            raise RecipeError(
                f"actor_rollout_ref.model.lora.merge: of the rollout servers, only {able} keeps an adapter for each "
                f"policy, as {line} has one; set it to true, so that each is served merged."
            )
        strategy = value(config, "actor_rollout_ref.actor.strategy")
        if strategy != "fsdp2":
            raise RecipeError(
                f"actor_rollout_ref.actor.strategy: {strategy}: several adapters on one model, as in {line}, are "
                "trained by fsdp2 alone."
            )


@rule
def check_exchange(recipe: ComposedRecipe) -> None:
    """Refuse an exchange of roles where there is nothing to exchange."""
    hier = recipe.hier
    if hier.exchange_policies is None:
        return
    owners = {assigned(hier.policies).get(role, DEFAULT_POLICY) for role in worker_levels(recipe.parts.worker)}
    if len(owners & trained(hier.policies)) < 2:
        raise RecipeError(
            "hier.exchange_policies: fewer than two policies that learn have roles here, so that there is nothing to "
            "exchange; leave it out, or name another policy in hier.policies."
        )


@rule
def check_policies_learn(recipe: ComposedRecipe) -> None:
    """Refuse a policy that would learn, but whose roles the schedule never trains while it has them."""
    hier, schedule = recipe.hier, recipe.parts.schedule
    if not learning(hier.policies):
        return
    levels, made = worker_levels(recipe.parts.worker), schedule.spec.factory(schedule.options)
    idle, steps = set(trained(hier.policies)), value(recipe.config, "trainer.total_training_steps")
    for step in range(1, max(int(steps or 0), MOST_STEPS) + 1):
        phase, owners = made.phase(step), played(hier.policies, [*levels], step, hier.exchange_policies)
        learns = (role for role, level in levels.items() if phase.learns(role, level))
        idle -= {owners.get(role, DEFAULT_POLICY) for role in learns}
        if not idle:
            return
    raise RecipeError(
        f"hier.schedule: the policy {min(idle)!r} of hier.policies would never learn, since {schedule.spec.name!r} "
        "trains none of the roles that it has in any step; let the schedule train one, such as "
        "hier.schedule={name: joint}, or give its roles to a policy with train: none."
    )


@rule
def check_policy_models(recipe: ComposedRecipe) -> None:
    """Refuse a model that is not there, or whose tokens are not those of the model of actor_rollout_ref."""
    base = str(value(recipe.config, "actor_rollout_ref.model.path"))
    for name, policy in recipe.hier.policies.items():
        if policy.url is not None or policy.model is None or policy.model == base:
            continue
        advice = "serve the model at an endpoint (url) instead"
        require_same_tokens(f"hier.policies.{name}.model", policy.model, base, advice)


@rule
def check_frozen_models(recipe: ComposedRecipe) -> None:
    """Refuse a saved model for a role where the run has accelerators: rollout workers load it on the CPU."""
    if value(recipe.config, "trainer.device") == "cpu":
        return
    for name, policy in recipe.hier.policies.items():
        if policy.train == "none" and policy.url is None:
            raise RecipeError(
                f"hier.policies.{name}.url: rollout workers load a model that never learns on the CPU, too slowly "
                "for a run on accelerators; serve it, such as with vLLM, and name its OpenAI-compatible endpoint here."
            )


@rule
def check_shared_memory(recipe: ComposedRecipe) -> None:
    """Refuse servers that ask for more of an accelerator together than it has."""
    names = learning(recipe.hier.policies)
    if not names or value(recipe.config, "trainer.device") == "cpu":
        return
    line = ROLLOUT + "gpu_memory_utilization"
    common = float(value(recipe.config, line) or 0)
    given = [value(recipe.hier.policies[name].actor_rollout_ref, "rollout.gpu_memory_utilization") for name in names]
    shares = [common, *(common if share is None else float(share) for share in given)]
    if sum(shares) > MOST_MEMORY + 1e-9:
        said, most = " + ".join(f"{share:g}" for share in shares), math.floor(100 * MOST_MEMORY / len(shares)) / 100
        raise RecipeError(
            f"{line}: the servers of default, {', '.join(names)} stand on the same devices and would take {said} of "
            f"their memory together, more than {MOST_MEMORY}; set it to {most:g} or less."
        )


@rule
def check_policy_parts(recipe: ComposedRecipe) -> None:
    """Refuse what works with one policy that learns only."""
    names = learning(recipe.hier.policies)
    if not names:
        return
    also = f"{', '.join(names)} of hier.policies"
    for line, why in _alone(recipe):
        raise RecipeError(f"{line}: {why}; it does not work yet beside {also}, which learn too.")


def _alone(recipe: ComposedRecipe) -> Iterator[tuple[str, str]]:
    """The lines of a recipe that several learning policies cannot have, and why."""
    hier, config = recipe.hier, recipe.config
    mode = value(config, "trainer.v1.trainer_mode")
    if hier.value_heads or hier.replay is not None or hier.process_reward is not None or needs_critic(config):
        block = next((name for name in ("replay", "process_reward", "value_heads") if getattr(hier, name)), None)
        line = "critic.enable" if block is None else f"hier.{block}"
        yield line, "a critic learns from rows of one policy"
    if hier.probes:
        yield "hier.probes", "a probe asks one policy about the rows of a step"
    if hier.update.max_kl is not None:
        yield "hier.update.max_kl", "the limit is that of one policy"
    schedule = recipe.parts.schedule
    if schedule.spec.factory(schedule.options).reads_losses:
        yield "hier.schedule.name", f"the schedule {schedule.spec.name!r} reads the losses of one policy"
    if wants_tree(config):
        yield "engine=tree", "the tree engine trains trees of one policy"
    if mode == "hier_separate_async":
        yield "trainer.v1.trainer_mode", "the rollout nodes of hier_separate_async serve one policy"
    server = rollout_server(recipe.host, str(value(config, ROLLOUT + "name")))
    if not server.several:
        yield (
            ROLLOUT + "name",
            f"of the rollout servers, only {servers_with(recipe.host, 'several')} serve several policies",
        )
    if value(config, ROLLOUT + "disaggregation.enabled"):
        yield ROLLOUT + "disaggregation.enabled", "servers that are divided into two kinds are counted for one policy"


def require_same_tokens(line: str, model: str, base: str, advice: str) -> None:
    """Refuse a model that is not there, or that has other tokens than the one of actor_rollout_ref.

    Args:
        line: of the recipe that names it.
        model: folder or Hugging Face name, of which only folders are looked into.
        base: the model of actor_rollout_ref.
        advice: what to do instead.

    Raises:
        RecipeError: when it is refused.
    """
    folder = Path(model).expanduser()
    if not (folder / "config.json").is_file():
        to_be_made = COLD_START in folder.parents and not folder.exists()
        if not to_be_made and (folder.exists() or not HUB_NAME.fullmatch(model) or model.startswith(".")):
            raise RecipeError(f"{line}: there is no model at {model!r}, which has no config.json.")
        return
    ours, theirs = (_vocabulary(Path(path).expanduser()) for path in (base, model))
    if None not in (ours, theirs) and ours != theirs:
        raise RecipeError(
            f"{line}: the tokens of {model!r} are not those of actor_rollout_ref.model.path, whose tokenizer ({base}) "
            f"writes the contexts of all policies; {advice}."
        )


def _vocabulary(folder: Path) -> object:
    """What decides which tokens a text becomes; None where a folder does not say it."""
    try:
        found = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        return found["model"].get("vocab"), found["model"].get("merges"), found.get("added_tokens")
    except (OSError, ValueError, LookupError, AttributeError):
        return None
