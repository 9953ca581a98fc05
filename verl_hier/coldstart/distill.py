"""Multi-agent distillation: episodes of any worker become supervised data for another worker.

Source: Chain-of-Agents, arXiv 2508.13167. A teacher plays tasks through the system's worker, and its episodes are
filtered. Those that remain are transcribed as turns of the student's worker and replayed through that worker in the
same environment. The replay is the last filter, and the rows are cut from its rollout graph: they hold exactly the
tokens that reinforcement learning will see.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from verl_hier.coldstart.episodes import LocalEnvironment, play
from verl_hier.coldstart.expert_policy import ExpertPolicy, Noise, is_hierarchical
from verl_hier.coldstart.filters import Filters, Report
from verl_hier.coldstart.rows import rows_of, save
from verl_hier.environments.blocking import build
from verl_hier.errors import RecipeError, RolloutError
from verl_hier.graph.nodes import EpisodeRecord, Node, RolloutGraph
from verl_hier.host.part import Part
from verl_hier.rollout import Generation, Limits, Policy, Renderer, Sampling, Scored
from verl_hier.rollout.transcript import Transcript
from verl_hier.served.client import ChatClient
from verl_hier.served.policy import Messages, ServedPolicy

DATA, EPISODES, REPORT = "data.parquet", "episodes.jsonl", "report.json"


class Teacher(Protocol):
    """Generates the turns of the system.

    Attributes:
        refused: requests that could not be answered; their episodes ended there.
    """

    refused: int

    def policy(self, environment: LocalEnvironment, messages: Messages, system: Part, rng: random.Random) -> Policy:
        """The policy of one episode; its tokens are those of `messages`."""

    async def close(self) -> None:
        """Release connections."""


class ExpertTeacher:
    """The environment's expert, with the mistakes of `noise`; see `Teacher`."""

    def __init__(self, noise: Noise, remember: bool = True) -> None:
        """
        Args:
            noise: how far the teacher is from the expert.
            remember: whether the expert may use what it saw under earlier subgoals; a student whose contexts start anew
                could not know it.
        """
        self.noise = noise
        self.remember = remember
        self.refused = 0

    def policy(self, environment: LocalEnvironment, messages: Messages, system: Part, rng: random.Random) -> Policy:
        """See `Teacher.policy`."""
        hierarchical = is_hierarchical(system)
        return ExpertPolicy(environment, messages.turn, self.noise, rng, hierarchical, system.options, self.remember)

    async def close(self) -> None:
        """See `Teacher.close`."""


class ServedTeacher(ServedPolicy):
    """A model behind an endpoint; see `Teacher`."""

    def __init__(self, url: str, model: str, messages: Messages, timeout_s: float = 120.0) -> None:
        super().__init__(ChatClient(url, model, timeout_s, "the teacher"), messages)

    def policy(self, environment: LocalEnvironment, messages: Messages, system: Part, rng: random.Random) -> Policy:
        """See `Teacher.policy`; one client serves all episodes."""
        return self


@dataclass(frozen=True)
class Student:
    """The worker that is to be trained, as it will roll out.

    Attributes:
        worker: the worker to be trained; its spec has `transcribe`.
        renderer: the rollout's renderer.
        tokenizer: the model's tokenizer.
        limits: limits of an episode in the rollout.
    """

    worker: Part
    renderer: Renderer
    tokenizer: Any
    limits: Limits

    def __post_init__(self) -> None:
        if not self.worker.spec.is_transcribed(self.worker.options):
            raise RecipeError(
                f"hier.worker.name: {self.worker.spec.name!r} cannot transcribe episodes of other workers, so "
                "nothing can be distilled for it; give its spec a function `transcribe`."
            )

    def encode(self, text: str) -> list[int]:
        """The tokens of a text that the policy generates."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    @property
    def end(self) -> list[int]:
        """The token that ends a turn, if the model has one."""
        return [] if self.tokenizer.eos_token_id is None else [self.tokenizer.eos_token_id]


@dataclass(frozen=True)
class Weights:
    """Loss weights of the student's tokens.

    Attributes:
        action: of what the policy generates; 1 as in the paper.
        invalid_action: of a turn that the environment refused. 1 as in the paper; with 0 the policy learns to go on
            after such a turn but not to generate it.
        observation: of the prompt and of observations. 0 as in the paper; a small weight helps a model that is trained
            from scratch.
    """

    action: float = 1.0
    invalid_action: float = 1.0
    observation: float = 0.0


@dataclass(frozen=True)
class Distillation:
    """What is distilled.

    Attributes:
        environment: where teacher and student play.
        system: the worker whose episodes are distilled.
        student: the worker for which they are distilled.
        teacher: makes the teacher from the messages of the rollout.
        n: episodes to play; the tasks of the training split are repeated if there are fewer.
        filters, weights: see `Filters` and `Weights`.
        seed: seed of tasks, noise and requests.
        limits: limits of an episode of the system.
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


def for_system(limits: Limits) -> Limits:
    """Limits for the system that is distilled: its episodes may have more turns than the student's."""
    return replace(limits, max_turns=4 * limits.max_turns)


def distill(plan: Distillation, out: Path) -> Report:
    """Write the data, every episode of the teacher as text, and the report to a folder.

    Raises:
        RecipeError: when the environment has no tasks, the teacher cannot play the system, or nothing is left.
        RolloutError: when the teacher does not answer.
    """
    return asyncio.run(_Distiller(plan).run(out))


