"""The kit for authors of workers.

from verl_hier.testing import check_worker


def test_my_worker() -> None:
    check_worker(MY_SPEC)
"""

from __future__ import annotations

import dataclasses
import math
import random
import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_hier.environments.base import Environment, StepResult
from verl_hier.graph import RolloutGraph
from verl_hier.graph.nodes import Node
from verl_hier.host.specs import WorkerSpec
from verl_hier.rollout import Limits, Rollout, Sampler, Sampling, Worker
from verl_hier.rollout.budget import BudgetOptions
from verl_hier.rollout.recorded_policy import differences
from verl_hier.testing.byte_pairs import BytePairTokenizer
from verl_hier.testing.hostile import HOSTILE
from verl_hier.testing.line import Line
from verl_hier.testing.required import readers_of, turns_without
from verl_hier.testing.rollout import CharacterTokenizer, SideBySide, WordTokenizer, replay_scripted, roll_out_scripted
from verl_hier.testing.scene import (
    Answer,
    Speaker,
    Twist,
    Verbatim,
    Watch,
    Watched,
    as_it_is,
    attempt,
    changing_generators,
    says,
    wander,
)

ROOMY = Limits(max_turns=30, max_tokens_per_turn=2000, context_tokens=200_000)
SECONDS_PER_TURN = 5.0
"""Processor time that a worker may take for a turn of a million characters; reading it once takes milliseconds."""
HALVES = "half a character \ud83d, the other \ude00, and a pair \ud83d\ude00"
"""What a world may say and no policy can: tokenizers do not read it."""
HUGE = ("x" * 1_000_000, "<action>" * 125_000, "a ; " * 250_000, "(" * 1_000_000, "right\n" * 170_000)


@dataclass
class _Subject:
    """The worker, and what its plays have shown.

    Attributes:
        spoken: roles that have taken turns.
        columns: columns that turns have, token masks as `tokens.<name>`.
        readers: declared columns that estimators require, and these estimators.
    """

    spec: WorkerSpec
    options: Any
    answer: Answer
    environment: Callable[[], Environment]
    task: Mapping[str, Any] | None
    patience: float
    tokenizer: WordTokenizer = field(default_factory=CharacterTokenizer)
    spoken: set[str] = field(default_factory=set)
    columns: set[str] = field(default_factory=set)
    readers: dict[str, list[str]] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"worker {self.spec.name!r}"

    def fail(self, sentence: str) -> None:
        raise AssertionError(f"{self.name} {sentence}")

    def arguments(self, watch: Watch, twist: Twist = as_it_is) -> dict[str, Any]:
        """Arguments of a scripted rollout."""
        return {
            "environment": lambda: Watched(self.environment(), watch, twist),
            "worker": self.spec,
            "options": self.options,
            "task": self.task,
        }

    def play(
        self,
        when: str,
        *,
        answer: Answer | None = None,
        sampler: Sampler | None = None,
        twist: Twist = as_it_is,
        limits: Limits = ROOMY,
        **changes: Any,
    ) -> RolloutGraph:
        """Roll out a task; fails with the worker's name, and `when` it went wrong."""
        watch = Watch()
        rollout = roll_out_scripted(
            **self.arguments(watch, twist),
            sampler=sampler,
            answer=answer or self.answer,
            limits=limits,
            policy=Speaker,
            **{"tokenizer": self.tokenizer, "n": 2, **changes},
        )
        graph, _ = attempt(f"{self.name}, {when},", rollout, self.patience)
        for fault in [*watch.faults, *turns_without(graph, self.readers)]:
            self.fail(f"{fault} ({when}).")
        for node in graph.nodes:
            self.spoken.add(node.role)
            # Words are no column: tables have them in `texts`.
            noted = (name for name, value in node.extra.items() if not isinstance(value, str))
            self.columns |= {*noted, *(f"tokens.{mask}" for mask in node.masks)}
        return graph


