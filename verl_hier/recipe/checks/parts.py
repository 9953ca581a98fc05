"""Parts that do not fit each other, or the rest of the recipe."""

from __future__ import annotations

from collections.abc import Iterator

from verl_hier.credit.columns import missing_column
from verl_hier.errors import RecipeError, did_you_mean
from verl_hier.graph.turn_table import EPISODE_COLUMNS, TURN_COLUMNS
from verl_hier.host.manager import PluginHost
from verl_hier.host.servers import TOP_LOGPROBS, servers_with
from verl_hier.host.specs import EnvironmentSpec, SamplerSpec, ScheduleSpec, Spec, WorkerSpec
from verl_hier.recipe.checks.rule import needs_critic, rule, value
from verl_hier.recipe.checks.world import first_task, info_names, names_states
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.training.replay import HEADS, heads_of

TOKEN_COLUMNS = ("turn", "logprob", "entropy")
CRITIC_COLUMNS = ("value", "tokens.value")
STEP_REWARD = "step_reward"
"""The column that `hier.process_reward` fills."""
GROUPED = ("grpo", "grpo_vectorized", "grpo_passk", "gdpo", "rloo", "rloo_vectorized", "opo", "gpg")
"""verl's own advantages that compare the episodes of a task."""


@rule
def check_columns(recipe: ComposedRecipe) -> None:
    """Refuse an estimator that reads a column which nothing in the recipe fills."""
    there, parts, host = columns_of(recipe), recipe.parts, recipe.host
    estimator = parts.estimator.spec
    for column in estimator.requires:
        if column in there:
            continue
        sentence = missing_column(estimator.name, column)
        able = [*_providers(host, column), *_heads(host, column), *_probes(host, column)]
        hint = f" Installed parts that provide it: {', '.join(able)}." if able else ""
        raise RecipeError(f"hier.estimator.name: {sentence}{hint}")


def columns_of(recipe: ComposedRecipe) -> set[str]:
    """The columns that turn tables of the recipe have."""
    there, parts = set(_standard_columns()), recipe.parts
    if needs_critic(recipe.config):
        heads = {head.column for head in recipe.value_heads.values()}
        there |= heads or (set() if _in_its_place(recipe) else set(CRITIC_COLUMNS))
    for part in (parts.environment, parts.worker, parts.sampler, parts.schedule):
        there |= {*part.spec.fills(part.options)}
    for probe in recipe.probes.values():
        there |= set(probe.spec.provides)
    if recipe.hier.process_reward is not None:
        there.add(STEP_REWARD)
    if recipe.hier.replay is not None:
        there |= {*heads_of(recipe.hier.replay)}
    return there


@rule
def check_critic(recipe: ComposedRecipe) -> None:
    """Refuse an estimator that reads values when verl would build no critic."""
    parts = recipe.parts
    if parts.estimator.spec.needs_critic and not needs_critic(recipe.config):
        raise RecipeError(
            f"critic.enable: estimator {parts.estimator.spec.name!r} needs verl's critic, and this recipe has none; "
            f"add "
            "`critic.enable: true` and set `critic.model.path`."
        )


@rule
def check_heads(recipe: ComposedRecipe) -> None:
    """Refuse heads without a critic, a head that the estimator does not read, and a critic that it does not read at
    all."""
    estimator, heads = recipe.parts.estimator.spec, recipe.value_heads
    if not needs_critic(recipe.config):
        if heads:
            raise RecipeError(
                "hier.value_heads: this recipe has no critic; set critic.enable: true, or remove the heads."
            )
        return
    if _in_its_place(recipe):
        return
    if not (estimator.needs_critic or estimator.native or {*estimator.reads} & {*CRITIC_COLUMNS}):
        raise RecipeError(
            f"critic.enable: estimator {estimator.name!r} reads no values, so the critic would be trained for nothing; "
            "set it to false, or choose an estimator that needs a critic (`verl-hier estimators`)."
        )
    for name, head in heads.items():
        if head.column not in (*estimator.requires, *estimator.reads):
            raise RecipeError(
                f"hier.value_heads: estimator {estimator.name!r} does not read the head {name!r}; remove it, or choose "
                "another estimator."
            )


def _in_its_place(recipe: ComposedRecipe) -> bool:
    """Whether something else than verl's critic is trained by the critic's worker."""
    return recipe.hier.process_reward is not None or recipe.hier.replay is not None


@rule
def check_replay(recipe: ComposedRecipe) -> None:
    """Refuse a replay that nobody reads, or beside something else in the place of the critic."""
    if recipe.hier.replay is None:
        return
    estimator, line = recipe.parts.estimator.spec, "hier.replay"
    if HEADS[0] not in estimator.requires:
        raise RecipeError(
            f"{line}: estimator {estimator.name!r} does not read {HEADS[0]!r}; remove it, or take "
            "hier.estimator.name: archer."
        )
    if recipe.hier.value_heads or recipe.hier.process_reward is not None:
        raise RecipeError(
            f"{line}: the critic that learns from it has heads of its own; remove hier.value_heads and "
            "hier.process_reward."
        )


