"""The rollouts of a recipe, whichever policy generates the turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from verl_hier.environments.pool import EnvironmentPool
from verl_hier.environments.tools import Tools
from verl_hier.graph import EpisodeRecord, RolloutGraph
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.policies import played, trained
from verl_hier.rollout import Limits, Policy, Renderer, Request, Rollout, Sampler
from verl_hier.rollout.budget import BudgetOptions
from verl_hier.rollout.policy import DEFAULT_POLICY, Policies
from verl_hier.rollout.rewards import rate
from verl_hier.rollout.roles import Roles
from verl_hier.rollout.sampler import roll_out
from verl_hier.rollout.task import Environments, RolloutSetup
from verl_hier.sandbox.scripts import choose


@dataclass(frozen=True)
class Beside:
    """Policies beside the one that a rollout is given.

    Attributes:
        policies: by name.
        renderers: of those whose tokens are not those of the recipe's tokenizer.
    """

    policies: Mapping[str, Policy] = field(default_factory=dict)
    renderers: Mapping[str, Renderer] = field(default_factory=dict)


@dataclass(frozen=True)
class RolloutRunner:
    """Rolls out tasks as a recipe says.

    Attributes:
        recipe: the recipe.
        renderer: its template with the tokenizer of its model.
        vocabulary: size of that tokenizer.
        limits: limits of an episode where they are not the recipe's, else None.
        tools: loads the tools for an environment that runs in the rollout worker.
        opens: opens policies by name beside the one that is trained; see `Policies`. None: there are no others.
        beside: the policies of `hier.policies` for one task. Without it, all roles are played by the policy that
            `roll_out` is given.
    """

    recipe: ComposedRecipe
    renderer: Renderer
    vocabulary: int
    limits: Limits | None = None
    tools: Callable[[], Tools] | None = None
    opens: Callable[[str], Policy | None] | None = None
    beside: Callable[[], Beside] | None = None

    def pool(self, workers: int = 1) -> EnvironmentPool:
        """Processes for the recipe's environment.

        Args:
            workers: rollout workers of the run, each of which has a pool; they share the calls in flight.

        Raises:
            RecipeError: when the sandbox of this machine promises less than `hier.sandbox.require`.
        """
        part, rollout, sandbox = self.recipe.parts.environment, self.recipe.hier.rollout, self.recipe.hier.sandbox
        choose(sandbox.provider, sandbox.require)
        return EnvironmentPool.of(
            part.spec,
            part.options,
            rollout.environment_processes,
            rollout.time_limit_s,
            rollout.asynchronous.shared(workers),
            rollout.process,
            self.tools() if part.spec.in_worker and self.tools is not None else None,
        )

    async def roll_out(
        self,
        request: Request,
        policy: Policy,
        environments: Environments,
        on_lost: Callable[[EpisodeRecord], None] = lambda record: None,
        sampler: Sampler | None = None,
    ) -> RolloutGraph:
        """The checked graph of one task, with the rewards of the recipe's reward functions.

        Validation plays independent episodes without a budget, unless the request says that it searches.

        Args:
            request: the task.
            policy: generates the turns.
            environments: opens environments.
            on_lost: called with the record of each episode that is lost to its environment.
            sampler: decides which episodes exist in place of the recipe's, or of independent episodes.

        Raises:
            RolloutError: when the policy server is gone, or a plugin or a reward function is broken.
        """
        hier, parts = self.recipe.hier, self.recipe.parts
        beside = Beside() if self.beside is None else self.beside()
        known: dict[str, Policy] = {DEFAULT_POLICY: policy, **beside.policies}
        worker = parts.worker
        roles = Roles.of(worker.spec, worker.options)
        play = partial(played, hier.policies, [*roles.levels], every=hier.exchange_policies)
        owners = play(step=request.step)
        # An episode of an earlier step goes on with the policies that it began with, or not at all.
        carried = tuple(each for each in request.unfinished if play(step=each.began) == owners)
        setup = RolloutSetup(
            policies=known if self.opens is None else Policies(known, self.opens),
            renderer=self.renderer,
            environments=environments,
            limits=self.limits or self.recipe.limits,
            seed=hier.seed,
            budget=BudgetOptions() if request.validate and not request.searches else hier.rollout.budget,
            entropy=hier.rollout.entropy,
            vocabulary=self.vocabulary,
            says_won=parts.environment.spec.says_won,
            on_lost=on_lost,
            assigned={role: name for role, name in owners.items() if name in known},
            trained=trained(hier.policies),
            renderers=beside.renderers,
        )
        rollout = Rollout(
            replace(request, unfinished=carried), setup, partial(worker.spec.factory, worker.options), roles
        )
        graph = await roll_out(rollout, sampler or self._sampler(request))
        await rate(graph, request.task, self.recipe.rewards)
        return graph

    def _sampler(self, request: Request) -> Sampler:
        if request.validate and not request.searches:
            independent = self.recipe.host.spec("sampler", "independent")
            return independent.factory(independent.options())
        chosen = self.recipe.parts.sampler
        return chosen.spec.factory(chosen.options)
