"""A planner delegates tasks to agents that work in contexts of their own and report back."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from verl_hier.environments.base import StepResult
from verl_hier.rollout import EpisodeOver, EpisodeView, Turn, Worker
from verl_hier.rollout.prompts import fields, fill, source_nodes
from verl_hier_plugins.workers.delegation.options import ANSWER, RESULT, AgentOptions, DelegationOptions

LONGEST_EVIDENCE = 8000
"""Characters of what an agent saw that reach the refiner."""


@dataclass
class _Formats:
    """Turns of a level, and how many of them were sound."""

    sound: int = 0
    turns: int = 0

    @property
    def share(self) -> float:
        return self.sound / max(self.turns, 1)

    def note(self, turn: Turn, failure: str | None) -> None:
        """Count a turn, and mark it when something is wrong with it."""
        self.turns += 1
        self.sound += failure is None
        if failure is not None:
            turn.mark(valid=False, failure=failure)


@dataclass
class _Report:
    """What an agent hands back: its words, and all that it saw.

    Attributes:
        text: the report.
        said: the turn whose words it is; None when the world said it.
        evidence: what the world answered to the agent.
    """

    text: str = ""
    said: Turn | None = None
    evidence: list[str] = field(default_factory=list)

    @property
    def spoken(self) -> list[Turn]:
        """The turns whose words it is: one or none."""
        return [] if self.said is None else [self.said]


class Delegation(Worker):
    """See `plugins/delegation`."""

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
        """Plan, delegate, hear, until an answer, the world, or a limit ends it."""
        try:
            await self._plan()
        except EpisodeOver:
            self._reward_formats()  # a limit ended it from inside; the shares are of the turns there were
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
        context = episode.context("planner", level=0)
        if options.planner_system:
            context.observe(options.planner_system, role="system")
        context.observe(fill(options.planner_prompt, self._known(), "planner_prompt"))
        for number in range(options.max_tasks + 1):
            self._planned = turn = await episode.generate(context, segment=number)
            tag, content = self._read(turn)
            last = number == options.max_tasks
            wrong = "no_tag" if tag is None else "too_many_tasks" if last and tag != ANSWER else None
            self._planners.note(turn, wrong)
            if tag is None or wrong:
                raise EpisodeOver(f"planner: {wrong}")
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
            context.observe(
                fill(options.result_prompt, known, "result_prompt"),
                sources=source_nodes(options.result_prompt, {"result": report.spoken, "task": [turn]}),
            )

    def _read(self, turn: Turn) -> tuple[str | None, str]:
        """The first complete tag of a planner's turn: the planner had heard nothing new when it wrote a second."""
        found = self._tags.search(turn.text)
        return (None, "") if found is None else (found[1], found[2].strip())

    async def _work(self, planned: Turn, number: int, name: str, task: str) -> _Report:
        """One agent on one task, in a context of its own."""
        options, episode, agent = self._options, self._episode, self._options.agents[name]
        context = episode.context("executor", level=1, agent=name)
        if agent.system:
            context.observe(agent.system, role="system")
        known = self._known(task=task, planned=planned.text)
        words = {"task": [planned], "planned": [planned]}
        context.observe(fill(agent.prompt, known, f"agents.{name}.prompt"), sources=source_nodes(agent.prompt, words))
        report = _Report()
        for _ in range(agent.turns):
            turn = await episode.generate(context, segment=number, plan=planned)
            report.text, report.said = turn.text, turn
            ended = re.search(rf"<{RESULT}>([^<]*)(?:</{RESULT}>|$)", turn.text)
            wrong = None if ended or may(agent, turn.text) else "tool_in_wrong_role"
            self._agents.note(turn, wrong)
            if ended:
                report.text = ended[1].strip()
                break
            if wrong is None:
                self._step = await episode.act(turn.text.strip())
                report.evidence.append(self._step.text)
                report.text, report.said = self._step.text, None
            if self._step.done or self._step.truncated:
                break
            heard = fill(options.observation_prompt, self._known(task=task), "observation_prompt")
            context.observe(heard, sources=source_nodes(options.observation_prompt, words))
        return report

    async def _refine(self, planned: Turn, number: int, task: str, report: _Report) -> _Report:
        """What the refiner makes of a report."""
        options, episode = self._options, self._episode
        context = episode.context("refiner", level=1)
        if options.refiner_system:
            context.observe(options.refiner_system, role="system")
        evidence = " | ".join([*report.evidence, report.text])[-LONGEST_EVIDENCE:]
        known = self._known(task=task, result=report.text, evidence=evidence)
        words = {"task": [planned], "result": report.spoken, "evidence": report.spoken}
        prompt = fill(options.refiner_prompt, known, "refiner_prompt")
        context.observe(prompt, sources=source_nodes(options.refiner_prompt, words))
        turn = await episode.generate(context, segment=number, plan=planned)
        self._agents.note(turn, None if turn.text.strip() else "empty_refinement")
        return _Report(turn.text, turn)

    def _known(self, **more: str) -> dict[str, str]:
        return fields(self._episode, self._step, self._first, **more)

    _step: StepResult
    _first: StepResult


def may(agent: AgentOptions, action: str) -> bool:
    """Whether an action is among those that an agent may take."""
    text = action.strip()
    return not agent.actions or any(
        text.startswith(start) and (not start[-1:].isalnum() or not text[len(start) : len(start) + 1].isalnum())
        for start in agent.actions
    )
