"""Skills: an agent that is shown a skill of a library where one fits its task, and that writes down new ones.

Source: ARISE, Skylanding/ARISE. The library is the schedule's, `skill_library`. Page: docs/methods/arise.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from verl_hier.environments import scoring
from verl_hier.environments.base import StepResult
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count, Positive, Template, ZeroToOne
from verl_hier.host.specs import WorkerSpec
from verl_hier.rollout import Context, EpisodeView, Turn, Worker
from verl_hier.rollout.prompts import fields, observe
from verl_hier.rollout.transcript import Transcript
from verl_hier_plugins.workers.proposer_solver_judge.guards import likeness, words_of
from verl_hier_plugins.workers.react import parse_action

SOLVER, CONCLUDER, VERIFIER = "solver", "concluder", "verifier"
UNVERIFIED = -1
Aided = Annotated[str, Template("skill")]
Concluded = Annotated[str, Template("solution")]


@dataclass(frozen=True)
class SkillsOptions:
    """Options of `skills`.

    Templates may use {instruction}, {observation}, {admissible} and whatever the environment puts into the `info` of
    its reset; some also the {skill} of the library, or the {solution} from which one is written.
    """

    prompt: str = "task: {instruction} | {observation}"
    """What the solver reads first without a skill."""
    aided_prompt: Aided = "skill: {skill} | task: {instruction} | {observation}"
    """What it reads first with one; also what a new skill is verified with."""
    observation_prompt: str = "{observation}"
    """What it reads after an action."""
    conclude_prompt: Concluded = "conclude: {instruction} | {solution}"
    """What the concluder reads, who writes a skill down."""
    system: str | None = None
    """System message of the solver, for chat models."""
    concluder_system: str | None = None
    """System message of the concluder, for chat models."""
    action_tag: str | None = None
    """When set, the action is the text inside <tag>…</tag>."""
    answer_tag: str = "answer"
    """The answer of a solution is the text inside <tag>…</tag>, and all of it without one; no skill may have it."""
    skill_tag: str = "skill"
    """The skill is the text inside <tag>…</tag>."""
    select: Literal["likelihood", "words"] = "likelihood"
    """How a skill is chosen: by how `likelihood` the policy finds its text behind the task, or by the `words` that it
    has in common with the task."""
    temperature: Positive = 1.0
    """Of the softmax over the mean log-probs of the skills."""
    gate: ZeroToOne = 0.35
    """Least share of the best skill, or of its words in common with the task; below it no skill is shown."""
    explore: ZeroToOne = 0.1
    """Chance that any other skill is shown in its place."""
    conclude: ZeroToOne = 0.25
    """Share of the solved training episodes in which the concluder writes a skill down; 0 for none."""
    right: float = 0.5
    """Least reward of a last action that counts as right when the environment does not report success."""
    longest: Count = 220
    """Characters that a skill has at most."""
    longest_solution: Count = 400
    """Characters of a solution that the concluder reads."""

    def __post_init__(self) -> None:
        if self.skill_tag == self.answer_tag:
            raise ValueError(f"skill_tag and answer_tag must differ, and both are {self.skill_tag!r}")

    def levels(self) -> dict[str, int]:
        """The roles that take turns."""
        return {SOLVER: 0} | ({CONCLUDER: 1, VERIFIER: 1} if self.conclude else {})

    def vocabulary(self) -> Iterator[str]:
        """Every word that the worker itself adds to turns."""
        yield f"<{self.skill_tag}> </{self.skill_tag}>"


def shares_of(scores: Sequence[float], temperature: float) -> list[float]:
    """Softmax of mean log-probs; a score of -inf has no share."""
    best = max(scores, default=-math.inf)
    if best == -math.inf:
        return [0.0] * len(scores)
    weights = [math.exp((score - best) / temperature) for score in scores]
    return [weight / sum(weights) for weight in weights]


def skill_of(text: str, options: SkillsOptions, answer: str = "") -> str | None:
    """The skill that a turn has written down; None without one, or with one that is too long or tells an answer.

    Args:
        text: of the turn.
        options: of the worker.
        answer: of the task that was solved.
    """
    found = parse_action(text, options.skill_tag)
    if not found or len(found) > options.longest or f"<{options.answer_tag}".casefold() in found.casefold():
        return None
    return None if tells(found, answer) else " ".join(found.split()) or None


def tells(skill: str, answer: str) -> bool:
    """Whether the words of an answer stand in a skill one behind the other; of one without words, its characters."""
    wanted = words_of(answer)
    if not wanted:
        return bool(answer.strip()) and answer.strip() in skill
    return f" {' '.join(wanted)} " in f" {' '.join(words_of(skill))} "


class Skills(Worker):
    """See the module. Evaluations are told no skills, and conclude none."""

    def __init__(self, options: SkillsOptions) -> None:
        self._options = options

    async def run(self, episode: EpisodeView) -> None:
        """See `Worker.run`."""
        options, scene = self._options, _Scene(self._options, episode, await episode.reset())
        await scene.solve(await scene.choose())
        if scene.right and not episode.validates and episode.rng.random() < options.conclude:
            await scene.conclude()


class _Scene:
    """One task: its solution, and what is concluded from it."""

    def __init__(self, options: SkillsOptions, episode: EpisodeView, first: StepResult) -> None:
        self._options = options
        self._episode = episode
        self._first = self._last = first
        self._turns: list[Turn] = []

    @property
    def right(self) -> bool:
        """Whether the task is solved."""
        won = self._last.info.get("won")
        return self._last.done and (self._last.reward >= self._options.right if won is None else bool(won))

    async def choose(self) -> str:
        """The skill that is shown, empty for none."""
        options, rng, known = self._options, self._episode.rng, self._episode.told.get("skills")
        skills = [str(each) for each in known] if isinstance(known, list) else []
        if not skills:
            return ""
        if options.select == "words":
            shares = [likeness(self._episode.instruction, skill) for skill in skills]
        else:
            asked = self._asked(SOLVER, "prompt")
            shares = shares_of(await self._episode.likelihoods(asked, skills), options.temperature)
        if max(shares) < options.gate:
            return ""
        return rng.choice(skills) if rng.random() < options.explore else skills[shares.index(max(shares))]

    async def solve(self, skill: str) -> None:
        """Act until the environment ends the episode."""
        options = self._options
        context = self._asked(SOLVER, "aided_prompt" if skill else "prompt", skill=skill)
        while not (self._last.done or self._last.truncated):
            turn = await self._episode.generate(context)
            action = parse_action(turn.text, options.action_tag)
            self._mark(turn, action is not None, None if action is not None else "no_action", skill)
            self._turns.append(turn)
            self._last = await self._episode.act(action or "")
            self._tell(context, "observation_prompt")

    async def conclude(self) -> None:
        """Write a skill down, and solve the task again with it and nothing else."""
        options = self._options
        solution = " ".join(turn.text for turn in self._turns)
        context = self._asked(CONCLUDER, "conclude_prompt", self._turns, solution=solution[: options.longest_solution])
        written = await self._episode.generate(context, plan=self._turns[-1])
        skill = skill_of(written.text, options, self._answer(self._turns[-1]))
        self._mark(written, skill is not None, None if skill else "no_skill")
        if skill is None:
            return
        written.mark(new_skill=skill)
        verifier = self._asked(VERIFIER, "aided_prompt", [written], skill=skill)
        turn = await self._episode.generate(verifier, plan=written)
        verified = scoring.exact_match(self._answer(turn), [self._answer(self._turns[-1])])
        self._mark(turn, True, None)
        for each in (written, turn):
            each.mark(verified=int(verified))

    def _answer(self, turn: Turn) -> str:
        """The answer of a turn; that of a solved task is the true one."""
        return parse_action(turn.text, self._options.answer_tag) or turn.text

    @staticmethod
    def _mark(turn: Turn, formed: bool, failure: str | None, skill: str = "") -> None:
        turn.mark(format=int(formed), skill_used=int(bool(skill)), verified=UNVERIFIED)
        if skill:
            turn.mark(skill=skill)
        if failure is not None:
            turn.mark(valid=False, failure=failure)

    def _asked(self, role: str, prompt: str, of: Sequence[Turn] = (), **more: str) -> Context:
        """A new context of a role that has read a prompt."""
        options = self._options
        system = options.concluder_system if role == CONCLUDER else options.system
        context = self._episode.context(role, system=system)
        self._tell(context, prompt, of, **more)
        return context

    def _tell(self, context: Context, prompt: str, of: Sequence[Turn] = (), **more: str) -> None:
        known = fields(self._episode, self._last, self._first, **more)
        observe(context, self._options, prompt, known, dict.fromkeys(more, of))


def transcribe(options: SkillsOptions, transcript: Transcript) -> list[str]:
    """What a policy has to say in this worker to do what an episode did, to write a skill down, and to solve the task
    again with it: the beginning of its solution.

    Raises:
        ValueError: in one word, for an episode that cannot be written so.
    """
    calls = [call.action for turn in transcript.turns for call in turn.calls]
    if not calls:
        raise ValueError("no_action")
    tag = options.action_tag
    said = [f"<{tag}>{call}</{tag}>" if tag else call for call in calls]
    words, skill = " ".join(said).partition(f"<{options.answer_tag}>")[0].split(), ""
    answer = parse_action(said[-1], options.answer_tag) or said[-1]
    for word in words:
        if tells(f"{skill} {word}", answer):
            continue
        if len(skill) + len(word) >= options.longest:
            break
        skill = f"{skill} {word}".strip()
    if not skill:
        raise ValueError("no_solution")
    return [*said, f"<{options.skill_tag}>{skill}</{options.skill_tag}>", said[-1]]


@hookimpl
def hier_workers() -> WorkerSpec:
    return WorkerSpec(
        name="skills",
        factory=Skills,
        options=SkillsOptions,
        summary="an agent is shown a skill of a library that fits its task; solved tasks leave new, verified skills",
        source="Skylanding/ARISE verl/workers/arise/skill_manager.py",
        active_roles=SkillsOptions.levels,
        provides=("format", "skill_used", "verified"),
        needs_scores=lambda options: options.select == "likelihood",
        transcribe=transcribe,
    )
