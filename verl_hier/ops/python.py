"""What notebooks and scripts call: `verl_hier.compose`, `train`, `roll_out` and `evaluate`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from verl_hier.errors import RecipeError
from verl_hier.graph import RolloutGraph, write_graphs
from verl_hier.ops.evaluation import Evaluation
from verl_hier.ops.evaluation import evaluate as measure
from verl_hier.ops.players import Source
from verl_hier.ops.rollouts import Plan, finish, recipe_of
from verl_hier.ops.rollouts import roll_out as play
from verl_hier.ops.runs import Run
from verl_hier.ops.search import sampler_words, search_of
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.overrides import hydra_value
from verl_hier.recipe.rewards import check_rewards
from verl_hier.rollout.rewards import Reward

if TYPE_CHECKING:
    from omegaconf import DictConfig

Recipe = str | os.PathLike[str]
Overrides = Mapping[str, Any] | Sequence[str]
RewardFunctions = Mapping[str, Callable[..., Any] | Reward] | Sequence[Callable[..., Any] | Reward]
_PLAIN_KEY = re.compile(r"[\w./@+~-]+")


def compose(
    recipe: Recipe,
    *words: str,
    size: str | None = None,
    model: str | None = None,
    server: str | None = None,
    overrides: Overrides = (),
) -> DictConfig:
    """The whole verl config of a recipe, as `verl-hier check` and `train` see it.

    Args:
        recipe: name of a shipped recipe, or the path of a YAML file.
        words: overrides as on the command line, `key=value` or `group=choice`.
        size, model, server: choices of the recipe.
        overrides: the same as `words`, or a mapping of keys to values: `{"trainer.total_training_steps": 3}`.

    Raises:
        RecipeError: when the recipe does not compose.
    """
    from verl_hier.recipe.compose import compose as composed

    config: DictConfig = composed(os.fspath(recipe), _words(words, size, model, server, overrides))
    return config


def train(
    recipe: Recipe,
    *words: str,
    size: str | None = None,
    model: str | None = None,
    server: str | None = None,
    overrides: Overrides = (),
    name: str | None = None,
    resume: bool = False,
    reward_funcs: RewardFunctions = (),
    reward_weights: Sequence[float] | None = None,
    report: Callable[[str], None] | None = None,
) -> Run:
    """Check a recipe and train it with verl's own main in processes of their own, as `verl-hier train` does.

    Args:
        recipe, words, size, model, server, overrides: see `compose`.
        name: name of the run's folder in `runs/<recipe>`; None for the present time.
        resume: go on with the run of that name, or with the newest run of the recipe.
        reward_funcs: reward functions besides those of the recipe, see `evaluate`; other processes have to import them.
        reward_weights: see `evaluate`.
        report: called with a line for each step; None prints it.

    Returns:
        The run; `run.model` is its policy.

    Raises:
        HierError: when the recipe cannot run, a reward function cannot be imported elsewhere, or the run fails.
    """
    from verl_hier.ops.training import plan_run, start
    from verl_hier.recipe.check import check_recipe

    rewards = _named(reward_funcs, reward_weights)
    given = [*_words(words, size, model, server, overrides), *(_reward_word(*item) for item in rewards.items())]
    plan = plan_run(os.fspath(recipe), given, name=name, resume=resume)
    check_recipe(plan.config, offline=False, command=os.fspath(recipe))
    return start(plan, report or _print)


def roll_out(
    policy: Source,
    recipe: Recipe | None = None,
    *words: str,
    size: str | None = None,
    model: str | None = None,
    server: str | None = None,
    overrides: Overrides = (),
    split: str | None = None,
    tasks: int | Sequence[int] | None = None,
    n: int | None = None,
    temperature: float | None = None,
    seed: int | None = None,
    trees: bool = False,
    served_model: str = "",
    reward_funcs: RewardFunctions = (),
    reward_weights: Sequence[float] | None = None,
) -> list[RolloutGraph]:
    """Play tasks of a recipe with a policy, without training, and return their rollout graphs.

    Args:
        policy, recipe, words, size, model, server, overrides: see `evaluate`.
        split, tasks, n, temperature, seed: see `evaluate`.
        trees: roll out as in training, with the recipe's sampler, budget and sampling; otherwise episodes are
            independent of each other, as in validation.
        served_model, reward_funcs, reward_weights: see `evaluate`.

    Returns:
        One graph a task.

    Raises:
        HierError: see `evaluate`.
    """
    chosen = _recipe(policy, recipe, _words(words, size, model, server, overrides), reward_funcs, reward_weights)
    plan = _plan(split, tasks, n, temperature, seed, trees)
    graphs, _ = finish(play(policy, chosen, plan, served_model))
    return graphs


def evaluate(
    policy: Source,
    recipe: Recipe | None = None,
    *words: str,
    size: str | None = None,
    model: str | None = None,
    server: str | None = None,
    overrides: Overrides = (),
    split: str | None = None,
    tasks: int | Sequence[int] | None = None,
    n: int | None = None,
    temperature: float | None = None,
    seed: int | None = None,
    served_model: str = "",
    reward_funcs: RewardFunctions = (),
    reward_weights: Sequence[float] | None = None,
    graphs: str | os.PathLike[str] | None = None,
    sampler: str | None = None,
    select: str | None = None,
    verifier: str = "",
    verifier_model: str = "",
) -> Evaluation:
    """Measure what a policy reaches on a split, without training, as `verl-hier eval` does.

    Args:
        policy: a run or its folder, the folder or Hugging Face name of a model, the address of an OpenAI-compatible
            endpoint, or `expert`.
        recipe: what it plays; None for the recipe of the run.
        words, size, model, server, overrides: see `compose`.
        split: split of the environment; None: the recipe's `data.val_files`.
        tasks: how many tasks, the first ones, or their numbers; None plays all.
        n: episodes of each task; None: that of the recipe's validation.
        temperature: 0 is greedy; None: that of the recipe's validation.
        seed: root of all random numbers; None: `hier.seed`.
        served_model: the model's name at the endpoint; empty for the only one that it serves.
        reward_funcs: reward functions besides those of the recipe: callables that take a `RatedEpisode`, or `Reward`s,
            which have a weight and may rate turns; as a list, named after the functions, or by name.
        reward_weights: a weight for each of `reward_funcs`; None leaves them as they are, 1 for a callable.
        graphs: file for the rollouts, `.parquet`, `.jsonl` or `.jsonl.gz`.
        sampler: searches in place of the recipe's sampler.
        select: `best`, `vote`, `value` or `verifier`: how one of the n episodes of a task is chosen; None: no search.
        verifier: address of an endpoint, a model, or a name of `hier.rewards`.
        verifier_model: the verifier's name at its endpoint.

    Raises:
        HierError: when the recipe or the policy cannot be played, the endpoint is gone, or no episode ended regularly.
    """
    said = {"sampler": sampler, "select": select, "verifier": verifier, "verifier_model": verifier_model}
    search, given = search_of(said), [*sampler_words(sampler), *_words(words, size, model, server, overrides)]
    chosen = _recipe(policy, recipe, given, reward_funcs, reward_weights)
    plan = _plan(split, tasks, n, temperature, seed)
    evaluation, rollouts = finish(measure(policy, chosen, plan, served_model, search=search))
    if graphs is not None:
        write_graphs(graphs, rollouts)
    return evaluation


def _plan(
    split: str | None,
    tasks: int | Sequence[int] | None,
    n: int | None,
    temperature: float | None,
    seed: int | None,
    trees: bool = False,
) -> Plan:
    try:
        return Plan(split, tasks, n, temperature, seed, trees=trees)
    except ValueError as error:
        raise RecipeError(f"{error}.") from error


def _recipe(
    policy: Source,
    recipe: Recipe | None,
    words: Sequence[str],
    functions: RewardFunctions,
    weights: Sequence[float] | None,
) -> ComposedRecipe:
    """The recipe that is played, with further reward functions."""
    chosen = recipe_of(policy, recipe, words)
    rewards = {**chosen.rewards, **_named(functions, weights)}
    check_rewards(rewards, chosen.parts.worker)
    return replace(chosen, rewards=rewards)


def _words(
    words: Sequence[str], size: str | None, model: str | None, server: str | None, overrides: Overrides
) -> list[str]:
    """All overrides as on the command line."""
    chosen = {"size": size, "model": model, "server": server}
    given = [f"{key}={value}" for key, value in chosen.items() if value is not None]
    if isinstance(overrides, Mapping):
        further = [as_override(key, value) for key, value in overrides.items()]
    else:
        further = [overrides] if isinstance(overrides, str) else list(overrides)
    return [*given, *words, *further]


def as_override(key: str, value: Any) -> str:
    """A key and a value as one override in Hydra's grammar; a group (`hier/size`) takes its choice as it is."""
    if not _PLAIN_KEY.fullmatch(key):
        raise RecipeError(f"the override {key!r}: this is no key of a recipe.")
    return f"{key}={value if '/' in key or key in ('size', 'model', 'server') else hydra_value(value)}"


