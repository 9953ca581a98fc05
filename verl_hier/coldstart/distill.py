"""Multi-agent distillation: episodes of any worker become supervised data for a worker that can tell them.

Source: Chain-of-Agents, arXiv 2508.13167. A teacher plays tasks through the system's worker; its episodes pass filters
one after the other; what is left is told as turns of the student's worker and played again through that worker, in the
same world. The second play is the last filter, and its rollout graph is where the rows come from: they hold the very
tokens that reinforcement learning will see.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from verl_hier.coldstart.episodes import World, play
from verl_hier.coldstart.expert_policy import ExpertPolicy, Noise, is_hierarchical
from verl_hier.coldstart.filters import Filters, Report
from verl_hier.coldstart.rows import rows_of, save
from verl_hier.coldstart.served import Messages
from verl_hier.errors import RecipeError, RolloutError
from verl_hier.graph.nodes import EpisodeRecord, Node, RolloutGraph
from verl_hier.recipe.parts import Part
from verl_hier.rollout import Generation, Limits, Policy, Renderer, Sampling, Scored
from verl_hier.rollout.transcript import Transcript

DATA, EPISODES, REPORT = "data.parquet", "episodes.jsonl", "report.json"


class Teacher(Protocol):
    """Who speaks in the system.

    Attributes:
        refused: requests that could not be answered; their episodes ended there.
    """

    refused: int

    def policy(self, world: World, messages: Messages, system: Part, rng: random.Random) -> Policy:
        """The policy of one episode; its tokens are those of `messages`."""

    async def close(self) -> None:
        """Free what it holds."""


class Expertise:
    """The environment's expert, with the mistakes of `noise`; see `Teacher`."""

    def __init__(self, noise: Noise) -> None:
        self.noise = noise
        self.refused = 0

    def policy(self, world: World, messages: Messages, system: Part, rng: random.Random) -> Policy:
        """See `Teacher.policy`. The student sees the whole sequence, so the expert may remember all of it."""
        hierarchical = is_hierarchical(system.spec, system.options)
        return ExpertPolicy(world, messages.said, self.noise, rng, hierarchical, system.options, remember=True)

    async def close(self) -> None:
        """Nothing to free."""


@dataclass(frozen=True)
class Student:
    """Who will say what the teacher did.

    Attributes:
        worker: the worker to be trained; its spec has `transcribe`.
        renderer: as in the rollout.
        tokenizer: the model's.
        limits: of an episode in the rollout.
    """

    worker: Part
    renderer: Renderer
    tokenizer: Any
    limits: Limits

    def __post_init__(self) -> None:
        if self.worker.spec.transcribe is None:
            raise RecipeError(
                f"hier.worker.name: {self.worker.spec.name!r} cannot say what other workers did, so nothing can be "
                "distilled for it; `chain_of_agents` can."
            )


@dataclass(frozen=True)
class Weights:
    """Loss weights of the student's tokens.

    Attributes:
        said: of what the policy says; the paper's 1.
        mistake: of a turn that the world refused. 1 as in the paper; 0 learns to go on after it, not to do it.
        read: of the prompt and of observations. 0 as in the paper; a little helps a model from scratch.
    """

    said: float = 1.0
    mistake: float = 1.0
    read: float = 0.0


@dataclass(frozen=True)
class Distillation:
    """What is distilled.

    Attributes:
        environment: the world of teacher and student.
        system: the worker whose episodes are distilled.
        student: who will say them.
        teacher: makes who speaks in the system.
        n: episodes to play; tasks are taken in turn.
        filters, weights: see there.
        seed: of tasks, noise and requests.
        limits: of an episode of the system.
        sampling: how a served teacher samples.
        concurrency: episodes in flight.
    """

    environment: Part
    system: Part
    student: Student
    teacher: Callable[[Messages], Teacher]
    n: int = 480
    filters: Filters = field(default_factory=Filters)
    weights: Weights = field(default_factory=Weights)
    seed: int = 0
    limits: Limits = field(default_factory=Limits)
    sampling: Sampling = field(default_factory=Sampling)
    concurrency: int = 1


def distill(plan: Distillation, out: Path) -> Report:
    """Write data, every episode of the teacher in words, and the report to a folder.

    Raises:
        RecipeError: when the environment has no tasks, the teacher cannot play the system, or nothing is left.
        RolloutError: when the teacher is gone.
    """
    return asyncio.run(_Distiller(plan).run(out))


@dataclass(frozen=True)
class _Result:
    """One episode; `dropped` is (filter, reason), None when it was kept."""

    number: int
    transcript: Transcript
    record: EpisodeRecord
    dropped: tuple[str, str] | None
    rows: tuple[dict[str, Any], ...] = ()
    reflects: bool = False


