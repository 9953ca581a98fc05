"""A planner delegates tasks to agents, which work on them in contexts of their own and report back."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from verl_hier.environments.base import StepResult
from verl_hier.rollout import EpisodeOver, EpisodeView, Turn, Worker
from verl_hier.rollout.prompts import fields, observe
from verl_hier_plugins.workers.delegation.options import ANSWER, RESULT, AgentOptions, DelegationOptions

LONGEST_EVIDENCE = 8000
"""The refiner sees the last so many characters of an agent's observations."""


@dataclass
class _Formats:
    """Turns of a level, and how many of them were valid."""

    valid: int = 0
    turns: int = 0

    @property
    def share(self) -> float:
        return self.valid / max(self.turns, 1)

    def note(self, turn: Turn, failure: str | None) -> None:
        """Count a turn, and mark it when it is invalid."""
        self.turns += 1
        self.valid += failure is None
        if failure is not None:
            turn.mark(valid=False, failure=failure)


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
        self._planners, self._agents = _Formats(), _Formats()
        self._planned: Turn | None = None

    async def play(self) -> None:
        """Plan and delegate until an answer, the environment or a limit ends the episode."""
        try:
            await self._plan()
        except EpisodeOver:
            self._reward_formats()  # a limit ended it; the shares are those of the turns so far
            raise
        self._reward_formats()

    def _reward_formats(self) -> None:
        """The format terms of PECO's reward, on the planner's last turn."""
        options = self._options
        if self._planned is not None:
            self._planned.reward(
                options.planner_format * self._planners.share + options.executor_format * self._agents.share
            )

    async def _plan(self) -> None:
        options, episode = self._options, self._episode
        self._step = self._first = await episode.reset()
        context = episode.context("planner", level=0, system=options.planner_system)
        observe(context, options, "planner_prompt", self._known())
        for number in range(options.max_tasks + 1):
            self._planned = turn = await episode.generate(context, segment=number)
            tag, content = self._read(turn)
            last = number == options.max_tasks
            failure = "no_tag" if tag is None else "too_many_tasks" if last and tag != ANSWER else None
            self._planners.note(turn, failure)
            if tag is None or failure:
                raise EpisodeOver(f"planner: {failure}")
            if tag == ANSWER:
                if options.answer_action is not None:
                    await episode.act(options.answer_action.format(content=content))
                return
            report = await self._work(turn, number, tag, content)
            if self._step.done or self._step.truncated:
                return
            if options.refine:
                report = await self._refine(turn, number, content, report)
            known = self._known(agent=tag, result=report.text[: options.longest_result], task=content)
            observe(context, options, "result_prompt", known, {"result": report.sources, "task": [turn]})

    def _read(self, turn: Turn) -> tuple[str | None, str]:
        """The first complete tag of a planner's turn: it wrote any further one without the result of the first."""
        found = self._tags.search(turn.text)
        return (None, "") if found is None else (found[1], found[2].strip())

    async def _work(self, planned: Turn, number: int, name: str, task: str) -> _Report:
        """One agent on one task, in a context of its own."""
        options, episode, agent = self._options, self._episode, self._options.agents[name]
        context = episode.context("executor", level=1, agent=name, system=agent.system)
        known = self._known(task=task, planned=planned.text)
        filling = {"task": [planned], "planned": [planned]}
        observe(context, agent, "prompt", known, filling, prefix=f"agents.{name}.")
        report = _Report()
        for _ in range(agent.turns):
            turn = await episode.generate(context, segment=number, plan=planned)
            report.text, report.turn = turn.text, turn
            ended = re.search(rf"<{RESULT}>([^<]*)(?:</{RESULT}>|$)", turn.text)
            failure = None if ended or may(agent, turn.text) else "tool_in_wrong_role"
            self._agents.note(turn, failure)
            if ended:
                report.text = ended[1].strip()
                break
            if failure is None:
                self._step = await episode.act(turn.text.strip())
                report.evidence.append(self._step.text)
                report.text, report.turn = self._step.text, None
            if self._step.done or self._step.truncated:
                break
            observe(context, options, "observation_prompt", self._known(task=task), filling)
        return report

    async def _refine(self, planned: Turn, number: int, task: str, report: _Report) -> _Report:
        """The refiner's version of a report."""
        options, episode = self._options, self._episode
        context = episode.context("refiner", level=1, system=options.refiner_system)
        evidence = " | ".join([*report.evidence, report.text])[-LONGEST_EVIDENCE:]
        known = self._known(task=task, result=report.text, evidence=evidence)
        filling = {"task": [planned], "result": report.sources, "evidence": report.sources}
        observe(context, options, "refiner_prompt", known, filling)
        turn = await episode.generate(context, segment=number, plan=planned)
        self._agents.note(turn, None if turn.text.strip() else "empty_refinement")
        return _Report(turn.text, turn)

    def _known(self, **more: str) -> dict[str, str]:
        return fields(self._episode, self._step, self._first, **more)

    _step: StepResult
    _first: StepResult


def may(agent: AgentOptions, action: str) -> bool:
    """Whether an agent may take an action."""
    text = action.strip()
    return not agent.actions or any(
        text.startswith(start) and (not start[-1:].isalnum() or not text[len(start) : len(start) + 1].isalnum())
        for start in agent.actions
    )