def check_worker(
    spec: WorkerSpec,
    options: Any = None,
    *,
    answer: Answer | None = None,
    environment: Callable[[], Environment] = Line,
    task: Mapping[str, Any] | None = None,
    patience: float = 60.0,
) -> None:
    """Hold a worker against everything that rollouts rely on.

    Checked, by playing it without a model: only declared roles take turns, on their levels, and each of them does; an
    episode that is played again on its recorded answers is the same episode; it can be forked between any two turns
    and inside a turn, which changes nothing of the past; small limits and budgets end it; it does not act after the
    environment has ended the episode; no text that a policy may generate (empty, cut, garbage, of any script, a million
    characters) and no answer of the environment raises an exception or takes seconds to read; the columns that it
    declares are there, and on every turn where estimators require them. A warning says when a role is paid for actions
    that it never wrote.

    Args:
        spec: the registered worker.
        options: its options; the defaults when None.
        answer: what a reasonable policy says to a prompt, by its text and `sampling.seed` alone. It has to bring every
            role and every declared column about. By default `right` or `left`.
        environment: makes the world that it plays in; by default positions on a line, where `right` leads to the goal.
        task: the world's task; it has an `instruction`.
        patience: seconds of processor time after which a play counts as endless.

    Raises:
        AssertionError: one sentence that names the worker and what it broke.
    """
    chosen = spec.options() if options is None else options
    subject = _Subject(spec, chosen, answer or wander, environment, task, patience)
    for check in CHECKS:
        check(subject)


def check_spec(subject: _Subject) -> None:
    """The spec declares roles with levels, and its factory makes workers."""
    levels = subject.spec.levels(subject.options)
    if not levels:
        subject.fail("declares no roles; list them with their levels in the `roles` of its WorkerSpec.")
    for role, level in levels.items():
        if type(level) is not int or level < 0:
            subject.fail(f"puts the role {role!r} on level {level!r}; levels are whole numbers, and 0 is the highest.")
    subject.readers = readers_of(subject.spec.fills(subject.options))
    made = subject.spec.factory(subject.options)
    if not isinstance(made, Worker):
        subject.fail(f"has a factory that makes no Worker but a {type(made).__name__}.")


def check_replay(subject: _Subject) -> None:
    """Episodes are the same when they are played again on their recorded answers."""
    for seed in range(3):
        with changing_generators() as disturb:
            disturb()
            stored = subject.play("in an ordinary episode", seed=seed)
            subject.texts += [node.text for node in stored.nodes if node.text]
            if not stored.nodes:
                subject.fail("takes no turn in an ordinary episode.")
            disturb()
            again = replay_scripted(
                stored,
                subject.tokenizer,
                **subject.arguments(Watch()),
                sampler=SideBySide(),
                limits=ROOMY,
            )
            where = "played again on the recorded answers of an episode,"
            places = differences(stored, attempt(f"{subject.name}, {where}", again, subject.patience))
        if places:
            subject.fail(
                f"makes another episode of the same answers ({places[0]} differs): its coroutine must depend on "
                "`episode` alone, so take random numbers from `episode.rng` and keep nothing outside of `run`."
            )


@dataclass
class _Paid:
    """What a role was paid for.

    Attributes:
        own: actions of which its turn alone has a word.
        foreign: an action of which its turn has none and a turn of another role has one, and that role.
    """

    own: int = 0
    foreign: tuple[str, str] | None = None


class _Writers(SideBySide):
    """Episodes side by side; notes what each role was paid for."""

    def __init__(self) -> None:
        self.paid: dict[str, _Paid] = {}

    async def sample(self, rollout: Rollout) -> None:
        await super().sample(rollout)
        for episode in rollout.episodes:
            said: dict[str, str] = {}
            for event in episode.events:
                if event.node is not None:
                    said[event.node.role] = f"{said.get(event.node.role, '')} {event.node.text}"
                elif event.action and event.writer is not None:
                    text = " ".join(piece.text for piece in rollout.graph.pieces(event.writer))
                    self._note(event.action, event.writer.role, text, said)

    def _note(self, action: str, role: str, text: str, said: Mapping[str, str]) -> None:
        paid = self.paid.setdefault(role, _Paid())
        others = [other for other, words in said.items() if other != role and _wrote(words, action)]
        if _wrote(text, action):
            paid.own += not others
        elif others:
            paid.foreign = paid.foreign or (action, others[-1])


