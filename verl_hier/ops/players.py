"""Who plays the tasks of a rollout without training: a model in this process, a served one, or the expert."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from verl_hier.coldstart.distill import PreparedTurns, for_system
from verl_hier.coldstart.episodes import LocalEnvironment, play
from verl_hier.coldstart.expert_policy import ExpertPolicy, Noise, is_hierarchical
from verl_hier.environments.blocking import build
from verl_hier.environments.pool import EnvironmentPool
from verl_hier.errors import HierError
from verl_hier.graph import RolloutGraph
from verl_hier.host.servers import loader_of
from verl_hier.ops.runs import Run
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.runner import RolloutRunner
from verl_hier.rollout import Policy, Request, Sampler
from verl_hier.rollout.task import Environments
from verl_hier.served.client import ChatClient
from verl_hier.served.policy import Messages, ServedPolicy, for_messages

EXPERT = "expert"
"""What the environment's own scripted expert is called where a model is asked for."""
Source = str | os.PathLike[str] | Run


MakePolicy = Callable[[LocalEnvironment, Messages, Request], Awaitable[Policy]]


class Player(Protocol):
    """Plays tasks of one recipe.

    Attributes:
        name: what results call it.
        refused: requests that could not be answered; their episodes ended there.
        messages: whether the tokens of its graphs are whole messages.
    """

    name: str
    messages: bool

    @property
    def refused(self) -> int: ...

    async def play(self, request: Request, sampler: Sampler | None = None) -> RolloutGraph:
        """Roll out one task; any number of calls may run at once. See `RolloutRunner.roll_out` for the sampler."""

    async def close(self) -> None:
        """Release processes and connections."""


class PolicyPlayer:
    """A policy with environments in processes of their own; see `Player`."""

    def __init__(self, name: str, runner: RolloutRunner, policy: Policy, messages: bool = False) -> None:
        self.name = name
        self.messages = messages
        self._runner = runner
        self._policy = policy
        self._pool: EnvironmentPool = runner.pool()

    @property
    def refused(self) -> int:
        """See `Player`."""
        return int(getattr(self._policy, "refused", 0))

    async def play(self, request: Request, sampler: Sampler | None = None) -> RolloutGraph:
        """See `Player.play`."""
        return await self._runner.roll_out(request, self._policy, self._pool, sampler=sampler)

    async def close(self) -> None:
        """See `Player.close`."""
        await self._pool.close()
        close = getattr(self._policy, "close", None)
        if close is not None:
            await close()


class LocalPlayer:
    """A policy that looks at the environment itself, which is therefore in this process: one episode at a time.

    See `Player`. All tasks are played with `n = 1`.
    """

    def __init__(self, name: str, recipe: ComposedRecipe, make: MakePolicy) -> None:
        """
        Args:
            name: what results call it.
            recipe: the recipe.
            make: makes the policy of one episode from the environment, the renderer and the request; the environment
                is reset afterwards.
        """
        self.name = name
        self.messages = True
        self.refused = 0
        part = recipe.parts.environment
        self._environment = LocalEnvironment(build(part.spec, part.options))
        self._messages = Messages()
        self._runner = RolloutRunner(recipe, self._messages, 0, for_messages(recipe.limits))
        self._make = make
        self._alone = asyncio.Lock()

    async def play(self, request: Request, sampler: Sampler | None = None) -> RolloutGraph:
        """See `Player.play`."""
        environments: Environments = self._environment
        async with self._alone:
            policy = await self._make(self._environment, self._messages, request)
            return await self._runner.roll_out(replace(request, n=1), policy, environments, sampler=sampler)

    async def close(self) -> None:
        """See `Player.close`."""
        self._environment.environment.close()


