"""A planner that delegates tasks to agents, each in a context of its own, which report back; or one agent alone."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from verl_hier.environments.base import StepResult
from verl_hier.rollout import EpisodeOver, EpisodeView, Turn, Worker
from verl_hier.rollout.prompts import fields, observe
from verl_hier_plugins.workers.delegation.options import ANSWER, RESULT, DelegationOptions

LONGEST_EVIDENCE = 8000
"""The refiner sees the last so many characters of an agent's observations."""
_RESULT = re.compile(rf"<{RESULT}>([^<]*)(?:</{RESULT}>|$)")


@dataclass
class _Conversation:
    """What was said in one context.

    Attributes:
        turns, valid: turns, and how many of them were valid.
        worked: whether a task was delegated, or an action was taken.
        ended: whether it came to an answer or a result, or the environment ended with it.
        tags: tags by which it is judged, if any.
        texts: what was said.
    """

    turns: int = 0
    valid: int = 0
    worked: bool = False
    ended: bool = False
    tags: tuple[str, ...] = ()
    texts: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing is missing and nothing was invalid; or whether it has each of its tags, opened and closed."""
        if self.tags:
            said = "\n".join(self.texts)
            return all(0 < said.count(f"<{tag}>") == said.count(f"</{tag}>") for tag in self.tags)
        return self.worked and self.ended and self.turns == self.valid

    def note(self, turn: Turn, failure: str | None) -> None:
        """Count a turn, and mark it when it is invalid."""
        self.turns += 1
        self.texts.append(turn.text)
        self.valid += failure is None
        if failure is not None:
            turn.mark(valid=False, failure=failure)


def _share(conversations: list[_Conversation], by: str) -> float:
    """The share of sound conversations, or of valid turns; 0 without any."""
    if by == "turn":
        return sum(talk.valid for talk in conversations) / max(sum(talk.turns for talk in conversations), 1)
    return sum(talk.sound for talk in conversations) / max(len(conversations), 1)


@dataclass
class _Report:
    """An agent's result.

    Attributes:
        text: the report.
        turn: the turn that it was taken from; None when it is an observation.
        evidence: the agent's observations.
    """

    text: str = ""
    turn: Turn | None = None
    evidence: list[str] = field(default_factory=list)

    @property
    def sources(self) -> list[Turn]:
        """The turn that it was taken from, if any."""
        return [] if self.turn is None else [self.turn]


class Delegation(Worker):
    """See the module."""

    def __init__(self, options: DelegationOptions) -> None:
        self._options = options
        names = "|".join(map(re.escape, (*options.agents, ANSWER)))
        self._tags = re.compile(rf"<({names})>([^<]*)</\1>")

    async def run(self, episode: EpisodeView) -> None:
        """See `Worker.run`."""
        await _Episode(self._options, self._tags, episode).play()


class _Episode:
    def __init__(self, options: DelegationOptions, tags: re.Pattern[str], episode: EpisodeView) -> None:
        self._options = options
        self._tags = tags
        self._episode = episode
        self._planning = _Conversation(tags=options.sound_tags)
        self._tasks: list[_Conversation] = []
        self._refinements: list[_Conversation] = []
        self._planned: Turn | None = None
        self._spoken: Turn | None = None

    async def play(self) -> None:
        """Plan and delegate until an answer, the environment or a limit ends the episode."""
        options = self._options
        alone = options.alone and (options.alone_when == "always" or not self._episode.learns(0))
        try:
            self._step = self._first = await self._episode.reset()
            await (self._work_alone() if alone else self._plan())
        except EpisodeOver:
            self._reward_formats()  # a limit ended it; the shares are those of the turns so far
            raise
        self._reward_formats()

    def _reward_formats(self) -> None:
        """The format terms of PECO's reward, on the planner's last turn, or on that of an agent alone."""
        options, last = self._options, self._planned or self._spoken
        if last is None:
            return
        by = options.format_by
        planner = _share([self._planning] if self._planning.turns else [], by)
        agents = _share(self._tasks + (self._refinements if by == "turn" else []), by)
        last.reward(options.planner_format * planner + options.executor_format * agents)

    async def _work_alone(self) -> None:
        """One agent on the question itself."""
        options, task = self._options, self._episode.instruction
        report = await self._work(None, 0, options.alone_for(task), task)
        if options.answer_action is not None and self._tasks[-1].ended and not self._over:
            await self._episode.act(options.answer_action.format(content=report.text))

    async def _plan(self) -> None:
        options, episode, planning = self._options, self._episode, self._planning
        context = episode.context("planner", system=options.planner_system)
        observe(context, options, "planner_prompt", self._known())
        for number in range(options.max_tasks + 1):
            self._planned = turn = await episode.generate(context, segment=number)
            tag, content = self._read(turn)
            last = number == options.max_tasks
            failure = "no_tag" if tag is None else "too_many_tasks" if last and tag != ANSWER else None
            planning.note(turn, failure)
            if failure == "no_tag" and options.retry_prompt is not None and not last:
                observe(context, options, "retry_prompt", self._known())
                continue
            if tag is None or failure:
                raise EpisodeOver(f"planner: {failure}")
            if tag == ANSWER:
                planning.ended = True
                if options.answer_action is not None:
                    await episode.act(options.answer_action.format(content=content))
                return
            planning.worked = True
            report = await self._work(turn, number, tag, content)
            if self._over:
                planning.ended = self._step.done
                return
            if options.refine:
                report = await self._refine(turn, number, content, report)
            known = self._known(agent=tag, result=report.text[: options.longest_result], task=content)
            observe(context, options, "result_prompt", known, {"result": report.sources, "task": [turn]})

    def _read(self, turn: Turn) -> tuple[str | None, str]:
        """The first complete tag of a planner's turn: it wrote any further one without the result of the first."""
        found = self._tags.search(turn.text)
        return (None, "") if found is None else (found[1], found[2].strip())

    async def _work(self, planned: Turn | None, number: int, name: str, task: str) -> _Report:
        """One agent on one task, in a context of its own; the task is the planner's, or without one the question."""
        options, episode, agent = self._options, self._episode, self._options.agents[name]
        talk = _Conversation(tags=agent.sound_tags)
        self._tasks.append(talk)
        context = episode.context(agent.role, agent=name, system=agent.system)
        known = self._known(task=task, planned="" if planned is None else planned.text)
        givers = [] if planned is None else [planned]
        filling = {"task": givers, "planned": givers}
        observe(context, agent, "prompt", known, filling, prefix=f"agents.{name}.")
        report = _Report()
        for _ in range(agent.turns):
            self._spoken = turn = await episode.generate(context, segment=number, plan=planned)
            report.text, report.turn = turn.text, turn
            result = _RESULT.search(turn.text)
            failure = None if result or agent.may(turn.text) else "tool_in_wrong_role"
            talk.note(turn, failure)
            if result:
                report.text, talk.ended = result[1].strip(), True
                break
            if failure is None:
                talk.worked = True
                self._step = await episode.act(turn.text.strip())
                report.evidence.append(self._step.text)
                report.text, report.turn = self._step.text, None
            if self._over:
                talk.ended = self._step.done
                break
            observe(context, options, "observation_prompt", self._known(task=task), filling)
        return report

    async def _refine(self, planned: Turn, number: int, task: str, report: _Report) -> _Report:
        """The refiner's version of a report."""
        options, episode = self._options, self._episode
        context = episode.context("refiner", system=options.refiner_system)
        evidence = " | ".join([*report.evidence, report.text])[-LONGEST_EVIDENCE:]
        known = self._known(task=task, result=report.text, evidence=evidence)
        filling = {"task": [planned], "result": report.sources, "evidence": report.sources}
        observe(context, options, "refiner_prompt", known, filling)
        turn = await episode.generate(context, segment=number, plan=planned)
        self._refinements.append(_Conversation())
        self._refinements[-1].note(turn, None if turn.text.strip() else "empty_refinement")
        return _Report(turn.text, turn)

    @property
    def _over(self) -> bool:
        """Whether the environment has ended the episode."""
        return self._step.done or self._step.truncated

    def _known(self, **more: str) -> dict[str, str]:
        return fields(self._episode, self._step, self._first, **more)

    _step: StepResult
    _first: StepResult
