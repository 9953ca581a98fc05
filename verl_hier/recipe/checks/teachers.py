"""Teachers of roles that could not be asked, or would teach nobody."""

from __future__ import annotations

from verl_hier.errors import RecipeError
from verl_hier.recipe.checks.policies import require_name, require_same_tokens
from verl_hier.recipe.checks.roles import require_role, worker_levels
from verl_hier.recipe.checks.rule import rule, value
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.engine import wants_tree
from verl_hier.recipe.policies import assigned


@rule
def check_teachers(recipe: ComposedRecipe) -> None:
    """Refuse teachers with names that no metric can have, with other tokens, or of roles that are not there, that have
    another teacher or that never learn."""
    hier = recipe.hier
    if not hier.teachers:
        return
    base, known = str(value(recipe.config, "actor_rollout_ref.model.path")), worker_levels(recipe.parts.worker)
    owner, never = dict[str, str](), _never_learning(recipe)
    for name, teacher in hier.teachers.items():
        line = f"hier.teachers.{name}"
        require_name("hier.teachers", name, "a teacher")
        for role in teacher.roles or known:
            require_role(recipe.parts.worker, role, f"{line}.roles")
            if role in owner:
                raise RecipeError(f"{line}.roles: the role {role!r} has the teacher {owner[role]!r} already.")
            if role in never and teacher.roles:
                raise RecipeError(
                    f"{line}.roles: the role {role!r} has the policy {never[role]!r}, which never learns; leave it out."
                )
            owner[role] = name
        require_same_tokens(f"{line}.model", teacher.model, base, "take a teacher with the same tokenizer")


@rule
def check_parts_beside_teachers(recipe: ComposedRecipe) -> None:
    """Refuse what a teacher's word cannot be added to, or was not tried with one."""
    if not recipe.hier.teachers:
        return
    estimator = recipe.parts.estimator.spec
    if estimator.native:
        raise RecipeError(
            f"hier.estimator.name: the advantages of {estimator.name!r} are verl's own, to which no teacher adds; take "
            "another estimator, such as grpo."
        )
    if wants_tree(recipe.config):
        raise RecipeError("engine=tree: a teacher reads rows and no trees; take engine=stock.")
    if value(recipe.config, "trainer.v1.trainer_mode") == "hier_separate_async":
        raise RecipeError(
            "trainer.v1.trainer_mode: hier_separate_async: a teacher was not tried there; take hier_sync or "
            "hier_colocate_async."
        )


def _never_learning(recipe: ComposedRecipe) -> dict[str, str]:
    policies = recipe.hier.policies
    return {role: name for role, name in assigned(policies).items() if policies[name].train == "none"}
