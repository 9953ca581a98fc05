"""Search at test time: the samplers that train, and a choice among the episodes that they make of each task."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from verl_hier.environments.base import FINAL_ANSWER
from verl_hier.errors import RecipeError, did_you_mean
from verl_hier.host.part import Part
from verl_hier.ops.abilities import require_abilities
from verl_hier.ops.players import EXPERT, Source, is_endpoint, run_of
from verl_hier.ops.rollouts import Plan, resolve_plan
from verl_hier.ops.saved_critic import SavedCritic
from verl_hier.ops.verifier import NAME as VERIFIER
from verl_hier.ops.verifier import Verifier, verifier_of
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.rollout.rewards import Reward

Select = Literal["best", "vote", "value", "verifier"]


@dataclass(frozen=True)
class Search:
    """How one of the episodes of a task is chosen.

    Attributes:
        select: `best` by the outcome itself, an upper bound; `vote` by the answer that most of them give; `value` by
            the critic that the run has saved; `verifier` by what a model, or a reward function of the recipe, says of
            it.
        verifier: address of an OpenAI-compatible endpoint, folder or Hugging Face name of a model, or a name of
            `hier.rewards`.
        verifier_model: the verifier's name at its endpoint.
    """

    select: str
    verifier: str = ""
    verifier_model: str = ""

    def __post_init__(self) -> None:
        if self.select not in get_args(Select):
            known = ", ".join(get_args(Select))
            raise RecipeError(
                f"select: there is no {self.select!r}{did_you_mean(self.select, get_args(Select))}; choose {known}."
            )
        if bool(self.verifier) != (self.select == "verifier"):
            raise RecipeError(
                "verifier: give the address of an endpoint, a model, or a name of hier.rewards with select=verifier, "
                "and with no other choice."
            )
        if self.verifier_model and not is_endpoint(self.verifier):
            raise RecipeError("verifier_model: it names a model of an endpoint; give its address as verifier.")


def said_in_words(said: Mapping[str, Any], words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The options of a search with those among the overrides: `select=vote` is `--select vote`, `n=16` is `-n 16`.

    Args:
        said: the options by name; None and empty where they are not given.
        words: overrides.

    Returns:
        the options, and the overrides that are none of them.

    Raises:
        RecipeError: when one is given twice, or n is no whole number above 0.
    """
    found, rest = dict(said), []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in said:
            rest.append(word)
        elif found[name] not in (None, ""):
            raise RecipeError(f"{name}: given twice, as {found[name]} and as {value}.")
        elif name == "n" and not (value.isascii() and value.isdecimal() and int(value[:9])):
            raise RecipeError(f"n: a whole number above 0 is needed, not {value!r:.60}.")
        else:
            found[name] = int(value) if name == "n" else value
    return found, rest


def search_of(said: Mapping[str, Any]) -> Search | None:
    """The search that some options ask for; None where they ask for none.

    Raises:
        RecipeError: when they do not fit each other.
    """
    if said["select"] is None:
        alone = next((name for name in ("sampler", "verifier", "verifier_model") if said[name]), None)
        if alone is not None:
            choices = "|".join(get_args(Select))
            raise RecipeError(f"{alone}: also say how one episode of each task is chosen, by select={choices}.")
        return None
    return Search(said["select"], said["verifier"] or "", said["verifier_model"] or "")


def sampler_words(sampler: str | None) -> list[str]:
    """The override of a recipe by which another sampler takes the place of its own; none for its own.

    Raises:
        RecipeError: for what cannot be a name.
    """
    if sampler is not None and not re.fullmatch(r"[\w.-]{1,80}", sampler):
        raise RecipeError(f"sampler: {sampler!r:.80} is no name of a sampler; `verl-hier samplers` lists them.")
    return [] if sampler is None else [f"hier.sampler={{name: {sampler}}}"]


@dataclass(frozen=True)
class Prepared:
    """A search that can be made.

    Attributes:
        search: it.
        recipe: the recipe with the sampler's options for this n, and with the verifier among its rewards.
        plan: what is played.
        verifier: asked by a reward of the recipe; None where no model of its own is.
        critic: of the run, to select by its value.
    """

    search: Search
    recipe: ComposedRecipe
    plan: Plan
    verifier: Verifier | None = None
    critic: SavedCritic | None = None


def prepare(source: Source, recipe: ComposedRecipe, plan: Plan, search: Search) -> Prepared:
    """Check that a policy can be searched with, before anything is loaded.

    Raises:
        RecipeError: naming what the sampler or the choice needs and does not have.
    """
    if source == EXPERT:
        raise RecipeError("select: the expert plays a task once, by rule; search with a model, a run or an endpoint.")
    plan = replace(plan, search=True)
    resolved = resolve_plan(recipe, plan)
    recipe = replace(recipe, parts=replace(recipe.parts, sampler=_sized(recipe.parts.sampler, resolved.n)))
    require_abilities(recipe, source)
    if resolved.n > 1 and not resolved.sampling.temperature:
        raise RecipeError("temperature: at 0 all episodes of a search are the same; give a temperature above 0.")
    environment = recipe.parts.environment
    if search.select == "vote" and FINAL_ANSWER not in environment.spec.fills(environment.options):
        able = [name for name, spec in recipe.host.specs("environment").items() if FINAL_ANSWER in _may_fill(spec)]
        raise RecipeError(
            f"select=vote: the environment {environment.spec.name!r} has no final answers to vote on; choose best or "
            f"verifier, or an environment with answers ({', '.join(able) or 'none installed'})."
        )
    if search.select == "value":
        return Prepared(search, recipe, plan, critic=SavedCritic.of(run_of(source), recipe))
    if search.select != "verifier" or search.verifier in recipe.rewards:
        return Prepared(search, recipe, plan)
    verifier = verifier_of(recipe, search.verifier, search.verifier_model)
    asked = {**recipe.rewards, VERIFIER: Reward(verifier, weight=0.0)}
    return Prepared(search, replace(recipe, rewards=asked), plan, verifier)


def _may_fill(spec: Any) -> Sequence[str]:
    found: Sequence[str] = spec.fills()
    return found


def _sized(sampler: Part, n: int) -> Part:
    """The sampler with options with which it makes n leaves.

    Raises:
        RecipeError: of the sampler, where it cannot.
    """
    spec = sampler.spec
    try:
        if spec.episodes is not None:
            spec.episodes(sampler.options, n)
    except RecipeError:
        if spec.sized is None:
            raise
        return Part(spec, spec.sized(sampler.options, n))
    return sampler