@rule
def check_process_reward(recipe: ComposedRecipe) -> None:
    """Refuse a process reward without a second model, together with a critic's heads, or that nobody reads, and turns
    that several rows repeat, from which the second model would learn several times."""
    if recipe.hier.process_reward is None:
        return
    estimator, line = recipe.parts.estimator.spec, "hier.process_reward"
    if STEP_REWARD not in (*estimator.requires, *estimator.reads):
        raise RecipeError(
            f"{line}: estimator {estimator.name!r} does not read {STEP_REWARD!r}; remove it, or take "
            "hier.estimator.name: istar."
        )
    if not needs_critic(recipe.config):
        raise RecipeError(
            f"{line}: the second model is trained in the place of the critic; set critic.enable: true and "
            "critic.model.path."
        )
    if estimator.needs_critic or recipe.hier.value_heads:
        raise RecipeError(
            f"{line}: the second model takes the place of the critic, whose values estimator {estimator.name!r} or "
            "hier.value_heads wants; remove one of them."
        )
    if recipe.hier.guards.shared_prefix != "once":
        raise RecipeError(
            f"hier.guards.shared_prefix: {recipe.hier.guards.shared_prefix} lets the second model of {line} learn from "
            "a shared turn more than once; set it to once."
        )
    if recipe.config["algorithm"].get("rollout_correction", {}).get("bypass_mode"):
        raise RecipeError(
            f"algorithm.rollout_correction.bypass_mode: {line} compares two models by the trainer's own log-probs; set "
            "it to false."
        )


@rule
def check_probes(recipe: ComposedRecipe) -> None:
    """Refuse a probe that the estimator does not read, and one that cannot ask about the tasks."""
    estimator, environment = recipe.parts.estimator.spec, recipe.parts.environment
    for name, probe in recipe.probes.items():
        if not {*probe.spec.provides} & {*estimator.requires, *estimator.reads}:
            raise RecipeError(
                f"hier.probes: estimator {estimator.name!r} does not read what the probe {name!r} fills "
                f"({', '.join(probe.spec.provides)}); remove it, or choose another estimator."
            )
        task = None if probe.spec.lacks is None else first_task(recipe)
        missing = "" if task is None else probe.spec.lacks(task)
        if missing:
            raise RecipeError(
                f"hier.probes: the probe {name!r} needs {missing}, which the tasks of environment "
                f"{environment.spec.name!r} do not have; choose another environment, or an estimator without the probe."
            )


@rule
def check_kl(recipe: ComposedRecipe) -> None:
    """Refuse a KL penalty in the reward, which estimators on turns do not see."""
    estimator = recipe.parts.estimator.spec
    if recipe.config["algorithm"].get("use_kl_in_reward") and not estimator.native:
        raise RecipeError(
            f"algorithm.use_kl_in_reward: estimator {estimator.name!r} credits turns and sees no KL "
            f"penalty on "
            "tokens; use actor_rollout_ref.actor.use_kl_loss, or hier.estimator.name: verl."
        )


@rule
def check_info(recipe: ComposedRecipe) -> None:
    """Refuse a worker that reads what the environment does not show, or does not read what its answers are about."""
    worker, environment = recipe.parts.worker.spec, recipe.parts.environment.spec
    unread = [name for name in environment.read_info if name not in worker.needs_info]
    if unread:
        fitting = [
            name
            for name, spec in recipe.host.specs("worker").items()
            if {*environment.read_info} <= {*getattr(spec, "needs_info", ())}
        ]
        raise RecipeError(
            f"hier.worker.name: environment {environment.name!r} says in {unread[0]!r} of its `info` what the turn is "
            f"about, which worker {worker.name!r} does not read; choose one that does "
            f"({', '.join(fitting) or 'none installed'})."
        )
    shown = info_names(recipe) if worker.needs_info else None
    lacking = [name for name in worker.needs_info if shown is not None and name not in shown]
    if lacking:
        able = [
            name
            for name, spec in recipe.host.specs("environment").items()
            if {*worker.needs_info} <= {*(getattr(spec, "info", None) or ())}
        ]
        raise RecipeError(
            f"hier.worker.name: {worker.name!r} reads {lacking[0]!r} in the `info` of answers, which environment "
            f"{environment.name!r} does not show; choose another worker, or an environment that does "
            f"({', '.join(able) or 'none installed'})."
        )


