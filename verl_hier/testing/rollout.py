"""Rollouts without servers and processes: a scripted policy, a toy tokenizer and environments in this process.

For tests of workers and samplers: `await roll_out_scripted(...)` gives the rollout graph of one task.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from verl_hier.environments.base import Environment, StepResult
from verl_hier.environments.pool import EnvironmentFailure
from verl_hier.graph import RolloutGraph
from verl_hier.host.specs import Fork, WorkerSpec
from verl_hier.rollout import Generation, Limits, Policy, Renderer, Request, Rollout, Sampler, Sampling, Scored, Worker
from verl_hier.rollout.budget import BudgetOptions
from verl_hier.rollout.entropy import EntropyOptions
from verl_hier.rollout.plain_renderer import PlainRenderer
from verl_hier.rollout.policy import DEFAULT_POLICY
from verl_hier.rollout.recorded_policy import RecordedPolicy
from verl_hier.rollout.recorded_world import RecordedWorld
from verl_hier.rollout.roles import Roles
from verl_hier.rollout.sampler import roll_out
from verl_hier.rollout.task import Environments, RolloutSetup
from verl_hier.rollout.unfinished import UnfinishedEpisode
from verl_hier.testing.line import Line
from verl_hier.text import repaired

_TEXTS = ("text", "admissible", "anchor", "info", "rewards")
"""What of a step has texts, which the pool repairs."""
_TASK = {"instruction": "do it"}
_VOCABULARY = 1000


class WordTokenizer:
    """One token a word or sign; grows as it reads. Has `<act>`, `<end>` (end of turn) and `<pad>`."""

    def __init__(self) -> None:
        self._ids = {"<pad>": 0, "<end>": 1, "<act>": 2}
        self.pad_token_id: int | None = 0
        self.eos_token_id: int | None = 1

    def get_vocab(self) -> dict[str, int]:
        """Word to id."""
        return dict(self._ids)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text; unknown words are added."""
        words = re.findall(r"</?\w+>|\w+|[^\w\s]", text)
        return [self._ids.setdefault(word, len(self._ids)) for word in words]

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        """Text of ids, words separated by a space."""
        words = list(self._ids)
        return " ".join(words[i] for i in token_ids)

    def convert_tokens_to_ids(self, tokens: str) -> int | None:
        """Id of one word."""
        return self._ids.get(tokens)


class CharacterTokenizer(WordTokenizer):
    """One token a character, so that texts come back as they were: line breaks, indents and tags."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of the characters of a text; unknown ones are added."""
        return [self._ids.setdefault(character, len(self._ids)) for character in text]

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        """Text of ids."""
        characters = list(self._ids)
        return "".join(characters[i] for i in token_ids)


class ScriptedPolicy:
    """Answers every prompt by a function of the prompt's text and the request's seed."""

    def __init__(self, tokenizer: WordTokenizer, answer: Callable[[str, Sampling], str]) -> None:
        self.tokenizer = tokenizer
        self._answer = answer
        self.prompts: list[list[int]] = []

    async def generate(self, prompt: list[int], sampling: Sampling, conversation: str) -> Generation:
        """See `rollout.Policy.generate`; log-probs are -1 each."""
        self.prompts.append(list(prompt))
        text = self._answer(self.tokenizer.decode(prompt), sampling)
        tokens = [*self.tokenizer.encode(text), 1][: sampling.max_tokens]
        return Generation(tokens, [-1.0] * len(tokens), "completed")

    async def score(
        self, prompt: list[int], tokens: list[int], conversation: str, top: int = 0, temperature: float = 1.0
    ) -> Scored:
        """See `rollout.Policy.score`; log-probs are -1 each."""
        return Scored([-1.0] * len(tokens), [[(token, -1.0)] for token in tokens])


class InlineHandle:
    """`environments.pool.Handle` without a process: an exception loses the episode as there; hangs are not caught."""

    def __init__(self, make: Callable[[], Environment], task: Mapping[str, Any], seed: int) -> None:
        self._make = make
        self._task = task
        self._seed = seed
        self._environment = make()
        self.actions: tuple[str, ...] = ()

    async def open(self) -> StepResult:
        """Reset the environment."""
        return self._guarded(lambda: self._environment.reset(self._task, self._seed))

    async def step(self, action: str) -> StepResult:
        """Apply an action."""
        step = self._guarded(lambda: self._environment.step(action))
        self.actions += (action,)
        return step

    async def fork(self) -> InlineHandle:
        """A copy by replay of the actions."""
        copy = InlineHandle(self._make, self._task, self._seed)
        await copy.open()
        for action in self.actions:
            await copy.step(action)
        return copy

    async def close(self) -> None:
        """Free the environment."""
        self._environment.close()

    @staticmethod
    def _guarded(call: Callable[[], StepResult]) -> StepResult:
        try:
            step = call()
            return replace(step, **repaired({name: getattr(step, name) for name in _TEXTS}))
        except Exception as error:
            raise EnvironmentFailure("raised", f"{type(error).__name__}: {error}") from error


