"""Loss weights that the policy loss cannot honour.

What a loss does with them is in `training.loss_table`; a loss of a plugin says it in its `PolicyLossSpec`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from verl_hier.errors import RecipeError
from verl_hier.recipe.checks.lengths import ACTOR
from verl_hier.recipe.checks.rule import rule, value
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.training.loss_table import PolicyLossOfRun

LOSS = ACTOR + "policy_loss.loss_mode"
WEIGHT_BY = "hier.guards.weight_by"


@rule
def check_loss_weights(recipe: ComposedRecipe) -> None:
    """Refuse loss weights, whether from `hier.guards`, the estimator or the schedule, with a policy loss that does not
    multiply tokens by them."""
    loss = PolicyLossOfRun.of(recipe.config, recipe.host)
    if loss.weights == "token":
        _require_fixed_width(recipe, loss)
        return
    for line, instead, in_row in _weighing(recipe, loss):
        if loss.weights == "row" and in_row:
            continue
        what = {
            "row": "has one weight and one credit for each row, and cannot weigh tokens of one row differently",
            "none": "does not read loss weights",
            "ratio": "takes loss weights for an importance ratio",
            None: "does not say what it does with loss weights (`weights` of its PolicyLossSpec)",
        }[loss.weights]
        raise RecipeError(f"{line}: the policy loss {loss.name!r} {what}; {instead}, or set {LOSS} to vanilla.")
    if loss.weights == "row" and _by_units(recipe, loss) and value(recipe.config, ACTOR + "use_dynamic_bsz"):
        raise RecipeError(
            f"{ACTOR}use_dynamic_bsz: the policy loss {loss.name!r} is a mean over the rows of each micro-batch, whose "
            f"number varies with it, so {WEIGHT_BY}: {recipe.hier.guards.weight_by} cannot be honoured; set it to "
            f"false, or {WEIGHT_BY} to token."
        )


@rule
def check_dro(recipe: ComposedRecipe) -> None:
    """Refuse the policy loss `dro` without the coefficient that it insists on."""
    line = ACTOR + "policy_loss.dro_beta"
    beta = value(recipe.config, line)
    if value(recipe.config, LOSS) == "dro" and not (isinstance(beta, int | float) and 0 < beta < math.inf):
        raise RecipeError(f"{line}: the policy loss 'dro' needs a number above 0, got {beta!r}.")


def _by_units(recipe: ComposedRecipe, loss: PolicyLossOfRun) -> bool:
    """Whether `weight_by` makes loss weights: not where the loss adds up tokens that way by itself."""
    by = recipe.hier.guards.weight_by
    return not (by == "token" or (by == "row" and loss.row_mean))


def _weighing(recipe: ComposedRecipe, loss: PolicyLossOfRun) -> Iterator[tuple[str, str, bool]]:
    """Recipe lines that give tokens loss weights, each with what to set instead, and whether all tokens of a row get
    the same one."""
    guards, parts = recipe.hier.guards, recipe.parts
    if _by_units(recipe, loss):
        token = "row (as this loss counts them by itself)" if loss.row_mean else "token"
        yield f"{WEIGHT_BY}: {guards.weight_by}", f"set it to {token}", guards.weight_by in ("row", "episode")
    if guards.shared_prefix == "first_owner":
        yield "hier.guards.shared_prefix: first_owner", "set it to once", False
    for kind, part in (("estimator", parts.estimator), ("schedule", parts.schedule)):
        weighs = "" if part.spec.weighs is None else part.spec.weighs(part.options)
        if weighs:
            yield f"hier.{kind}.{weighs}", "change it so that no turn is weighed in the loss", False


def _require_fixed_width(recipe: ComposedRecipe, loss: PolicyLossOfRun) -> None:
    """Refuse the one mode of verl's `agg_loss` whose scale is not the same in every micro-batch."""
    line = ACTOR + "loss_scale_factor"
    if loss.mode == "seq-mean-token-sum-norm" and value(recipe.config, line) is None and _by_units(recipe, loss):
        raise RecipeError(
            f"{line}: with {ACTOR}loss_agg_mode: {loss.mode} and without this line verl divides by the length of the "
            f"longest row of each micro-batch, so {WEIGHT_BY}: {recipe.hier.guards.weight_by} cannot be honoured; set "
            f"it to a number, such as data.max_response_length, or {WEIGHT_BY} to token."
        )
