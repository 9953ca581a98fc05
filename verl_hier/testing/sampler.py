"""The kit for authors of samplers.

from verl_hier.testing import check_sampler


def test_my_sampler() -> None:
    check_sampler(MY_SPEC)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_hier.environments.base import Environment
from verl_hier.errors import RecipeError
from verl_hier.graph import Node, RolloutGraph
from verl_hier.host.specs import SamplerSpec, WorkerSpec
from verl_hier.rollout import EndReason, Episode, EpisodeView, Limits, Rollout, Sampler, Sampling, Worker
from verl_hier.rollout.budget import BudgetOptions
from verl_hier.rollout.recorded_policy import differences
from verl_hier.rollout.unfinished import UnfinishedEpisode
from verl_hier.testing.line import Fragile, Graded, Line, Lost, Ungraded
from verl_hier.testing.required import readers_of, turns_without
from verl_hier.testing.rollout import CharacterTokenizer, ScriptedPolicy, replay_scripted, roll_out_scripted
from verl_hier.testing.scene import Answer, Silent, SlowSpeaker, Speaker, attempt, changing_generators

LIMITS = Limits(max_turns=12, max_tokens_per_turn=64, context_tokens=4000)
MOST_EPISODES = 64
"""The largest `rollout.n` that the kit tries."""
BUDGETS = (
    *(BudgetOptions(tokens=most) for most in (1, 17, 90)),
    *(BudgetOptions(turns=most) for most in (1, 2, 7)),
    *(BudgetOptions(environment_calls=most) for most in (1, 9)),
    *(BudgetOptions(leaves=most) for most in (1, 3)),
    BudgetOptions(tokens=120, turns=15, leaves=5),
)


class _PlanAndWalk(Worker):
    """A planner's word, then an executor that acts until the end."""

    async def run(self, episode: EpisodeView) -> None:
        step = await episode.reset()
        without, plan = episode.stand_ins, None
        if "planner" not in without:
            plan = await episode.generate(episode.context("planner").observe(f"plan: {step.text}"))
        said = without.get("planner", "") if plan is None else plan.text
        sources = [] if plan is None else [plan.node]
        executor = episode.context("executor").observe(f"{said}: {step.text}", sources=sources)
        while not (step.done or step.truncated or "executor" in without):
            turn = await episode.generate(executor, plan=plan)
            step = await episode.act(turn.text)
            executor.observe(step.text)


PLAN_AND_WALK = WorkerSpec(
    "plan_and_walk", lambda options: _PlanAndWalk(), roles={"planner": 0, "executor": 1}, stand_ins=True
)


def _walk(prompt: str, sampling: Sampling) -> str:
    """Mostly `right`, by the seed of the request; some turns are longer."""
    chance = random.Random(sampling.seed)
    word = "right" if chance.random() < 0.7 else "left"
    return word + " " * chance.randrange(3)