class InlinePool:
    """`environments.pool.EnvironmentPool` without processes."""

    def __init__(self, make: Callable[[], Environment], forks: Fork = "native") -> None:
        self._make = make
        self.forks: Fork = forks

    async def open(self, task: Mapping[str, Any], seed: int) -> tuple[InlineHandle, StepResult]:
        """An environment that was reset."""
        handle = InlineHandle(self._make, task, seed)
        return handle, await handle.open()

    async def resume(
        self, task: Mapping[str, Any], seed: int, actions: Sequence[str], steps: Sequence[StepResult]
    ) -> InlineHandle:
        """An environment in which the actions are taken again."""
        handle, _ = await self.open(task, seed)
        for action in actions:
            await handle.step(action)
        return handle


class SideBySide(Sampler):
    """`n` independent episodes."""

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        await rollout.run([rollout.start() for _ in range(rollout.n)])


async def roll_out_scripted(
    *,
    worker: WorkerSpec | Callable[[], Worker],
    options: Any = None,
    answer: Callable[[str, Sampling], str],
    environment: Callable[[], Environment] = Line,
    sampler: Sampler | None = None,
    task: Mapping[str, Any] | None = None,
    n: int = 4,
    seed: int = 0,
    step: int = 1,
    levels: frozenset[int] | None = None,
    limits: Limits | None = None,
    budget: BudgetOptions | None = None,
    entropy: EntropyOptions | None = None,
    tokenizer: WordTokenizer | None = None,
    policy: type[ScriptedPolicy] | None = None,
    unfinished: Sequence[UnfinishedEpisode] = (),
    forks: Fork = "native",
    renderer: Renderer | None = None,
    assigned: Mapping[str, str] | None = None,
    told: Mapping[str, Any] | None = None,
) -> tuple[RolloutGraph, ScriptedPolicy]:
    """Roll out one task and return its checked graph and the policy, whose `prompts` are those it was given.

    A worker that is given as its spec is held to the roles that the spec declares and gets `options`, or its default
    ones; a function that makes a worker says nothing about roles, so that every context is on level 0. Without a
    sampler, `n` episodes are played side by side. `forks` is as in `EnvironmentSpec.fork`.
    Without a renderer, texts are rendered without a template. `assigned` gives roles to further policies by name, as
    `hier.policies` does; all of them learn, and the script speaks for all. `told` is what a schedule says to the task.
    """
    scripted = (policy or ScriptedPolicy)(tokenizer or WordTokenizer(), answer)
    request = Request(
        task=task or _TASK,
        identity={"uid": "u", "index": 0},
        n=n,
        step=step,
        levels=levels,
        unfinished=tuple(unfinished),
        told=told or {},
    )
    world = InlinePool(environment, forks)
    setup = _setup(scripted, scripted.tokenizer, environment, seed, limits, budget, entropy, world)
    if renderer is not None:
        setup = replace(setup, renderer=renderer)
    if assigned:
        policies = dict.fromkeys((DEFAULT_POLICY, *assigned.values()), scripted)
        setup = replace(setup, policies=policies, assigned=dict(assigned), trained=frozenset(policies))
    return await roll_out(Rollout(request, setup, *_worker_of(worker, options)), sampler or SideBySide()), scripted


async def replay_scripted(
    stored: RolloutGraph,
    tokenizer: WordTokenizer,
    *,
    environment: Callable[[], Environment],
    worker: WorkerSpec | Callable[[], Worker],
    options: Any = None,
    sampler: Sampler,
    task: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    budget: BudgetOptions | None = None,
    entropy: EntropyOptions | None = None,
) -> RolloutGraph:
    """Replay a graph of `roll_out_scripted` with its recorded generations; `tokenizer` is its policy's.

    `rollout.recorded_policy.differences(stored, again)` lists where the two differ.
    """
    world = RecordedWorld(stored) if RecordedWorld.is_in(stored) else None
    setup = _setup(RecordedPolicy(stored), tokenizer, environment, stored.seed, limits, budget, entropy, world)
    request = Request.of(stored, task or _TASK)
    return await roll_out(Rollout(request, setup, *_worker_of(worker, options)), sampler)


def _worker_of(worker: WorkerSpec | Callable[[], Worker], options: Any) -> tuple[Callable[[], Worker], Roles | None]:
    if not isinstance(worker, WorkerSpec):
        return worker, None
    options = worker.options() if options is None else options
    return partial(worker.factory, options), Roles.of(worker, options)


def _setup(
    policy: Policy,
    tokenizer: WordTokenizer,
    environment: Callable[[], Environment],
    seed: int | None,
    limits: Limits | None,
    budget: BudgetOptions | None,
    entropy: EntropyOptions | None,
    world: Environments | None = None,
) -> RolloutSetup:
    return RolloutSetup(
        policies={DEFAULT_POLICY: policy},
        renderer=PlainRenderer(tokenizer),
        environments=world or InlinePool(environment),
        limits=limits or Limits(),
        seed=seed,
        budget=budget or BudgetOptions(),
        entropy=entropy or EntropyOptions(),
        vocabulary=_VOCABULARY,
    )
