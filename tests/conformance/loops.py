"""Recorded cases of whole training loops: readers, rewards, rules, credit, loss and optimiser steps.

The name of a file says what kind of case it holds, and which recipe is asked. A file is one case, or a list of them;
`theirs` is what the authors' code gave. A case goes through what the recipe names at `size=node`, where it has its
paper group: its estimator, worker, rewards, loss weights and mini-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.conformance import loop_numbers, loop_texts
from tests.conformance.layout import Case
from verl_hier.recipe.catalogue import find
from verl_hier.recipe.composed import ComposedRecipe


def theirs(case: Case) -> Any:
    """What the authors' code gave."""
    return case["theirs"]


def under(name: str) -> Callable[[Case], Any]:
    """What the authors' code gave, where a case holds several methods."""
    return lambda case: case[name]["theirs"]


@dataclass(frozen=True)
class Loop:
    """A kind of cases.

    Attributes:
        recipe: the recipe that is asked.
        run: what that recipe gives for a case.
        expected: what a case says that the authors' code gave.
    """

    recipe: str
    run: Callable[[ComposedRecipe, Case], Any]
    expected: Callable[[Case], Any] = theirs


LOOPS: Mapping[str, tuple[Loop, ...]] = {
    "alfworld_projection": (Loop("gigpo_alfworld", loop_texts.action_and_format),),
    "arpo_reward": (Loop("arpo_search", loop_texts.reward),),
    "at_grpo_what_the_second_agent_reads": (Loop("at_grpo_team_math", loop_texts.what_agents_read),),
    "branpo_reward": (Loop("branpo_search", loop_texts.reward),),
    "coda_reward": (Loop("coda_search", loop_texts.delegation_terms),),
    "diff_spiral_rae": (Loop("spiral_games", loop_numbers.spiral),),
    "hiper_reading": (Loop("hiper_alfworld", loop_texts.switch_and_keep),),
    "igpo_optimiser_steps": (Loop("igpo_search", loop_numbers.igpo_steps),),
    "igpo_reward": (Loop("igpo_search", loop_texts.reward),),
    "igpo_trainer_mask": (Loop("igpo_search", loop_numbers.igpo, loop_numbers.igpo_expected),),
    "marft_action_ratio": (Loop("marft_math", loop_numbers.action_loss, lambda case: case["theirs_sum_mode"]),),
    "marft_standardise": (Loop("marft_math", loop_numbers.standardised),),
    "mars_loss_aggregation": (Loop("mars_games", loop_numbers.aggregated),),
    "metaagentx_group_mode": (Loop("metaagentx_python_tool", loop_numbers.metaagentx),),
    "metaagentx_optimiser_steps": (Loop("metaagentx_python_tool", loop_numbers.metaagentx_steps),),
    "pass_branpo_std_False": (Loop("branpo_search", loop_numbers.branpo),),
    "pass_branpo_std_True": (Loop("branpo_search", loop_numbers.branpo),),
    "pass_coda_peco": (Loop("coda_search", loop_numbers.coda),),
    "pass_gigpo_hgpo_edges": (
        Loop("gigpo_alfworld", loop_numbers.gigpo, under("gigpo")),
        Loop("hgpo_alfworld", loop_numbers.hgpo, under("hgpo")),
    ),
    "pass_hiper_advantages": (Loop("hiper_alfworld", loop_numbers.hiper),),
    "pass_spiral_rae": (Loop("spiral_games", loop_numbers.spiral),),
    "pass_tree_grpo_tree": (Loop("tree_grpo_search", loop_numbers.tree_grpo),),
    "pass_treerl": (Loop("treerl_math", loop_numbers.treerl),),
    "rlvmr_rules": (Loop("rlvmr_alfworld", loop_texts.tagged_steps),),
    "tree_grpo_reward": (Loop("tree_grpo_search", loop_texts.reward),),
    "treerl_loss_aggregation": (Loop("treerl_math", loop_numbers.loss_and_gradient),),
}


def cases_of(data: Any) -> list[Case]:
    """The cases of a file: it is one, or a list of them."""
    return list(data) if isinstance(data, Sequence) else [data]


@cache
def at_node(recipe: str, *overrides: str) -> ComposedRecipe:
    """A recipe with the authors' settings, as a node with GPUs runs it."""
    words = next(words for words in find(recipe).combinations() if "size=node" in words)
    return ComposedRecipe.named(recipe, [*words, *overrides])