class _Kept(Sampler):
    """A sampler, what it expected in the end, and whether it has cut turns or sampled them in pieces."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self.expected = 0
        self.in_pieces = False

    async def sample(self, rollout: Rollout) -> None:
        advance, split = rollout.advance, rollout.split

        async def advanced(episodes: Iterable[Episode], tokens: int | None = None) -> list[Episode]:
            self.in_pieces = self.in_pieces or tokens is not None
            return await advance(episodes, tokens)

        def cut(node: Node, at: int) -> Node:
            self.in_pieces = True
            return split(node, at)

        rollout.advance, rollout.split = advanced, cut  # type: ignore[method-assign]
        try:
            await self._sampler.sample(rollout)
        finally:
            self.expected = rollout.expected


@dataclass
class _Subject:
    """The sampler, and what its plays have shown.

    Attributes:
        asked: what it has asked for, by the name of the need (`USES`).
        columns: columns that turns have.
        readers: declared columns that estimators require, and these estimators.
        left_out: roles that it has left out of episodes.
        expected: leaves that the sampler said it would make in the last play.
        spent: what the last play has cost.
    """

    spec: SamplerSpec
    options: Any
    numbers: Sequence[int]
    worker: WorkerSpec
    worker_options: Any
    answer: Answer
    environment: Callable[[], Environment]
    task: Mapping[str, Any] | None
    patience: float
    tokenizer: CharacterTokenizer = field(default_factory=CharacterTokenizer)
    asked: set[str] = field(default_factory=set)
    columns: set[str] = field(default_factory=set)
    readers: dict[str, list[str]] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    expected: int = 0
    spent: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"sampler {self.spec.name!r}"

    def fail(self, sentence: str) -> None:
        raise AssertionError(f"{self.name} {sentence}")

    def run(self, when: str, play: Coroutine[Any, Any, Any]) -> Any:
        return attempt(f"{self.name}, {when},", play, self.patience)

    def arguments(self, **changes: Any) -> dict[str, Any]:
        """Arguments of a scripted rollout."""
        return {
            "environment": self.environment,
            "worker": self.worker,
            "options": self.worker_options,
            "sampler": self.spec.factory(self.options),
            "task": self.task,
            "limits": LIMITS,
            **changes,
        }

    def play(self, when: str, *, policy: type[ScriptedPolicy] = Speaker, **changes: Any) -> RolloutGraph:
        """Roll out a task; fails with the sampler's name, and `when` it went wrong."""
        given = self.arguments(**{"answer": self.answer, "n": self.numbers[0], "tokenizer": self.tokenizer, **changes})
        kept = given["sampler"] = _Kept(given["sampler"])
        graph, spoken = self.run(when, roll_out_scripted(**given, policy=policy))
        self.expected = kept.expected
        self.spent = {
            "tokens": spoken.tokens,
            "turns": len(spoken.prompts),
            "environment_calls": graph.counts.get("environment_calls", 0),
            "leaves": sum(episode.trained for episode in graph.complete()),
        }
        forked = any(episode.source >= 0 for episode in graph.episodes)
        self.asked |= {*(f"needs_{what}" for what in spoken.asked), *["needs_fork"] * forked}
        forces = any(node.decision.get("forced") for node in graph.nodes)
        self.asked |= {*["needs_tokens"] * (kept.in_pieces or forces)}
        self.left_out |= {role for episode in graph.episodes for role in episode.decision.get("stand_ins", ())}
        self.columns |= {name for node in graph.nodes for name in node.extra}
        for fault in turns_without(graph, self.readers):
            self.fail(f"{fault} ({when}).")
        assert isinstance(graph, RolloutGraph)
        return graph

    def replay(self, when: str, stored: RolloutGraph, **changes: Any) -> None:
        """Repeat a rollout from its file."""
        again = self.run(when, replay_scripted(stored, self.tokenizer, **self.arguments(**changes)))
        places = differences(stored, again)
        if places:
            self.fail(
                f"makes another tree when a stored rollout is replayed ({places[0]} differs, {when}): it may depend on "
                "`rollout` alone, so take random numbers from `rollout.rng`."
            )


def check_sampler(
    spec: SamplerSpec,
    options: Any = None,
    *,
    n: Sequence[int] = (),
    worker: WorkerSpec = PLAN_AND_WALK,
    worker_options: Any = None,
    answer: Answer | None = None,
    environment: Callable[[], Environment] = Line,
    task: Mapping[str, Any] | None = None,
    patience: float = 60.0,
) -> None:
    """Hold a sampler against everything that the trainer relies on.

    Checked, by rolling out tasks without a model: it makes as many leaves as `SamplerSpec.episodes` says, each of them
    once, and leaves no episode running; equal seeds give equal trees, however fast the policy answers, and a stored
    rollout can be replayed; no budget is exceeded, and every one of them ends the rollout without an error; it copes
    with worlds that break, policies that say nothing, single levels that learn, and episodes that an earlier step has
    left unfinished; it declares what it needs (forks, log-probs, scores, tokens) and whether it goes by outcomes, and
    needs what it declares.

    Args:
        spec: the registered sampler.
        options: its options; the defaults when None.
        n: values of `actor_rollout_ref.rollout.n` to try; by default some of those that the spec accepts.
        worker, worker_options: whose episodes it samples; by default a planner's word and an executor's steps.
        answer: what the policy says to a prompt, by its text and `sampling.seed` alone.
        environment: makes the world; by default positions on a line, where `right` leads to the goal.
        task: the world's task; it has an `instruction`.
        patience: seconds of processor time after which a rollout counts as endless.

    Raises:
        AssertionError: one sentence that names the sampler and what it broke.
    """
    chosen = spec.options() if options is None else options
    numbers = tuple(n) or _accepted(spec, chosen)
    more = worker.options() if worker_options is None else worker_options
    subject = _Subject(spec, chosen, numbers, worker, more, answer or _walk, environment, task, patience)
    for check in CHECKS:
        check(subject)