@rule
def check_saved_roles(recipe: ComposedRecipe) -> None:
    """Refuse turns of saved models where no second model can be served beside the policy."""
    worker = recipe.parts.worker
    roles = [] if worker.spec.saved_roles is None else list(worker.spec.saved_roles(worker.options))
    server = recipe.server
    if roles and not server.opens:
        raise RecipeError(
            f"hier.worker: {roles[0]} is played by past checkpoints, and the rollout server {server.name!r} serves the "
            "weights of now alone; use `transformers`, which loads saved models beside it, or give the role to the "
            "policy or to a fixed player."
        )


@rule
def check_forced_tokens(recipe: ComposedRecipe) -> None:
    """Refuse a sampler that lets turns begin with given tokens at a temperature at which the server cannot say how
    likely these are: their log-probs would be at another one than those of training."""
    sampler, rollout = recipe.parts.sampler, recipe.config["actor_rollout_ref"]["rollout"]
    server, temperature = recipe.server, rollout.get("temperature", 1.0)
    if not sampler.spec.needs("needs_scores", sampler.options) or not server.prompt_scores:
        return
    if temperature not in (0, 1) and not server.scores_at_temperature:
        raise RecipeError(
            f"actor_rollout_ref.rollout.temperature: {temperature}: sampler {sampler.spec.name!r} needs the log-probs "
            f"of given tokens, which the rollout server {server.name!r} returns at temperature 1 alone; set it to 1, "
            f"or use {servers_with(recipe.host, 'scores_at_temperature')}."
        )


@rule
def check_sampler(recipe: ComposedRecipe) -> None:
    """Refuse a sampler that branches where nothing can fork, or that asks for log-probs that no server returns."""
    parts, host = recipe.parts, recipe.host
    sampler, environment = parts.sampler.spec, parts.environment.spec
    if sampler.needs_fork and environment.fork == "never":
        able = [name for name, spec in host.specs("environment").items() if getattr(spec, "fork", "never") != "never"]
        raise RecipeError(
            f"hier.sampler.name: {sampler.name!r} branches episodes, and environment {environment.name!r} cannot fork; "
            f"choose hier.sampler.name: independent, or an environment that can "
            f"({', '.join(able) or 'none installed'})."
        )
    server = recipe.server
    if sampler.needs_top_logprobs and not server.top_logprobs:
        raise RecipeError(
            f"actor_rollout_ref.rollout.name: sampler {sampler.name!r} needs the log-probs of the likeliest tokens, "
            f"which "
            f"the rollout server {server.name!r} does not return; use `transformers`, or a server whose name ends in "
            f"`{TOP_LOGPROBS}`."
        )
    if sampler.needs("needs_scores", parts.sampler.options) and not server.prompt_scores:
        raise RecipeError(
            f"actor_rollout_ref.rollout.name: sampler {sampler.name!r} needs the log-probs of given tokens, which the "
            f"rollout server {server.name!r} does not return; use one of {servers_with(recipe.host, 'prompt_scores')}."
        )
    worker = parts.worker.spec
    if worker.needs_scores is not None and worker.needs_scores(parts.worker.options) and not server.prompt_scores:
        raise RecipeError(
            f"actor_rollout_ref.rollout.name: worker {worker.name!r} needs the log-probs of given texts, which the "
            f"rollout server {server.name!r} does not return; use one of {servers_with(recipe.host, 'prompt_scores')}."
        )
    if parts.estimator.spec.needs_tree and not sampler.needs_fork:
        able = [name for name, spec in host.specs("sampler").items() if getattr(spec, "needs_fork", False)]
        raise RecipeError(
            f"hier.sampler.name: estimator {parts.estimator.spec.name!r} needs turns with several children, and "
            f"{sampler.name!r} never branches; choose one that does ({', '.join(able) or 'none installed'})."
        )


@rule
def check_stand_ins(recipe: ComposedRecipe) -> None:
    """Refuse a sampler that leaves roles out of episodes with a worker that does not, or does not have them."""
    parts, host = recipe.parts, recipe.host
    sampler, worker = parts.sampler, parts.worker
    if sampler.spec.leaves_out is None:
        return
    if not worker.spec.stand_ins:
        able = [name for name, spec in host.specs("worker").items() if getattr(spec, "stand_ins", False)]
        raise RecipeError(
            f"hier.worker.name: sampler {sampler.spec.name!r} plays episodes without some of the roles, which worker "
            f"{worker.spec.name!r} cannot do; choose one that can ({', '.join(able) or 'none installed'})."
        )
    known = worker.spec.levels(worker.options)
    for role in sampler.spec.leaves_out(sampler.options):
        if role not in known:
            raise RecipeError(
                f"hier.sampler: {sampler.spec.name!r} leaves out the role {role!r}{did_you_mean(role, known)}, which "
                f"the worker does not have; it has {', '.join(known)}."
            )
    if len(known) < 2:
        raise RecipeError(
            f"hier.sampler.name: {sampler.spec.name!r} leaves roles out of episodes, and the worker has one role; "
            "name at least two in hier.worker.roles."
        )


