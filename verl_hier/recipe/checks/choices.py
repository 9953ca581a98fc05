"""Names that nobody knows: rollout servers, losses, advantages, loggers, optimisers, and words of a fixed set."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterable

from verl_hier.errors import RecipeError, did_you_mean
from verl_hier.recipe.checks.rule import needs_critic, rule, there, value
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.verl_facts import names

ACTOR = "actor_rollout_ref.actor."
ROLLOUT = "actor_rollout_ref.rollout."
_KL = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
_SCHEDULERS = ("constant", "cosine")
_AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
_STRATEGIES = ("fsdp", "fsdp2", "fsdp_turbo", "megatron", "veomni", "torchtitan", "automodel")
_CONTENTS = ("model", "optimizer", "extra", "hf_model")

CHOICES: dict[str, tuple[object, ...]] = {
    "trainer.device": ("cpu", "cuda", "npu"),
    "trainer.resume_mode": ("auto", "disable", "resume_path"),
    "data.truncation": ("error", "left", "right", "middle"),
    "algorithm.kl_penalty": (*_KL, *(f"{kind}+" for kind in _KL)),
    "algorithm.kl_ctrl.type": ("fixed", "adaptive"),
    ACTOR + "strategy": _STRATEGIES,
    ACTOR + "loss_agg_mode": _AGGREGATIONS,
    ACTOR + "kl_loss_type": (*_KL, *(f"{kind}+" for kind in _KL)),
    ACTOR + "optim.lr_scheduler_type": _SCHEDULERS,
    ACTOR + "optim.warmup_style": (None, *_SCHEDULERS),
    "critic.strategy": _STRATEGIES,
    "critic.loss_agg_mode": _AGGREGATIONS,
    "critic.optim.lr_scheduler_type": _SCHEDULERS,
    ROLLOUT + "mode": ("async",),
    ROLLOUT + "dtype": ("bfloat16", "float16", "float32", "auto", "half", "float"),
}
"""Recipe line to the words that it may hold; verl has no registry for these."""

SETS: dict[str, tuple[str, ...]] = {
    ACTOR + "checkpoint.save_contents": _CONTENTS,
    ACTOR + "checkpoint.load_contents": _CONTENTS,
}
"""Recipe line to the words of which it may list some."""


@rule
def check_rollout_server(recipe: ComposedRecipe) -> None:
    """Refuse a rollout server that neither verl nor verl-hier has."""
    line = ROLLOUT + "name"
    _require(
        line,
        value(recipe.config, line),
        {*recipe.host.specs("rollout_server"), *names.ROLLOUT_SERVERS.names()},
        "rollout server",
    )


@rule
def check_policy_loss(recipe: ComposedRecipe) -> None:
    """Refuse a policy loss that neither verl nor a plugin of the recipe has registered."""
    line = ACTOR + "policy_loss.loss_mode"
    # The workers import this module, which may register more.
    open_ended = value(recipe.config, "actor_rollout_ref.model.external_lib")
    if there(recipe.config, line) and not open_ended:
        known = {*names.POLICY_LOSSES.names(), *recipe.host.specs("policy_loss")}
        _require(line, value(recipe.config, line), known, "policy loss")


@rule
def check_extensions(recipe: ComposedRecipe) -> None:
    """Refuse a block that asks for something beside verl's actor which no enabled plugin has."""
    recipe.extensions  # noqa: B018 - raises


@rule
def check_advantage(recipe: ComposedRecipe) -> None:
    """Refuse an advantage estimator that verl does not have."""
    line = "algorithm.adv_estimator"
    _require(line, value(recipe.config, line), names.ADVANTAGE_ESTIMATORS.names(), "advantage estimator")


@rule
def check_loggers(recipe: ComposedRecipe) -> None:
    """Refuse a logger that verl does not have."""
    given = value(recipe.config, "trainer.logger")
    for name in given if isinstance(given, list | tuple) else [given]:
        _require("trainer.logger", name, {*names.LOGGERS.names(), "tracking"}, "logger")


@rule
def check_optimiser(recipe: ComposedRecipe) -> None:
    """Refuse an optimiser that its module does not have."""
    for block in ("actor_rollout_ref.actor.optim", *(("critic.optim",) if needs_critic(recipe.config) else ())):
        name, module = value(recipe.config, f"{block}.optimizer"), value(recipe.config, f"{block}.optimizer_impl")
        if module == "torch.optim" and name not in names.optimisers():
            raise RecipeError(
                f"{block}.optimizer: torch.optim has no {name!r}{did_you_mean(str(name), names.optimisers())}."
            )
        if module is not None and importlib.util.find_spec(str(module).partition(".")[0]) is None:
            raise RecipeError(f"{block}.optimizer_impl: the module {module!r} is not installed.")


@rule
def check_words(recipe: ComposedRecipe) -> None:
    """Refuse a word that is not of the set which its line can have."""
    critic = needs_critic(recipe.config)
    for line, known in CHOICES.items():
        if not there(recipe.config, line) or (line.startswith("critic.") and not critic):
            continue
        given = value(recipe.config, line)
        if given not in known:
            raise RecipeError(f"{line}: {given!r} is not one of {_listed(known)}{_near(given, known)}.")
    for line, words in SETS.items():
        given = value(recipe.config, line)
        if not isinstance(given, list | tuple | None):
            raise RecipeError(f"{line}: expected a list of {_listed(words)}, got {given!r:.60}.")
        for word in given or ():
            if word not in words:
                raise RecipeError(f"{line}: {word!r} is not one of {_listed(words)}{_near(word, words)}.")


def _require(line: str, name: object, known: Collection[str], what: str) -> None:
    if not isinstance(name, str) or name not in known:
        words = sorted(known)
        raise RecipeError(f"{line}: there is no {what} {name!r}{_near(name, words)}; known are {', '.join(words)}.")


def _near(given: object, known: Iterable[object]) -> str:
    return did_you_mean(str(given), [str(word) for word in known])


def _listed(words: Iterable[object]) -> str:
    return ", ".join("null" if word is None else str(word) for word in words)
