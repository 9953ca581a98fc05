"""What `engine: tree` would save of a recipe's forward and backward passes, estimated before there is a rollout."""

from __future__ import annotations

from dataclasses import dataclass

from verl_hier.recipe.checks.lengths import shortest_prompt
from verl_hier.recipe.checks.parts import episodes
from verl_hier.recipe.checks.rule import value
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.engine import wants_tree
from verl_hier.training.sharing import Sharing


@dataclass(frozen=True)
class ExpectedSharing:
    """The estimate, with what it assumes: one row an episode, with a response as long as it may be.

    Attributes:
        prompts: fewest and most tokens of the prompt that the rows of a task share.
        response: most tokens of a response.
        rows: trained episodes of a task.
        roots: how many of them begin at the task; the others part from one of these halfway.
        asked_for: whether the recipe has the tree engine.
    """

    prompts: tuple[int, int]
    response: int
    rows: int
    roots: int
    asked_for: bool

    def counts(self, prompt: int) -> Sharing:
        """The tokens of a task's rows, and their pairs of attention, with a prompt of so many tokens."""
        return Sharing.expected(prompt, self.response, self.rows, self.roots)

    def __str__(self) -> str:
        most, least = (self.counts(prompt) for prompt in self.prompts)
        further = self.rows - self.roots
        verb = "forwards" if self.asked_for else "would forward"
        halves = f", {further} of them with the first half of another one's" if further else ""
        return (
            f"engine: tree {verb} {least.unique / least.tokens:.2f} to {most.unique / most.tokens:.2f} of the tokens, "
            f"{least.visible / least.pairs:.2f} to {most.visible / most.pairs:.2f} of their pairs, if {self.rows} "
            f"row(s) a task share a prompt of {self.prompts[0]} to {self.prompts[1]} tokens before responses of "
            f"{self.response}{halves}"
        )


def expected_sharing(recipe: ComposedRecipe) -> ExpectedSharing:
    """The estimate for a sound recipe."""
    rows, sampler = episodes(recipe), recipe.parts.sampler
    n = int(value(recipe.config, "actor_rollout_ref.rollout.n"))
    roots = int(sampler.spec.roots(sampler.options, n)) if sampler.spec.roots else rows
    return ExpectedSharing(
        prompts=(
            shortest_prompt(recipe.parts.worker.options),
            int(value(recipe.config, "data.max_prompt_length")),
        ),
        response=int(value(recipe.config, "data.max_response_length")),
        rows=rows,
        roots=min(max(1, roots), rows),
        asked_for=wants_tree(recipe.config),
    )
