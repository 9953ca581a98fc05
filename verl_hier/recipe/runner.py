"""The rollouts of a recipe, whichever policy generates the turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from verl_hier.environments.pool import EnvironmentPool
from verl_hier.graph import EpisodeRecord, RolloutGraph
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.rollout import Policy, Renderer, Request, Rollout
from verl_hier.rollout.budget import BudgetOptions
from verl_hier.rollout.policy import DEFAULT_POLICY
from verl_hier.rollout.sampler import roll_out
from verl_hier.rollout.task import Environments, RolloutSetup


@dataclass(frozen=True)
class RolloutRunner:
    """Rolls out tasks as a recipe says.

    Attributes:
        recipe: the recipe.
        renderer: its template with the tokenizer of its model.
        vocabulary: size of that tokenizer.
    """

    recipe: ComposedRecipe
    renderer: Renderer
    vocabulary: int

    def pool(self) -> EnvironmentPool:
        """Processes for the recipe's environment."""
        part, rollout = self.recipe.parts.environment, self.recipe.hier.rollout
        return EnvironmentPool(
            part.spec.factory,
            part.options,
            processes=rollout.environment_processes,
            time_limit_s=rollout.time_limit_s,
        )

    async def roll_out(
        self,
        request: Request,
        policy: Policy,
        environments: Environments,
        on_lost: Callable[[EpisodeRecord], None] = lambda record: None,
    ) -> RolloutGraph:
        """The checked graph of one task. Validation plays independent episodes without a budget.

        Raises:
            RolloutError: when the policy server is gone or a plugin is broken.
        """
        hier, parts = self.recipe.hier, self.recipe.parts
        setup = RolloutSetup(
            policies={DEFAULT_POLICY: policy},
            renderer=self.renderer,
            environments=environments,
            limits=self.recipe.limits,
            seed=hier.seed,
            budget=BudgetOptions() if request.validate else hier.rollout.budget,
            entropy=hier.rollout.entropy,
            vocabulary=self.vocabulary,
            on_lost=on_lost,
        )
        rollout = Rollout(request, setup, partial(parts.worker.spec.factory, parts.worker.options))
        if request.validate:
            independent = self.recipe.host.spec("sampler", "independent")
            return await roll_out(rollout, independent.factory(independent.options()))
        return await roll_out(rollout, parts.sampler.spec.factory(parts.sampler.options))