class _Distiller:
    def __init__(self, plan: Distillation) -> None:
        spec = plan.environment.spec
        if spec.tasks is None:
            raise RecipeError(
                f"hier.environment.name: the tasks of {spec.name!r} are scored by verl's reward function, which "
                "distillation does not run; choose an environment with tasks and rewards of its own."
            )
        self._plan = plan
        self._tasks: list[dict[str, Any]] = spec.tasks(plan.environment.options, "train")
        self._messages = Messages()

    async def run(self, out: Path) -> Report:
        """See `distill`."""
        plan = self._plan
        teacher = plan.teacher(self._messages)
        waiting = list(range(plan.n))[::-1]
        found: dict[int, _Result] = {}

        async def play_on() -> None:
            world = World(plan.environment.spec.factory(plan.environment.options))
            try:
                while waiting:
                    attempt = waiting.pop()
                    found[attempt] = await self._one(attempt, world, teacher)
            finally:
                world.environment.close()

        players = [asyncio.ensure_future(play_on()) for _ in range(max(1, min(plan.concurrency, plan.n)))]
        try:
            await asyncio.gather(*players)
        finally:
            for player in players:
                player.cancel()
            await asyncio.gather(*players, return_exceptions=True)
            await teacher.close()
        return self._write([found[attempt] for attempt in sorted(found)], teacher.refused, out)

    async def _one(self, attempt: int, world: World, teacher: Teacher) -> _Result:
        """Play, filter, tell and play again."""
        plan, student = self._plan, self._plan.student
        number, round_ = attempt % len(self._tasks), attempt // len(self._tasks)
        rng = random.Random(f"distill-{plan.seed}-{attempt}")
        graph, transcript = await play(
            world,
            self._tasks[number],
            lambda: plan.system.spec.factory(plan.system.options),
            teacher.policy(world, self._messages, plan.system, rng),
            self._messages,
            plan.limits,
            number,
            round_,
            plan.seed,
            plan.sampling,
        )
        record = graph.episodes[0]
        for name, reason in (
            ("complexity", plan.filters.complexity(transcript)),
            ("correctness", plan.filters.correctness(record)),
        ):
            if reason:
                return _Result(number, transcript, record, (name, reason))
        try:
            parts = student.worker.spec.transcribe(student.worker.options, transcript)
        except ValueError as error:
            return _Result(number, transcript, record, ("format", str(error)))
        reciter = _Reciter(parts, student.tokenizer)
        told, _ = await play(
            world,
            self._tasks[number],
            lambda: student.worker.spec.factory(student.worker.options),
            reciter,
            student.renderer,
            student.limits,
            number,
            round_,
            plan.seed,
        )
        reason = plan.filters.format(told, reciter.cut)
        if reason:
            return _Result(number, transcript, record, ("format", reason))
        rows = tuple(row | {"task": number} for row in self._rows(told))
        return _Result(number, transcript, record, None, rows, plan.filters.reflects(transcript, told))

    def _rows(self, told: RolloutGraph) -> list[dict[str, Any]]:
        weights = self._plan.weights

        def said(node: Node) -> float:
            return weights.said if node.valid else weights.mistake

        rows = rows_of(told, said, weights.read)
        decode = self._plan.student.tokenizer.decode
        return [row | {"text": decode(row["input_ids"])} for row in rows]

    def _write(self, results: Sequence[_Result], refused: int, out: Path) -> Report:
        report = Report(played=len(results), refused_requests=refused)
        rows: list[dict[str, Any]] = []
        for result in results:
            if result.dropped is not None:
                name, reason = result.dropped
                report.dropped[name][reason] += 1
                continue
            report.kept += 1
            report.reflecting += result.reflects
            rows += result.rows * (self._plan.filters.upsample if result.reflects else 1)
        report.rows = len(rows)
        report.tokens = sum(len(row["input_ids"]) for row in rows)
        report.trained_tokens = sum(weight > self._plan.weights.read for row in rows for weight in row["weights"])
        out.mkdir(parents=True, exist_ok=True)
        (out / REPORT).write_text(json.dumps(report.to_dict(), indent=2) + "\n")
        with (out / EPISODES).open("w") as stream:
            stream.writelines(json.dumps(_told(result)) + "\n" for result in results)
        if not rows:
            reasons = "; ".join(": ".join(line) for line in report.lines()[:4])
            raise RecipeError(f"nothing is left to learn from ({reasons}); {out / EPISODES} has the episodes.")
        save(out / DATA, rows, "distilled")
        return report


class _Reciter:
    """Says prepared parts, each turn up to the first that ends with one of its stop strings."""

    def __init__(self, parts: Sequence[str], tokenizer: Any) -> None:
        self._parts = list(parts)
        self._tokenizer = tokenizer
        self.cut = False

    async def generate(self, prompt: list[int], sampling: Sampling, conversation: str) -> Generation:
        """See `rollout.Policy.generate`. A turn that is longer than allowed is `cut`, as a server would do."""
        said: list[str] = []
        while self._parts and not (said and said[-1].endswith(sampling.stop)):
            said.append(self._parts.pop(0))
        tokens = [token for part in said for token in self._tokenizer.encode(part, add_special_tokens=False)]
        self.cut = self.cut or len(tokens) > sampling.max_tokens
        return Generation(tokens[: sampling.max_tokens], [])

    async def score(self, prompt: list[int], tokens: list[int], conversation: str, top: int = 0) -> Scored:
        """See `rollout.Policy.score`."""
        raise RolloutError("hier.sampler.name: prepared words have no probabilities; use `independent`.")


def _told(result: _Result) -> dict[str, Any]:
    """One episode of the teacher, JSON-able."""
    transcript = result.transcript
    return {
        "task": result.number,
        "instruction": transcript.instruction,
        "opening": "" if transcript.opening is None else transcript.opening.text,
        "turns": [
            {
                "role": said.node.role,
                "level": said.node.level,
                "text": said.text,
                "calls": [
                    {
                        "action": call.action,
                        "observation": call.step.text,
                        "reward": call.step.reward,
                        "valid": call.step.valid,
                    }
                    for call in said.calls
                ],
            }
            for said in transcript.turns
        ],
        "return": result.record.ret,
        "ended": result.record.error or result.record.status,
        "dropped": None if result.dropped is None else ": ".join(result.dropped),
        "reflects": result.reflects,
    }