def _accepted(spec: SamplerSpec, options: Any) -> tuple[int, ...]:
    """Up to three values of n that the spec accepts, above 1 where it can be."""

    def accepts(number: int) -> bool:
        try:
            return spec.episodes is None or spec.episodes(options, number) > 0
        except RecipeError:
            return False

    found = [number for number in range(2, MOST_EPISODES + 1) if accepts(number)] or [1] * accepts(1)
    assert found, f"sampler {spec.name!r} accepts no n up to {MOST_EPISODES} with these options; pass `n`."
    return tuple(dict.fromkeys((*found[:2], found[min(6, len(found) - 1)])))


def check_factory(subject: _Subject) -> None:
    """The factory makes samplers."""
    subject.readers = readers_of(subject.spec.fills(subject.options))
    made = subject.spec.factory(subject.options)
    if not isinstance(made, Sampler):
        subject.fail(f"has a factory that makes no Sampler but a {type(made).__name__}.")


def check_groups(subject: _Subject) -> None:
    """As many leaves as the spec says, each once, and no episode that nobody has ended."""
    for number in subject.numbers:
        wanted = number if subject.spec.episodes is None else subject.spec.episodes(subject.options, number)
        for seed in range(3):
            graph = subject.play(f"with n = {number}", n=number, seed=seed)
            leaves = [tuple(graph.path(episode.id)) for episode in graph.complete() if episode.trained]
            if len(leaves) > max(wanted, subject.expected):
                subject.fail(
                    f"makes {len(leaves)} leaves with n = {number}; `SamplerSpec.episodes` says {wanted}, and "
                    f"`rollout.expected` {subject.expected}."
                )
            if graph.short:
                subject.fail(
                    f"makes {len(leaves)} leaves with n = {number} although nothing failed; make n, or lower "
                    "`rollout.expected` where fewer are wanted."
                )
            if len(set(leaves)) < len(leaves):
                subject.fail(f"makes a leaf twice with n = {number}: a fork that takes no turn repeats its source.")
            running = sum(episode.error == EndReason.SAMPLER_FINISHED.value for episode in graph.episodes)
            if running:
                subject.fail(
                    f"returns while {running} episodes are running, whose turns are thrown away: run them to their "
                    "end, or end them with `prune`, `stop` or `discard` and a reason."
                )


def check_repeatable(subject: _Subject) -> None:
    """Equal seeds give equal trees, at any speed of the policy, and from the file."""
    for number in subject.numbers[:2]:
        for budget in (BudgetOptions(), BudgetOptions(tokens=90), BudgetOptions(turns=9)):
            with changing_generators() as disturb:
                _repeat(subject, f"with n = {number} and {budget}", disturb, n=number, seed=5, budget=budget)


def _repeat(subject: _Subject, when: str, disturb: Callable[[], None], **given: Any) -> None:
    disturb()
    stored = subject.play(when, **given)
    for policy in (Speaker, SlowSpeaker, SlowSpeaker):
        disturb()
        places = differences(stored, subject.play(when, policy=policy, **given))
        if places:
            how = "when the policy answers in another order" if policy.slow else "with equal seeds"
            subject.fail(
                f"makes another tree {how} ({places[0]} differs, {when}): take random numbers from `rollout.rng`, and "
                "decide after `rollout.advance`, in the order of the episodes."
            )
    subject.replay(when, stored, budget=given["budget"])


def check_budgets(subject: _Subject) -> None:
    """No budget is exceeded, and none ends in an error."""
    for budget in BUDGETS:
        for number in (subject.numbers[0], subject.numbers[-1]):
            subject.play(f"with n = {number} and {budget}", n=number, budget=budget)
            for name, amount in subject.spent.items():
                limit = getattr(budget, name)
                if limit is not None and amount > limit:
                    subject.fail(f"spends {amount} {name} of a budget of {limit}.")


def check_hard_times(subject: _Subject) -> None:
    """Worlds that break, policies that say nothing, and steps in which one level learns."""
    subject.play("in a world that breaks", environment=Fragile)
    subject.play("in a world that cannot be started", environment=Lost)
    subject.play("with a policy that says nothing", answer=lambda prompt, sampling: "")
    subject.play("in a world that ends at the first action", task={"instruction": "go", "goal": 1})
    subject.play("when every turn is cut", limits=Limits(12, 2, 4000))
    subject.play("when one turn fills the context", limits=Limits(12, 64, 24))
    for level in sorted(set(subject.worker.levels(subject.worker_options).values())):
        subject.play(f"in a step in which level {level} learns", levels=frozenset({level}))


