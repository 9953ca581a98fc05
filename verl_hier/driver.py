"""A recipe's rollouts: what one of them is made of, whoever answers for the policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from verl_hier.config import HierConfig
from verl_hier.environments.pool import EnvironmentPool
from verl_hier.plugins import Parts, PluginHost
from verl_hier.rollout.interfaces import Policy, Renderer
from verl_hier.rollout.rollout import Limits, Request, Rollout, roll_out
from verl_hier.trajectory import EpisodeRecord, RolloutGraph


@dataclass(frozen=True)
class Driver:
    """Rolls out tasks as a recipe says.

    Attributes:
        hier: the recipe's block.
        host: its plugins.
        parts: its five parts.
        renderer: its template with the tokenizer of its model.
        vocabulary: size of that tokenizer.
        context_tokens: longest context, where the recipe leaves it to verl's lengths.
    """

    hier: HierConfig
    host: PluginHost
    parts: Parts
    renderer: Renderer
    vocabulary: int
    context_tokens: int

    def pool(self) -> EnvironmentPool:
        """Processes for the recipe's environment."""
        part, rollout = self.parts.environment, self.hier.rollout
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
        pool: EnvironmentPool,
        on_lost: Callable[[EpisodeRecord], None] = lambda record: None,
    ) -> RolloutGraph:
        """The checked graph of one task. Evaluation takes independent episodes and knows no budget.

        Raises:
            RolloutError: when the policy server is gone or a plugin is broken.
        """
        options = self.hier.rollout
        rollout = Rollout(
            request,
            policy=policy,
            renderer=self.renderer,
            pool=pool,
            make_worker=partial(self.parts.worker.spec.factory, self.parts.worker.options),
            limits=Limits(
                options.max_turns, options.max_tokens_per_turn, options.context_tokens or self.context_tokens
            ),
            seed=self.hier.seed,
            budget=None if request.validate else options.budget,
            entropy=options.entropy,
            vocabulary=self.vocabulary,
            on_lost=on_lost,
        )
        if request.validate:
            independent = self.host.spec("sampler", "independent")
            return await roll_out(rollout, independent.factory(independent.options()))
        return await roll_out(rollout, self.parts.sampler.spec.factory(self.parts.sampler.options))