def _named(functions: RewardFunctions, weights: Sequence[float] | None) -> dict[str, Reward]:
    """Reward functions by name, with their weights."""
    if isinstance(functions, Mapping):
        given = list(functions.items())
    else:
        given = [(_name_of(function, number), function) for number, function in enumerate(functions)]
    rewards = {name: each if isinstance(each, Reward) else Reward(each) for name, each in given}
    if len(rewards) < len(given):
        raise RecipeError("reward_funcs: two functions have the same name; give a mapping of names to functions.")
    if weights is None:
        return rewards
    if len(weights) != len(given):
        raise RecipeError(f"reward_weights: {len(weights)} weights for {len(given)} reward functions.")
    weighted = zip(rewards.items(), weights, strict=True)
    return {name: replace(reward, weight=float(weight)) for (name, reward), weight in weighted}


def _name_of(function: Callable[..., Any] | Reward, number: int) -> str:
    named = function.function if isinstance(function, Reward) else function
    name = getattr(named, "__name__", "")
    return name if name.isidentifier() else f"reward_{number}"


def _reward_word(name: str, reward: Reward) -> str:
    """A reward as an override of `hier.rewards`, which names its function."""
    function = reward.function
    reference = f"{getattr(function, '__module__', None)}:{getattr(function, '__qualname__', None)}"
    if not _importable(reference):
        raise RecipeError(
            f"reward_funcs: {name!r} cannot be used in training, whose processes cannot import {reference}; put it "
            "into a module of its own, in the working directory or in an installed package, and import it from there."
        )
    entry = {"function": reference, "weight": reward.weight, "per": reward.per}
    entry |= {"roles": list(reward.roles), "agents": list(reward.agents), "options": dict(reward.options)}
    return as_override(f"hier.rewards.{name}", entry)


def _importable(reference: str) -> bool:
    """Whether a new process in this directory can import a function."""
    if reference.startswith(("__main__:", "None:")) or "<" in reference:
        return False
    code = f"from verl_hier.host.lazy import named_function; named_function({reference!r}, '')"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