def expert(recipe: ComposedRecipe) -> LocalPlayer:
    """The environment's scripted expert, without mistakes.

    For a worker that has `transcribe` it plays the system of `hier.coldstart` first, whose episode is then rewritten as
    turns of the worker, as for distillation.

    Raises:
        RecipeError: when it cannot play the recipe's worker.
    """
    worker, flawless = recipe.parts.worker, Noise(random_action=0.0, skip_stage=0.0)
    played = recipe.system if worker.spec.is_transcribed(worker.options) else worker
    hierarchical, limits = is_hierarchical(played), for_messages(recipe.limits)

    def play_as(environment: LocalEnvironment, messages: Messages) -> ExpertPolicy:
        rng = random.Random(0)
        return ExpertPolicy(environment, messages.turn, flawless, rng, hierarchical, played.options, remember=True)

    async def make(environment: LocalEnvironment, messages: Messages, request: Request) -> Policy:
        if played is worker:
            return play_as(environment, messages)
        theirs, index, seed = Messages(), int(request.identity["index"]), recipe.hier.seed or 0
        policy, most = play_as(environment, theirs), for_system(limits)
        _, transcript = await play(environment, request.task, played, policy, theirs, most, index, seed=seed)
        try:
            turns = worker.spec.transcribe(worker.options, transcript)
        except ValueError:  # it cannot be told in this worker, so the expert says nothing
            turns = []
        return PreparedTurns(turns, messages.turn)

    return LocalPlayer(EXPERT, recipe, make)


def served(recipe: ComposedRecipe, url: str, model: str = "") -> PolicyPlayer:
    """A model behind an OpenAI-compatible endpoint, which renders the messages with its own chat template.

    Args:
        recipe: the recipe.
        url: base of the endpoint, such as `http://host:8000/v1`.
        model: the model's name there; empty for the only one that it serves.
    """
    messages = Messages()
    policy = ServedPolicy(ChatClient(url, model, option="the endpoint"), messages)
    runner = RolloutRunner(recipe, messages, 0, for_messages(recipe.limits))
    return PolicyPlayer(f"{model} at {url}" if model else url, runner, policy, messages=True)


def in_process(recipe: ComposedRecipe, model: str | os.PathLike[str], name: str = "") -> PolicyPlayer:
    """A transformers model on this machine's CPU, with the tokens, template and server of training on a CPU.

    Where the recipe has policies for roles, those of the model's own checkpoint play theirs, as do models that never
    learn and endpoints; a model from elsewhere plays all roles of those that learn.

    Args:
        recipe: the recipe.
        model: folder or Hugging Face name of the model.
        name: what results call it; empty for the model.

    Raises:
        RecipeError: when the model cannot be loaded.
    """
    from verl_hier.compat.runner import runner_of
    from verl_hier.compat.servers.named import NamedPolicies, learned_beside

    config, policies = with_model(recipe.config, model), recipe.hier.policies
    runner, load = replace(runner_of(config), recipe=recipe), loader_of(recipe.host, config)
    if policies:
        learned = learned_beside(Path(model), policies)
        runner = replace(runner, beside=NamedPolicies(replace(recipe, config=config), load, learned=learned))
    return PolicyPlayer(name or str(model), runner, load(model))


def with_model(config: Any, model: str | os.PathLike[str]) -> Any:
    """A copy of a composed configuration whose policy is another model, with the tokenizer of that model."""
    from omegaconf import OmegaConf

    chosen = {"actor_rollout_ref": {"model": {"path": str(model), "tokenizer_path": None}}}
    return OmegaConf.merge(config, chosen)


def is_endpoint(source: Source) -> bool:
    """Whether a model is named by the address of an endpoint."""
    return isinstance(source, str) and source.startswith(("http://", "https://"))


def run_of(source: Source) -> Run | None:
    """The run that a source names, None when it names something else."""
    if isinstance(source, Run):
        return source
    folder = Path(source)
    return Run.open(folder) if not is_endpoint(source) and (folder / "recipe.yaml").is_file() else None


def player_of(source: Source, recipe: ComposedRecipe, served_model: str = "") -> Player:
    """The player that a user names.

    Args:
        source: a run or its folder, the folder or Hugging Face name of a model, the address of an OpenAI-compatible
            endpoint, or `expert`.
        recipe: what is played.
        served_model: the model's name at the endpoint.

    Raises:
        HierError: when the run has no policy, or there is no such model.
        RecipeError: when the model cannot be loaded, or the expert cannot play the recipe's worker.
    """
    if isinstance(source, str) and is_endpoint(source):
        return served(recipe, source, served_model)
    if source == EXPERT:
        return expert(recipe)
    run = run_of(source)
    model = str(run.model if run else source)
    folder = Path(model)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise HierError(f"{model} is neither a run (no recipe.yaml) nor a model (no config.json).")
    if not folder.exists() and (model.startswith((".", "/")) or model.count("/") > 1):
        raise HierError(f"there is no run and no model at {model}.")
    return in_process(recipe, model, str(run.folder) if run else "")