class _LeavesSome(Sampler):
    """One turn of two episodes, for a later step."""

    async def sample(self, rollout: Rollout) -> None:
        started = [rollout.start() for _ in range(2)]
        await rollout.advance(started)
        for episode in started:
            episode.discard(EndReason.LEFT_UNFINISHED)


def check_unfinished(subject: _Subject) -> None:
    """Episodes that an earlier step has left unfinished are continued as they were, or left alone."""
    when = "with unfinished episodes of an earlier step"
    for sampler in (_LeavesSome(), subject.spec.factory(subject.options)):
        first = subject.play("in the earlier step", sampler=sampler)
        left = tuple(UnfinishedEpisode.left_in(first))
        second = subject.play(when, step=2, unfinished=left)
        if second.counts.get("failed_replay_mismatch"):
            subject.fail("loses an unfinished episode of an earlier step when it resumes it.")
        resumed = [episode for episode in second.episodes if "resumed" in episode.decision]
        if len(resumed) > len(left):
            subject.fail(f"resumes {len(resumed)} episodes; an earlier step has left {len(left)}.")
        subject.replay(when, second)


def check_what_it_goes_by(subject: _Subject) -> None:
    """Whether other trees grow where nobody says how likely words are, or how good an episode was."""
    number = subject.numbers[-1]
    for seed in range(4):
        usual = _shape(subject.play("as usual", n=number, seed=seed))
        before = set(subject.asked)
        try:
            silent = _shape(subject.play("without log-probs", n=number, seed=seed, policy=Silent))
        except AssertionError:  # it says itself that it cannot do without them
            silent = []
        if silent != usual or subject.asked != before:  # or asks for those of given tokens instead
            subject.asked = before | {"needs_logprobs"}
        for which, world in {"with many rewards": Graded, "without rewards": Ungraded}.items():
            if subject.environment is not Line:  # what its positions are worth is not known
                break
            if _shape(subject.play(f"in a world {which}", n=number, seed=seed, environment=world)) != usual:
                subject.asked.add("sees_outcomes")


def _shape(graph: RolloutGraph) -> list[tuple[Any, ...]]:
    """Where each episode parts from which other one, how far it goes, and whether it is a leaf."""
    return [
        (episode.source, episode.shared, len(graph.path(episode.id)), episode.status in ("finished", "truncated"))
        for episode in graph.episodes
    ]


USES = {
    "needs_fork": "fork episodes",
    "needs_logprobs": "go by the log-probs of sampled tokens",
    "needs_tokens": "sample turns in pieces, or begin them with given tokens",
    "sees_outcomes": "go by the rewards of episodes",
    "needs_top_logprobs": "ask for the likeliest tokens",
    "needs_scores": "ask for the log-probs of given tokens",
}


def check_uses(subject: _Subject) -> None:
    """It declares what it has used so far."""
    for name in USES.keys() & subject.asked:
        if not subject.spec.needs(name, subject.options):
            subject.fail(
                f"does {USES[name]}, and its spec does not say `{name}=True`, so that a recipe without it would start."
            )
    if subject.left_out and subject.spec.leaves_out is None:
        subject.fail(
            "leaves roles out of episodes, and its spec does not say which (`leaves_out`), so that a recipe would "
            "start with a worker that cannot do without them."
        )


def check_declared(subject: _Subject) -> None:
    """It needs what it declares, and its columns are there."""
    check_uses(subject)
    for name, does in USES.items():
        if subject.spec.needs(name, subject.options) and name not in subject.asked:
            subject.fail(
                f"did not {does} in any of these plays, and its spec says `{name}=True`, which refuses recipes: remove "
                "it, or pass a `worker` and an `answer` with which it does."
            )
    for column in sorted({*subject.spec.fills(subject.options)} - subject.columns):
        subject.fail(f"declares the column {column!r} in `provides`, and no turn of these plays has it.")


CHECKS: tuple[Callable[[_Subject], None], ...] = (
    check_factory,
    check_groups,
    check_what_it_goes_by,
    check_uses,
    check_repeatable,
    check_budgets,
    check_hard_times,
    check_unfinished,
    check_declared,
)
