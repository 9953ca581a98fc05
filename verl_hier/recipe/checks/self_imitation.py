"""Self-imitation beside something that rows of earlier steps cannot have."""

from __future__ import annotations

from collections.abc import Iterator

from verl_hier.errors import RecipeError
from verl_hier.recipe.checks.lengths import ACTOR
from verl_hier.recipe.checks.losses import LOSS
from verl_hier.recipe.checks.rule import needs_critic, rule, value
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.engine import wants_tree
from verl_hier.recipe.policies import learning
from verl_hier.training.loss_table import PolicyLossOfRun

WITHOUT_RATIO = ("gpg",)
"""Policy losses that do not read the log-probs of the policy that sampled."""


@rule
def check_self_imitation(recipe: ComposedRecipe) -> None:
    """Refuse self-imitation with what does not fit rows of earlier steps: asynchronous trainers, the tree engine, a
    critic, teachers, several policies that learn, other schedules than `joint`, micro-batches of one size, and losses
    without a ratio."""
    if recipe.hier.self_imitation is None:
        return
    for line, why in _in_the_way(recipe):
        raise RecipeError(f"{line}: {why}; change it, or remove hier.self_imitation.")


def _in_the_way(recipe: ComposedRecipe) -> Iterator[tuple[str, str]]:
    """Lines of a recipe with which kept rows cannot train, and why."""
    hier, config = recipe.hier, recipe.config
    mode, schedule = value(config, "trainer.v1.trainer_mode"), recipe.parts.schedule.spec.name
    loss = PolicyLossOfRun.of(config, recipe.host)
    if mode != "hier_sync":
        yield "trainer.v1.trainer_mode", f"rows of {mode} have been sampled by older policies than that of their step"
    if wants_tree(config):
        yield "engine=tree", "kept rows share no tokens with those of a step, and were not tried with it"
    if needs_critic(config):
        yield "critic.enable", "kept rows have no values, and were not tried beside a critic"
    if learning(hier.policies):
        yield "hier.policies", "kept rows train one policy"
    if hier.teachers:
        yield "hier.teachers", "a teacher is not asked about kept rows"
    if schedule != "joint":
        yield f"hier.schedule.name: {schedule}", "a kept row would train roles that do not learn in a later step"
    if hier.update.max_kl is not None:
        yield "hier.update.max_kl", "kept rows are of older policies, from which the policy has moved by design"
    if not value(config, ACTOR + "use_dynamic_bsz"):
        yield (
            ACTOR + "use_dynamic_bsz",
            "as many kept rows train as are good, which micro-batches of one size do not take",
        )
    if value(config, ACTOR + "use_kl_loss"):
        yield ACTOR + "use_kl_loss", "kept rows have no log-probs of a reference policy"
    if loss.weights != "token":
        yield LOSS, f"the policy loss {loss.name!r} does not multiply each token by a weight, which kept rows have"
    if loss.name in WITHOUT_RATIO:
        yield LOSS, f"the policy loss {loss.name!r} has no ratio to the policy that sampled, which kept rows need"
