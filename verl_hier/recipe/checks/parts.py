"""Do the five parts of a recipe fit each other and the rest of it, and does the environment have the tasks it needs?"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any

from verl_hier.compat.servers.table import TOP_LOGPROBS, rollout_server, servers_with
from verl_hier.credit.columns import missing_column
from verl_hier.errors import HierError, RecipeError
from verl_hier.graph.turn_table import EPISODE_COLUMNS, TURN_COLUMNS
from verl_hier.host.manager import PluginHost
from verl_hier.host.specs import EnvironmentSpec, SamplerSpec, ScheduleSpec, Spec, WorkerSpec
from verl_hier.recipe.checks.roles import check_roles
from verl_hier.recipe.parts import Part, Parts
from verl_hier.recipe.schema import HierConfig
from verl_hier.training.curriculum import Curriculum

TOKEN_COLUMNS = ("turn", "logprob", "entropy")
DATASET = "TaskDataset"
CRITIC_COLUMNS = ("value", "tokens.value")


def check_needs(config: Mapping[str, Any], hier: HierConfig, parts: Parts, host: PluginHost) -> int:
    """Refuse combinations of parts that cannot work.

    Returns:
        Episodes to train for one task.
    """
    check_modules(parts.environment.spec)
    check_columns(parts, host, critic=needs_critic(config))
    check_roles(config, parts)
    check_critic(config, parts)
    check_kl(config, parts)
    check_sampler(config, parts, host)
    check_stop_strings(config, parts)
    check_entropy(config, hier)
    return check_episodes(config, parts)


def check_modules(spec: EnvironmentSpec) -> None:
    """Refuse an environment whose packages are not installed; only looks, imports nothing."""
    missing = [name for name in spec.modules if importlib.util.find_spec(name.partition(".")[0]) is None]
    if missing:
        cure = f"`pip install 'verl-hier[{spec.extra}]'` brings it" if spec.extra else "install it"
        raise RecipeError(
            f"hier.environment.name: {spec.name!r} needs the Python package {missing[0]!r}, which is not installed; "
            f"{cure}."
        )


def check_columns(parts: Parts, host: PluginHost, critic: bool) -> None:
    """Refuse an estimator that reads a column which nothing in the recipe fills."""
    there = set(_standard_columns())
    there |= set(CRITIC_COLUMNS) if critic else set()
    for part in (parts.environment, parts.worker, parts.sampler, parts.schedule):
        there |= set(part.spec.provides)
    estimator = parts.estimator.spec
    for column in estimator.requires:
        if column in there:
            continue
        sentence = missing_column(estimator.name, column)
        able = list(_providers(host, column))
        hint = f" Installed parts that provide it: {', '.join(able)}." if able else ""
        raise RecipeError(f"hier.estimator.name: {sentence}{hint}")


def check_critic(config: Mapping[str, Any], parts: Parts) -> None:
    """Refuse an estimator that reads values when verl would build no critic."""
    if parts.estimator.spec.needs_critic and not needs_critic(config):
        raise RecipeError(
            f"critic.enable: estimator {parts.estimator.spec.name!r} needs verl's critic, and this recipe has none; "
            f"add "
            "`critic.enable: true` and set `critic.model.path`."
        )


def check_kl(config: Mapping[str, Any], parts: Parts) -> None:
    """Refuse a KL penalty in the reward, which estimators on turns do not see."""
    if config["algorithm"].get("use_kl_in_reward") and not parts.estimator.spec.native:
        raise RecipeError(
            f"algorithm.use_kl_in_reward: estimator {parts.estimator.spec.name!r} credits turns and sees no KL "
            f"penalty on "
            "tokens; use actor_rollout_ref.actor.use_kl_loss, or hier.estimator.name: verl."
        )


def check_sampler(config: Mapping[str, Any], parts: Parts, host: PluginHost) -> None:
    """Refuse a sampler that branches where nothing can fork, or that asks for log-probs that no server returns."""
    sampler, environment = parts.sampler.spec, parts.environment.spec
    if sampler.needs_fork and not environment.can_fork:
        able = [name for name, spec in host.specs("environment").items() if getattr(spec, "can_fork", False)]
        raise RecipeError(
            f"hier.sampler.name: {sampler.name!r} branches episodes, and environment {environment.name!r} cannot fork; "
            f"choose hier.sampler.name: independent, or an environment that can "
            f"({', '.join(able) or 'none installed'})."
        )
    server = rollout_server(str(config["actor_rollout_ref"]["rollout"]["name"]))
    if sampler.needs_top_logprobs and not server.top_logprobs:
        raise RecipeError(
            f"actor_rollout_ref.rollout.name: sampler {sampler.name!r} needs the log-probs of the likeliest tokens, "
            f"which "
            f"the rollout server {server.name!r} does not return; use `transformers`, or a server whose name ends in "
            f"`{TOP_LOGPROBS}`."
        )
    if sampler.needs_scores and not server.prompt_scores:
        raise RecipeError(
            f"actor_rollout_ref.rollout.name: sampler {sampler.name!r} needs the log-probs of given tokens, which the "
            f"rollout server {server.name!r} does not return; use one of {servers_with('prompt_scores')}."
        )
    if parts.estimator.spec.needs_tree and not sampler.needs_fork:
        able = [name for name, spec in host.specs("sampler").items() if getattr(spec, "needs_fork", False)]
        raise RecipeError(
            f"hier.sampler.name: estimator {parts.estimator.spec.name!r} needs turns with several children, and "
            f"{sampler.name!r} never branches; choose one that does ({', '.join(able) or 'none installed'})."
        )


def check_entropy(config: Mapping[str, Any], hier: HierConfig) -> None:
    """Refuse entropies from log-probs that the server does not return."""
    server = rollout_server(str(config["actor_rollout_ref"]["rollout"]["name"]))
    if hier.rollout.entropy.source == "top_k" and not server.top_logprobs:
        raise RecipeError(
            f"hier.rollout.entropy.source: top_k needs the log-probs of the likeliest tokens, which the rollout server "
            f"{server.name!r} does not return; use sampled or prefill, or set actor_rollout_ref.rollout.name to "
            f"`transformers` or to a server whose name ends in `{TOP_LOGPROBS}`."
        )
    if hier.rollout.entropy.source == "prefill" and not server.prompt_scores:
        raise RecipeError(
            f"hier.rollout.entropy.source: prefill needs the log-probs of prompts, which the rollout server "
            f"{server.name!r} does not return; use sampled, or set actor_rollout_ref.rollout.name to one of "
            f"{servers_with('prompt_scores')}."
        )


def check_stop_strings(config: Mapping[str, Any], parts: Parts) -> None:
    """Refuse a worker that ends turns at strings on SGLang without a tokenizer, which dies of the first request
    (sgl-project/sglang#27882)."""
    worker, rollout = parts.worker.spec, config["actor_rollout_ref"]["rollout"]
    needs = worker.needs_stop_strings and rollout_server(str(rollout["name"])).stop_strings_need_tokenizer
    if needs and rollout.get("skip_tokenizer_init", True):
        raise RecipeError(
            f"actor_rollout_ref.rollout.skip_tokenizer_init: worker {worker.name!r} ends its turns at strings, which "
            "SGLang cannot see without its tokenizer; set it to false."
        )


def check_episodes(config: Mapping[str, Any], parts: Parts) -> int:
    """Refuse a `rollout.n` that does not fit the sampler, or makes groups of one for an estimator that compares."""
    n = int(config["actor_rollout_ref"]["rollout"]["n"])
    spec = parts.sampler.spec
    episodes = int(spec.episodes(parts.sampler.options, n)) if spec.episodes else n
    if parts.estimator.spec.needs_groups and episodes < 2:
        raise RecipeError(
            f"actor_rollout_ref.rollout.n: estimator {parts.estimator.spec.name!r} compares the episodes of a task, "
            f"and "
            f"n = {n} makes groups of {episodes}; set it to at least 2."
        )
    return episodes


def check_source(config: Mapping[str, Any], environment: Part) -> None:
    """Refuse an environment without tasks of its own where the recipe asks it for them."""
    if _from_environment(config) and environment.spec.tasks is None:
        raise RecipeError(
            f"data.custom_cls: environment {environment.spec.name!r} makes no tasks of its own; set "
            f"data.custom_cls.path "
            "and data.custom_cls.name to null and name parquet files in data.train_files and data.val_files."
        )


def check_tasks(config: Mapping[str, Any], environment: Part) -> None:
    """Refuse splits that are empty or too small for a step; makes the tasks, so the world's data must be there."""
    if not _from_environment(config):
        return
    wanted = {"train_files": int(config["data"]["train_batch_size"]), "val_files": 1}
    for line, least in wanted.items():
        splits = config["data"][line]
        splits = [splits] if isinstance(splits, str) else list(splits)
        found = sum(len(_tasks(environment, split, line)) for split in splits)
        if found < least:
            raise RecipeError(
                f"data.train_batch_size: a step takes {least} tasks, and environment {environment.spec.name!r} has "
                f"{found} in "
                f"{', '.join(splits)}; lower it or ask hier.environment for more."
            )


def check_curriculum(config: Mapping[str, Any], hier: HierConfig, environment: Part) -> None:
    """Refuse a curriculum over tasks that do not say how long they are; makes the tasks."""
    if not hier.curriculum.horizons:
        return
    if not _from_environment(config):
        raise RecipeError("hier.curriculum: only tasks that hier.environment makes have a horizon; remove it.")
    splits = config["data"]["train_files"]
    splits = [splits] if isinstance(splits, str) else list(splits)
    Curriculum(hier.curriculum, [task for split in splits for task in _tasks(environment, split, "train_files")])


def needs_critic(config: Mapping[str, Any]) -> bool:
    """verl's own rule (`trainer/ppo/utils.py::need_critic`) without importing verl."""
    enable = (config.get("critic") or {}).get("enable")
    return bool(enable) if enable is not None else config["algorithm"]["adv_estimator"] == "gae"


def _standard_columns() -> Iterator[str]:
    yield from TURN_COLUMNS
    yield from (f"episodes.{name}" for name in EPISODE_COLUMNS)
    yield from (f"tokens.{name}" for name in TOKEN_COLUMNS)


def _providers(host: PluginHost, column: str) -> Iterator[str]:
    """Registered parts that list the column, as recipe lines."""
    kinds: tuple[type[Spec], ...] = (EnvironmentSpec, WorkerSpec, SamplerSpec, ScheduleSpec)
    for kind in (cls.kind for cls in kinds):
        for name, spec in host.specs(kind).items():
            if column in getattr(spec, "provides", ()):
                yield f"hier.{kind}.name: {name}"


def _tasks(environment: Part, split: str, line: str) -> list[dict[str, Any]]:
    try:
        return list(environment.spec.tasks(environment.options, split))
    except HierError:
        raise
    except Exception as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise RecipeError(
            f"data.{line}: environment {environment.spec.name!r} makes no tasks for the split {split!r}: {first}"
        ) from error


def _from_environment(config: Mapping[str, Any]) -> bool:
    return (config["data"].get("custom_cls") or {}).get("name") == DATASET