@rule
def check_entropy(recipe: ComposedRecipe) -> None:
    """Refuse entropies from log-probs that the server does not return."""
    server = recipe.server
    if recipe.hier.rollout.entropy.source == "top_k" and not server.top_logprobs:
        raise RecipeError(
            f"hier.rollout.entropy.source: top_k needs the log-probs of the likeliest tokens, which the rollout server "
            f"{server.name!r} does not return; use sampled or prefill, or set actor_rollout_ref.rollout.name to "
            f"`transformers` or to a server whose name ends in `{TOP_LOGPROBS}`."
        )
    if recipe.hier.rollout.entropy.source == "prefill" and not server.prompt_scores:
        raise RecipeError(
            f"hier.rollout.entropy.source: prefill needs the log-probs of prompts, which the rollout server "
            f"{server.name!r} does not return; use sampled, or set actor_rollout_ref.rollout.name to one of "
            f"{servers_with(recipe.host, 'prompt_scores')}."
        )


@rule
def check_stop_strings(recipe: ComposedRecipe) -> None:
    """Refuse a worker that ends turns at strings on SGLang without a tokenizer, which dies of the first request
    (sgl-project/sglang#27882)."""
    worker, rollout = recipe.parts.worker.spec, recipe.config["actor_rollout_ref"]["rollout"]
    needs = worker.needs_stop_strings and recipe.server.stop_strings_need_tokenizer
    if needs and rollout.get("skip_tokenizer_init", True):
        raise RecipeError(
            f"actor_rollout_ref.rollout.skip_tokenizer_init: worker {worker.name!r} ends its turns at strings, which "
            "SGLang cannot see without its tokenizer; set it to false."
        )


@rule
def check_anchors(recipe: ComposedRecipe) -> None:
    """Refuse an estimator that groups turns by the state they start from, where the environment names no states."""
    estimator, environment = recipe.parts.estimator.spec, recipe.parts.environment
    if "anchor" in estimator.requires and not names_states(recipe):
        raise RecipeError(
            f"hier.estimator.name: {estimator.name!r} compares turns that start from one state, and environment "
            f"{environment.spec.name!r} names no states (`anchor` of its answers); choose an estimator without "
            "`anchor` in `verl-hier estimators`, such as grpo, or an environment that names them."
        )


@rule
def check_episodes(recipe: ComposedRecipe) -> None:
    """Refuse a `rollout.n` that does not fit the sampler, or makes groups of one for an estimator that compares."""
    n, spec = int(value(recipe.config, "actor_rollout_ref.rollout.n")), recipe.parts.estimator.spec
    found = episodes(recipe)
    compared = spec.name if spec.needs_groups else ""
    if spec.native and recipe.config["algorithm"]["adv_estimator"] in GROUPED:
        compared = recipe.config["algorithm"]["adv_estimator"]
    if compared and found < 2:
        raise RecipeError(
            f"actor_rollout_ref.rollout.n: estimator {compared!r} compares the episodes of a task, and "
            f"n = {n} makes groups of {found}; set it to at least 2."
        )


def episodes(recipe: ComposedRecipe) -> int:
    """Episodes to train for one task.

    Raises:
        RecipeError: when `rollout.n` does not fit the sampler.
    """
    n, sampler = int(value(recipe.config, "actor_rollout_ref.rollout.n")), recipe.parts.sampler
    return int(sampler.spec.episodes(sampler.options, n)) if sampler.spec.episodes else n


def _standard_columns() -> Iterator[str]:
    yield from TURN_COLUMNS
    yield from (f"episodes.{name}" for name in EPISODE_COLUMNS)
    yield from (f"tokens.{name}" for name in TOKEN_COLUMNS)


def _providers(host: PluginHost, column: str) -> Iterator[str]:
    """Registered parts that list the column, as recipe lines."""
    kinds: tuple[type[Spec], ...] = (EnvironmentSpec, WorkerSpec, SamplerSpec, ScheduleSpec)
    for kind in (cls.kind for cls in kinds):
        for name, spec in host.specs(kind).items():
            if column in spec.fills():
                yield f"hier.{kind}.name: {name}"


def _heads(host: PluginHost, column: str) -> Iterator[str]:
    """Registered heads of a critic that fill the column, as recipe lines."""
    yield from (
        f"hier.value_heads.{name}: 1.0" for name, head in host.specs("value_head").items() if head.column == column
    )


def _probes(host: PluginHost, column: str) -> Iterator[str]:
    """Registered probes that fill the column, as recipe lines."""
    yield from (f"hier.probes.{name}: {{}}" for name, probe in host.specs("probe").items() if column in probe.provides)