def _wrote(text: str, action: str) -> bool:
    """Whether a text has an action or a word of it."""
    return action.strip() in text or not {*re.findall(r"\w+", action)}.isdisjoint(re.findall(r"\w+", text))


def check_writers(subject: _Subject) -> None:
    """Warns of a role that is paid for actions which it never wrote."""
    writers = _Writers()
    for seed in range(3):
        subject.play("in an ordinary episode", sampler=writers, seed=seed)
    for role, paid in writers.paid.items():
        if paid.foreign is not None and not paid.own:
            action, other = paid.foreign
            warnings.warn(
                f"{subject.name} gives the role {role!r} the reward and validity of actions that it never wrote; "
                f"{action[:40]!r}, for instance, stands in a turn of {other!r}: name the turn that wrote an action, "
                "`episode.act(action, turn=draft)`.",
                stacklevel=3,
            )


class _Forks(Sampler):
    """An episode, and forks of it everywhere; notes what they change of its past."""

    def __init__(self) -> None:
        self.changed = ""

    async def sample(self, rollout: Rollout) -> None:
        trunk = await rollout.start().run()
        before, ret = [_noted(node) for node in trunk.nodes], trunk.ret
        for after in trunk.boundaries:
            twig = await (await trunk.fork(after, why="kit")).run()
            await (await twig.fork(len(twig.path) // 2, why="kit")).run()
        # A reward for an earlier turn than the last one moves where that turn becomes shared, and no return changes.
        moved = {"reward"} if math.isclose(ret, trunk.ret, abs_tol=1e-9) else set[str]()
        for node, was in zip(trunk.nodes, before, strict=True):
            changed = [name for name, value in _noted(node).items() if value != was[name] and name not in moved]
            if changed:
                self.changed = (
                    f"{changed[0]} of turn {node.turn} was {was[changed[0]]!r}, then {_noted(node)[changed[0]]!r}"
                )
        for node in [node for node in trunk.nodes if len(node.action) > 1]:
            first = rollout.split(node, len(node.action) // 2)
            after = trunk.path.index(first.id) + 1
            given = list(node.action), list(node.logprobs)
            await (await trunk.fork(after, forced=given[0], forced_logprobs=given[1], why="kit")).run()


def _noted(node: Node) -> dict[str, Any]:
    names = ("role", "agent", "level", "segment", "reward", "valid", "masks", "extra")
    return {name: dataclasses.replace(node).__dict__[name] for name in names} | {
        "masks": {name: [list(span) for span in spans] for name, spans in node.masks.items()},
        "extra": dict(node.extra),
    }


def check_forks(subject: _Subject) -> None:
    """An episode can be forked between any turns and inside a turn, and its past stays as it was."""

    def understands(number: int, step: StepResult) -> StepResult:
        # What a world says of a draft when a fork acts on it is true of the draft, and no change by the worker.
        return dataclasses.replace(step, valid=True)

    for seed in range(3):
        sampler = _Forks()
        subject.play("when an episode is forked", sampler=sampler, twist=understands, seed=seed)
        if sampler.changed:
            subject.fail(
                f"changes turns of the past when an episode is forked ({sampler.changed}): use `turn.reward` and "
                "`turn.mark` with what is known at that turn, and never write to `turn.node`."
            )


def check_limits(subject: _Subject) -> None:
    """Small limits and budgets end episodes and raise nothing."""
    limits = [
        *(dataclasses.replace(ROOMY, max_turns=most) for most in (1, 2, 3)),
        *(dataclasses.replace(ROOMY, max_tokens_per_turn=most) for most in (1, 2, 7)),
        *(dataclasses.replace(ROOMY, context_tokens=most) for most in (1, 20, 60)),
    ]
    for number, limit in enumerate(limits):
        subject.play(f"with {limit}", limits=limit, seed=number)
    budgets = [
        *(BudgetOptions(turns=most) for most in (1, 3)),
        *(BudgetOptions(tokens=most) for most in (3, 40)),
        *(BudgetOptions(environment_calls=most) for most in (1, 2, 5)),
    ]
    for number, budget in enumerate(budgets):
        subject.play(f"with {budget}", budget=budget, seed=number)


def check_answers(subject: _Subject) -> None:
    """No text that a policy generates raises an exception."""
    for what, text in HOSTILE.items():
        subject.play(f"answered with {what}", answer=says(text), seed=1, tokenizer=BytePairTokenizer())
    for seed in range(12):
        subject.play("answered now with sense, now with nonsense", answer=_damaged(subject), seed=seed, n=3)


def _damaged(subject: _Subject) -> Answer:
    """The reasonable answer, often cut, doubled, mixed or replaced; by the seed of the request."""

    def answer(prompt: str, sampling: Sampling) -> str:
        chance = random.Random(sampling.seed)
        text = subject.answer(prompt, sampling)
        place, other = chance.randrange(len(text) + 1), chance.choice([*HOSTILE.values(), *subject.texts])
        forms = (
            text, text, text[:place], text[place:], text + text, text[:place] + other + text[place:], other,
            text.upper(), text[::-1],
        )  # fmt: skip
        return chance.choice(forms)

    return answer


def check_huge_answers(subject: _Subject) -> None:
    """A turn of a million characters is read in linear time."""
    wide = Limits(max_turns=3, max_tokens_per_turn=8, context_tokens=10_000)
    own = [text * (1_000_000 // len(text)) for text in sorted(set(subject.texts), key=len)[-2:]]
    for text in (*HUGE, *own):
        start = time.process_time()
        graph = subject.play(
            "answered with a million characters",
            answer=says(text),
            limits=wide,
            tokenizer=Verbatim(),
            n=1,
        )
        seconds = (time.process_time() - start) / max(len(graph.nodes), 1)
        if seconds > SECONDS_PER_TURN:
            subject.fail(
                f"takes {seconds:.0f} s to read a turn of a million characters ({text[:12]!r}…): the time must grow "
                "linearly, so look for patterns that begin anew at every character."
            )


def check_worlds(subject: _Subject) -> None:
    """No answer of the environment raises an exception: ends at once, failures, strange texts."""

    def lost(number: int, step: StepResult) -> StepResult:
        if number == 2:
            raise RuntimeError("the world broke")
        return step

    def answers(**fields: Any) -> Twist:
        return lambda number, step: dataclasses.replace(step, **fields) if number else step

    worlds = {
        "in a world that breaks": lost,
        "in a world that ends at the first action": answers(done=True),
        "in a world that cuts the episode off": answers(truncated=True),
        "in a world that calls every action invalid": answers(valid=False),
        **{f"told {what} by the world": answers(text=text, admissible=(text,)) for what, text in HOSTILE.items()},
        "told halves of characters by the world": answers(text=HALVES, admissible=(HALVES,), anchor=HALVES),
    }
    for when, twist in worlds.items():
        subject.play(when, twist=twist, tokenizer=BytePairTokenizer())


def check_declared(subject: _Subject) -> None:
    """Every declared role has spoken, every declared column is there, and no other one."""
    cure = "pass `answer`, what a reasonable policy says, or remove it from the spec"
    for role in subject.spec.levels(subject.options):
        if role not in subject.spoken:
            subject.fail(f"declares the role {role!r}, which has never taken a turn in these plays: {cure}.")
    declared = {*subject.spec.fills(subject.options)}
    for column in sorted(declared - subject.columns):
        subject.fail(
            f"declares the column {column!r} in `provides`, and no turn of these plays has it: {cure}, or "
            "declare `provides` as a function of the options, where some options leave the column out."
        )
    _refuse_undeclared(subject, subject.columns - declared)


def _refuse_undeclared(subject: _Subject, columns: Iterable[str]) -> None:
    for column in sorted(columns):
        subject.fail(
            f"notes {column!r} on turns and does not declare it in `provides`, so no estimator could require it."
        )


CHECKS: tuple[Callable[[_Subject], None], ...] = (
    check_spec,
    check_replay,
    check_writers,
    check_forks,
    check_limits,
    check_answers,
    check_huge_answers,
    check_worlds,
    check_declared,
)
