"""Settings with which every shared token cannot be trained once."""

from __future__ import annotations

from typing import Any

from verl_hier.errors import RecipeError
from verl_hier.recipe.checks.lengths import ACTOR
from verl_hier.recipe.checks.rule import rule, value
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.engine import wants_tree

REF = "actor_rollout_ref.ref."
MODEL = "actor_rollout_ref.model."
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    **{f"{block}strategy": (("fsdp2",), "only FSDP2 has a tree engine") for block in (ACTOR, REF)},
    **{
        f"{block}{key}ulysses_sequence_parallel_size": ((None, 1), "a tree is not divided among devices")
        for block in (ACTOR, REF)
        for key in ("", "fsdp_config.")
    },
    ACTOR + "fsdp_config.pad_to_length": ((None, False), "trees are packed without padding"),
    ACTOR + "shuffle": ((None, False), "rows that share would be drawn into different mini-batches"),
    MODEL + "use_fused_kernels": ((None, False), "fused kernels compute every log-prob, and a tree only some"),
    MODEL + "mtp.enable": ((None, False), "a tree predicts one next token"),
    "distillation.enabled": ((None, False), "the teacher's tokens belong to rows"),
}
"""Recipe line to the values that it may have, and why no other one."""


@rule
def check_engine(recipe: ComposedRecipe) -> None:
    """Refuse, with `engine: tree`, what it does not do exactly, or what would leave it nothing to share."""
    if not wants_tree(recipe.config):
        return
    for line, (known, why) in REFUSED.items():
        given = value(recipe.config, line)
        if given not in known:
            needed = known[-1] if known[-1] is not False else "false"
            raise RecipeError(f"{line}: with engine: tree, {why}; set it to {needed}, or take engine: stock.")
