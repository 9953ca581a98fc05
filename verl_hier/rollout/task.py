"""What the episodes of one task share: the request, the graph, policies, environments, budget and random generators."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from verl_hier.environments.base import StepResult
from verl_hier.environments.pool import EnvironmentFailure
from verl_hier.errors import GraphError, RolloutError
from verl_hier.graph.nodes import EpisodeRecord, Node, RolloutGraph
from verl_hier.host.specs import Fork
from verl_hier.rollout.budget import Budget, BudgetOptions
from verl_hier.rollout.entropy import EntropyOptions
from verl_hier.rollout.policy import DEFAULT_POLICY, Policy, Renderer, Sampling, Scored
from verl_hier.rollout.replay_log import Event
from verl_hier.rollout.roles import Roles
from verl_hier.rollout.seeds import derive, generator
from verl_hier.rollout.unfinished import UnfinishedEpisode, task_seed_name


class EnvironmentHandle(Protocol):
    """One environment in which an episode acts; see `environments.pool.Handle`."""

    async def step(self, action: str) -> StepResult:
        """Apply an action. Raises `EnvironmentFailure` when the environment is lost."""

    async def fork(self) -> EnvironmentHandle:
        """An independent environment in the same state."""

    async def close(self) -> None:
        """Free the environment."""


class Environments(Protocol):
    """Where environments come from; see `environments.pool.EnvironmentPool`.

    Attributes:
        forks: how they are copied, see `EnvironmentSpec.fork`.
    """

    forks: Fork

    async def open(self, task: Mapping[str, Any], seed: int) -> tuple[EnvironmentHandle, StepResult]:
        """An environment that was reset to `task`, and its answer to the reset."""

    async def resume(
        self, task: Mapping[str, Any], seed: int, actions: Sequence[str], steps: Sequence[StepResult]
    ) -> EnvironmentHandle:
        """An environment in which `actions` were taken and answered by `steps`, the first of which is the reset."""


@dataclass(frozen=True)
class Limits:
    """Limits of one episode; see `recipe.schema.RolloutOptions`."""

    max_turns: int = 30
    max_tokens_per_turn: int = 512
    context_tokens: int = 4096
    quote_characters: int = 32_000


@dataclass(frozen=True)
class Request:
    """One task to roll out.

    Attributes:
        task: JSON-able task of the environment; `instruction` is the task in words.
        identity: what the graph stores of it: `uid`, `index`, `data_source`.
        n: leaves to train.
        step: trainer step; with `index` it names the random generators.
        levels: levels that learn in this step, None for all; a sampler need not roll out what only others need.
        validate: evaluation only.
        sampling: temperature, top-p and top-k of the recipe.
        unfinished: episodes of the task that earlier steps have left unfinished.
        told: what the schedule tells the workers of this task, JSON-able; see `Schedule.told`.
        likelihoods: answers to `EpisodeView.likelihoods` and `EpisodeView.once` that are known already, in a replay.
        searches: an evaluation in which the recipe's sampler decides which episodes exist, within the budget of the
            recipe; otherwise those of evaluations are independent of each other.
    """

    task: Mapping[str, Any]
    identity: Mapping[str, Any]
    n: int
    step: int = 0
    levels: frozenset[int] | None = None
    validate: bool = False
    sampling: Sampling = field(default_factory=Sampling)
    unfinished: tuple[UnfinishedEpisode, ...] = ()
    told: Mapping[str, Any] = field(default_factory=dict)
    likelihoods: Mapping[str, float] = field(default_factory=dict)
    searches: bool = False

    @classmethod
    def of(cls, graph: RolloutGraph, task: Mapping[str, Any]) -> Request:
        """The request that led to a stored graph.

        Raises:
            GraphError: when the graph does not contain it.
        """
        stored, uid = graph.request, graph.task.get("uid")
        missing = [name for name in ("n", "validate", "levels", "temperature", "top_p", "top_k") if name not in stored]
        if missing:
            raise GraphError(f"the graph of task {uid} does not contain the request it answers: `{missing[0]}`.")
        # Samplers may make fewer than they were asked for, but not by this factor.
        if stored["n"] > 100 * len(graph.episodes):
            raise GraphError(
                f"the graph of task {uid} answers a request for {stored['n']} episodes with {len(graph.episodes)}."
            )
        try:
            unfinished = tuple(UnfinishedEpisode.resumed_in(graph))
        except KeyError as error:
            raise GraphError(f"the graph of task {uid} continues an episode in the middle of a context.") from error
        return cls(
            task=task,
            identity=graph.task,
            n=stored["n"],
            step=graph.step,
            levels=None if stored["levels"] is None else frozenset(stored["levels"]),
            validate=stored["validate"],
            searches=stored.get("searches", False),
            sampling=Sampling(stored["temperature"], stored["top_p"], stored["top_k"]),
            unfinished=unfinished,
            told=stored.get("told", {}),
            likelihoods=stored.get("likelihoods", {}),
        )

    def to_dict(self) -> dict[str, Any]:
        """What the graph stores of it, for a replay."""
        return {
            "n": self.n,
            "validate": self.validate,
            "levels": None if self.levels is None else sorted(self.levels),
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "top_k": self.sampling.top_k,
            **({"searches": True} if self.searches else {}),
            **({"told": dict(self.told)} if self.told else {}),
            **({"likelihoods": dict(self.likelihoods)} if self.likelihoods else {}),
        }


@dataclass(frozen=True)
class EarlierReward:
    """A reward that was given after the turn `given` and credited to `credited`, an earlier turn of another agent."""

    given: Node
    credited: Node
    amount: float


@dataclass(frozen=True)
class RolloutSetup:
    """What the rollouts of all tasks of a recipe have in common.

    Attributes:
        policies: by name; contexts that name none take `DEFAULT_POLICY`.
        renderer: turns messages into tokens.
        environments: opens environments.
        limits: limits of each episode.
        seed: root seed, None to let the policy server choose.
        budget: limits of each task.
        entropy: where the entropies of sampled tokens come from.
        vocabulary: size of the model's vocabulary, 0 when unknown.
        says_won: see `EnvironmentSpec.says_won`.
        on_lost: called with the record of each episode that is lost to its environment.
        assigned: the policy of each role that has another one than `DEFAULT_POLICY`.
        trained: policies whose turns are trained; those of others are part of the episode alone.
        renderers: what turns messages into tokens for policies that have another renderer than `renderer`.
    """

    policies: Mapping[str, Policy]
    renderer: Renderer
    environments: Environments
    limits: Limits = field(default_factory=Limits)
    seed: int | None = 0
    budget: BudgetOptions = field(default_factory=BudgetOptions)
    entropy: EntropyOptions = field(default_factory=EntropyOptions)
    vocabulary: int = 0
    says_won: bool | None = None
    on_lost: Callable[[EpisodeRecord], None] = lambda record: None
    assigned: Mapping[str, str] = field(default_factory=dict)
    trained: frozenset[str] = frozenset({DEFAULT_POLICY})
    renderers: Mapping[str, Renderer] = field(default_factory=dict)

    def renderer_of(self, policy: str) -> Renderer:
        """What turns messages into tokens for a policy."""
        return self.renderers.get(policy, self.renderer)


class TaskRollout:
    """What the episodes of one task share. Samplers see it as `Rollout`.

    Attributes:
        request: the task.
        graph: every turn and episode so far.
        budget: what the task has spent and may still spend.
        roles: the roles that the worker declares; None where nothing declares them.
        top_logprobs: number of likeliest tokens to store for each position (`Node.top`); set by samplers that declare
            `needs_top_logprobs`.
        unfinished: episodes of the task that earlier steps have left unfinished, oldest first; see `Rollout.resume`.
    """

    def __init__(self, request: Request, setup: RolloutSetup, roles: Roles | None = None) -> None:
        self.request = request
        self.setup = setup
        self.roles = roles
        self.task = request.task
        self.unfinished = request.unfinished
        self.renderer = setup.renderer
        self.limits = setup.limits
        self.seed = setup.seed
        self.vocabulary = setup.vocabulary
        self.conversation = uuid.uuid4().hex
        self.seed_name = task_seed_name(request.step, request.identity.get("index"), request.validate)
        self.budget = Budget(setup.budget)
        self.top_logprobs = 0
        self.graph = RolloutGraph(
            task=dict(request.identity), step=request.step, seed=setup.seed, request=request.to_dict()
        )
        self.earlier_rewards: list[EarlierReward] = []
        self.without_word: list[EpisodeRecord] = []
        self._first: asyncio.Task[tuple[EnvironmentHandle, StepResult]] | None = None
        self._asked: dict[str, asyncio.Future[float]] = {}

    def policy(self, name: str) -> Policy:
        """A policy by name.

        Raises:
            RolloutError: when there is no such policy.
        """
        policies = self.setup.policies
        if name not in policies:
            raise RolloutError(
                f"hier.worker: the worker asks for the policy {name!r}; this run has {', '.join(policies)}."
            )
        return policies[name]

    def rng(self, *names: object) -> random.Random:
        """A generator of its own for `names`: same seed, task, step and names give the same draws."""
        return generator(self.seed or 0, self.seed_name, *names)

    def level(self, role: str, given: int | None) -> int:
        """The level of a role, see `Roles.level`; where no roles are declared, the given level, or 0."""
        return (given or 0) if self.roles is None else self.roles.level(role, given)

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter of the graph."""
        self.graph.counts[name] = self.graph.counts.get(name, 0) + by

    def sampling(
        self,
        name: str,
        greedy: bool,
        max_tokens: int,
        stop: tuple[str, ...],
        own: Mapping[str, Any] | None = None,
    ) -> Sampling:
        """How to sample the turn whose seed is derived from `name`.

        Args:
            name: of the turn's seed.
            greedy: whether to take the likeliest token.
            max_tokens, stop: see `Sampling`.
            own: see `Context.sampling`; evaluations leave it aside.
        """
        entropy = self.setup.entropy
        top = max(self.top_logprobs, entropy.k if entropy.source == "top_k" else 0)
        seed = None if self.seed is None else derive(self.seed, self.seed_name, name)
        base = replace(self.request.sampling, max_tokens=max_tokens, seed=seed, stop=stop, top_logprobs=top)
        if greedy:
            return replace(base, temperature=0.0, top_p=1.0, top_k=-1)
        return replace(base, **own) if own and not self.request.validate else base

    async def score(self, prompt: list[int], tokens: list[int], top: int = 0, policy: str = DEFAULT_POLICY) -> Scored:
        """See `Policy.score`."""
        return await self.policy(policy).score(prompt, tokens, self.conversation, top)

    async def likelihood(self, prompt: list[int], tokens: list[int], policy: str) -> float:
        """Mean log p of some tokens after a prompt, asked for once; see `once`."""

        async def mean() -> float:
            logprobs = (await self.score(prompt, tokens, policy=policy)).logprobs
            return sum(logprobs) / len(logprobs)

        return await self.once([policy, prompt, tokens], mean)

    async def once(self, about: Sequence[Any], ask: Callable[[], Awaitable[float]]) -> float:
        """A number that is asked for once, and stored with the request: all episodes of the task, their forks and
        replays are told the same, whatever would be said by then.

        Args:
            about: what the number is about, JSON-able.
            ask: gets it.
        """
        name = hashlib.blake2b(json.dumps(about).encode(), digest_size=8).hexdigest()
        if name not in self.graph.request.get("likelihoods", {}):
            if name not in self._asked:
                self._asked[name] = asyncio.ensure_future(ask())
            said = await asyncio.shield(self._asked[name])
            self.graph.request.setdefault("likelihoods", {})[name] = said
        found: float = self.graph.request["likelihoods"][name]
        return found

    async def open_environment(self) -> tuple[EnvironmentHandle, StepResult]:
        """An environment at the start of the task.

        Where a fork is cheaper than a reset, it is the fork of one that was reset once.
        """
        if self.setup.environments.forks != "native":
            return await self.setup.environments.open(dict(self.task), self._environment_seed)
        if self._first is None:
            opening = self.setup.environments.open(dict(self.task), self._environment_seed)
            self._first = asyncio.ensure_future(opening)
        handle, step = await asyncio.shield(self._first)
        return await handle.fork(), step

    async def environment_after(self, answers: Sequence[Event]) -> EnvironmentHandle:
        """An environment after recorded answers, the first of which is that to the reset.

        Its actions are taken again and their observations compared, unless the answers are all that it needs.

        Raises:
            EnvironmentFailure: also when an observation differs from the recorded one.
        """
        steps = [event.step for event in answers if event.step is not None]
        if self.keeps_answers and len(steps) == len(answers):
            actions = [str(event.action) for event in answers[1:]]
            return await self.setup.environments.resume(dict(self.task), self._environment_seed, actions, steps)
        handle, _ = await self.open_environment()
        for event in answers[1:]:
            step = await handle.step(str(event.action))
            self.count("replayed_calls")
            if event.step is None or step.text != event.step.text:
                await handle.close()
                raise EnvironmentFailure("replay_mismatch", f"{event.action!r} was answered differently in the replay")
        return handle

    @property
    def keeps_answers(self) -> bool:
        """Whether the world's answers are stored: they depend on the actions alone, so it need not be asked again."""
        return self.setup.environments.forks == "recorded"

    @property
    def _environment_seed(self) -> int:
        return derive(self.seed or 0, "environment", self.request.identity.get("index"))

    async def close(self) -> None:
        """Free the environment that the others were forked from."""
        if self._first is not None:
            first = await asyncio.gather(self._first, return_exceptions=True)
            if isinstance(first[0], tuple):
                await first[0][0].close()
