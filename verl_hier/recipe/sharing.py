"""What `engine: tree` would save of a recipe's forward and backward passes, estimated before there is a rollout."""

from __future__ import annotations

from dataclasses import dataclass

from verl_hier.recipe.checks.parts import episodes
from verl_hier.recipe.checks.rule import value
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.engine import wants_tree
from verl_hier.training.sharing import Sharing


@dataclass(frozen=True)
class ExpectedSharing:
    """The estimate, with what it assumes: one row an episode, of the longest prompt and the longest response.

    Attributes:
        prompt, response: longest ones of the recipe, in tokens.
        rows: trained episodes of a task.
        roots: how many of them begin at the task; the others part from one of these.
        asked_for: whether the recipe has the tree engine.
    """

    prompt: int
    response: int
    rows: int
    roots: int
    asked_for: bool

    @property
    def counts(self) -> Sharing:
        """The tokens of a task's rows, and their pairs of attention."""
        return Sharing.expected(self.prompt, self.response, self.rows, self.roots)

    def __str__(self) -> str:
        found, further = self.counts, self.rows - self.roots
        verb = "forwards" if self.asked_for else "would forward"
        halves = f" and {further} of them half of another one's response" if further else ""
        return (
            f"engine: tree {verb} {found.unique / found.tokens:.2f} of the tokens, {found.visible / found.pairs:.2f} "
            f"of their pairs, if a task has {self.rows} row(s) of {self.prompt} + {self.response} tokens that share "
            f"the prompt{halves}"
        )


def expected_sharing(recipe: ComposedRecipe) -> ExpectedSharing:
    """The estimate for a sound recipe."""
    rows, sampler = episodes(recipe), recipe.parts.sampler
    n = int(value(recipe.config, "actor_rollout_ref.rollout.n"))
    roots = int(sampler.spec.roots(sampler.options, n)) if sampler.spec.roots else rows
    return ExpectedSharing(
        prompt=int(value(recipe.config, "data.max_prompt_length")),
        response=int(value(recipe.config, "data.max_response_length")),
        rows=rows,
        roots=min(max(1, roots), rows),
        asked_for=wants_tree(recipe.config),
    )