@dataclass(frozen=True)
class _Result:
    """One episode of the teacher; `dropped` is (filter, reason), or None when it was kept."""

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
            environment = LocalEnvironment(build(plan.environment.spec, plan.environment.options))
            try:
                while waiting:
                    attempt = waiting.pop()
                    found[attempt] = await self._one(attempt, environment, teacher)
            finally:
                environment.environment.close()

        players = [asyncio.ensure_future(play_on()) for _ in range(max(1, min(plan.concurrency, plan.n)))]
        try:
            await asyncio.gather(*players)
        finally:
            for player in players:
                player.cancel()
            await asyncio.gather(*players, return_exceptions=True)
            await teacher.close()
        return self._write([found[attempt] for attempt in sorted(found)], teacher.refused, out)

    async def _one(self, attempt: int, environment: LocalEnvironment, teacher: Teacher) -> _Result:
        """Play, filter, transcribe and replay one episode."""
        plan, student = self._plan, self._plan.student
        number, round_ = attempt % len(self._tasks), attempt // len(self._tasks)
        rng = random.Random(f"distill-{plan.seed}-{attempt}")
        graph, transcript = await play(
            environment,
            self._tasks[number],
            plan.system,
            teacher.policy(environment, self._messages, plan.system, rng),
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
        prepared = PreparedTurns(parts, student.encode, student.end)
        replayed, _ = await play(
            environment,
            self._tasks[number],
            student.worker,
            prepared,
            student.renderer,
            student.limits,
            number,
            round_,
            plan.seed,
        )
        reason = plan.filters.format(replayed, prepared.cut)
        if reason:
            return _Result(number, transcript, record, ("format", reason))
        rows = tuple(row | {"task": number} for row in self._rows(replayed))
        return _Result(number, transcript, record, None, rows, plan.filters.reflects(transcript, replayed))

    def _rows(self, replayed: RolloutGraph) -> list[dict[str, Any]]:
        weights = self._plan.weights

        def action_weight(node: Node) -> float:
            return weights.action if node.valid else weights.invalid_action

        rows = rows_of(replayed, action_weight, weights.observation)
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
        report.trained_tokens = sum(
            weight > self._plan.weights.observation for row in rows for weight in row["weights"]
        )
        out.mkdir(parents=True, exist_ok=True)
        (out / REPORT).write_text(json.dumps(report.to_dict(), indent=2) + "\n")
        with (out / EPISODES).open("w") as stream:
            stream.writelines(json.dumps(_record(result)) + "\n" for result in results)
        if not rows:
            reasons = "; ".join(": ".join(line) for line in report.lines()[:4])
            raise RecipeError(f"nothing is left to learn from ({reasons}); {out / EPISODES} has the episodes.")
        save(out / DATA, rows, "distilled")
        return report


class PreparedTurns:
    """A policy that returns prepared texts, one for each turn.

    Where turns end at stop strings, a turn has all texts up to the first one that ends with such a string. Its message
    goes on, so no end token follows; any other turn ends with the model's end token.
    """

    def __init__(self, parts: Sequence[str], encode: Callable[[str], list[int]], end: Sequence[int] = ()) -> None:
        """
        Args:
            parts: the texts, in the order of the turns.
            encode: tokens of a text.
            end: the model's end of a turn.
        """
        self._parts = list(parts)
        self._encode = encode
        self._end = list(end)
        self.cut = False

    async def generate(self, prompt: list[int], sampling: Sampling, conversation: str) -> Generation:
        """See `rollout.Policy.generate`. A turn that is longer than allowed is `cut`, as a server would do."""
        texts: list[str] = []
        while self._parts and not (texts and (not sampling.stop or texts[-1].endswith(sampling.stop))):
            texts.append(self._parts.pop(0))
        tokens = [token for part in texts for token in self._encode(part)]
        if texts and not texts[-1].endswith(sampling.stop):
            tokens += self._end
        self.cut = self.cut or len(tokens) > sampling.max_tokens
        return Generation(tokens[: sampling.max_tokens], [])

    async def score(
        self, prompt: list[int], tokens: list[int], conversation: str, top: int = 0, temperature: float = 1.0
    ) -> Scored:
        """See `rollout.Policy.score`."""
        raise RolloutError("hier.sampler.name: prepared turns have no log-probs; use `independent`.")


def _record(result: _Result) -> dict[str, Any]:
    """One episode of the teacher as a JSON-able dictionary."""
    transcript = result.transcript
    return {
        "task": result.number,
        "instruction": transcript.instruction,
        "opening": "" if transcript.opening is None else transcript.opening.text,
        "turns": [
            {
                "role": turn.node.role,
                "level": turn.node.level,
                "text": turn.text,
                "calls": [
                    {
                        "action": call.action,
                        "observation": call.step.text,
                        "reward": call.step.reward,
                        "valid": call.step.valid,
                    }
                    for call in turn.calls
                ],
            }
            for turn in transcript.turns
        ],
        "return": result.record.ret,
        "ended": result.record.error or result.record.status,
        "dropped": None if result.dropped is None else ": ".join(result.dropped),
        "reflects": result.reflects,
    }
