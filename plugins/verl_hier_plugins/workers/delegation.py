"""CoDA and HierSearch (arXiv 2512.12716, 2508.08088), a planner that delegates to agents; docs/methods/coda.md."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from verl_hier.environments.base import StepResult
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative, Prompt, Template
from verl_hier.host.specs import WorkerSpec
from verl_hier.rollout import EpisodeOver, EpisodeView, Turn, Worker
from verl_hier.rollout.prompts import check_action_template, content_of, fields, observe
from verl_hier.rollout.transcript import EnvironmentCall, Transcript

ANSWER = "answer"
RESULT = "result"
DONE, NOTHING = "done", "nothing"
"""Reports of transcribed episodes where there is nothing else to say."""
LONGEST_EVIDENCE = 8000
"""The refiner sees the last so many characters of an agent's observations."""
_MARKER = re.compile(r"</?\w{1,64}>")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class AgentOptions:
    """One agent that the planner can delegate tasks to."""

    prompt: Annotated[str, Template("task", "planned")] = "goal: {task} | {observation}"
    """First message of its context, new for each task. Also {task}, and {planned}, the planner's whole turn."""
    system: str | None = None
    """Its system message, for chat models."""
    actions: tuple[str, ...] = ()
    """Beginnings of the actions that it may take, such as `search` or `<search>`; empty: any."""
    turns: int = 12
    """Limit of turns for one task."""

    def __post_init__(self) -> None:
        if self.turns < 1:
            raise ValueError(f"turns must be at least 1, got {self.turns}")


@dataclass(frozen=True)
class DelegationOptions:
    """Options of `delegation`.

    Templates may use {instruction}, {observation}, {admissible} and whatever the environment puts into the `info` of
    its reset; the others also what their line names.
    """

    planner_prompt: Prompt = "task: {instruction}"
    """First message of the planner."""
    planner_system: str | None = None
    """System message of the planner, for chat models; it should explain the tags."""
    result_prompt: Annotated[str, Template("agent", "result", "task")] = "{agent}: {result}"
    """The planner's next message after a task; also {agent}, {result} and {task}."""
    agents: Mapping[str, AgentOptions] = field(default_factory=lambda: {"executor": AgentOptions()})
    """Agents by name; the planner delegates with `<name>task</name>`."""
    observation_prompt: Annotated[str, Template("task")] = "{observation}"
    """What an agent sees after each action."""
    answer_action: str | None = None
    """The action that the planner's `<answer>` makes, with {content}; omitted: the answer ends the episode."""
    max_tasks: int = 6
    """Limit of delegated tasks in one episode."""
    longest_result: int = 2000
    """Characters of a result that reach the planner."""
    refine: bool = False
    """Whether a refiner rewrites each result for the planner, given the agent's observations."""
    refiner_prompt: Annotated[str, Template("task", "result", "evidence")] = "task: {task} | {evidence}"
    """First message of the refiner, whose context is new each time. Also {task}, {result} and {evidence}."""
    refiner_system: str | None = None
    """System message of the refiner, for chat models."""
    planner_format: NonNegative = 0.0
    """Reward for the share of planner turns that delegate or answer properly (the planner term of PECO's reward)."""
    executor_format: NonNegative = 0.0
    """Reward for the share of agents' turns that are sound (the executor term of PECO's reward)."""

    def __post_init__(self) -> None:
        if not self.agents:
            raise ValueError("agents must name at least one agent")
        for name in self.agents:
            if not name.isidentifier() or name in (ANSWER, RESULT):
                raise ValueError(f"agents: {name!r} cannot be the name of an agent; use a word that is no other tag")
        if self.max_tasks < 1 or self.longest_result < 1:
            raise ValueError("max_tasks and longest_result must be at least 1")
        check_action_template("answer_action", self.answer_action)

    def vocabulary(self) -> Iterator[str]:
        """Every word that the worker itself adds to prompts and turns."""
        yield " ".join(f"<{tag}> </{tag}>" for tag in (*self.agents, ANSWER, RESULT))


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
    """A planner that delegates tasks to agents, each in a context of its own, which report back."""

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
        context = episode.context("planner", system=options.planner_system)
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
        context = episode.context("executor", agent=name, system=agent.system)
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
        context = episode.context("refiner", system=options.refiner_system)
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


def transcribe(options: DelegationOptions, transcript: Transcript) -> list[str]:
    """The turns with which the policy would do here what another worker's episode did.

    Actions of one subgoal that one agent may take become a task of that agent, which the planner names by the subgoal.
    Where the planner has to answer (`answer_action`), or where there are no subgoals, it names a task by its first
    action. A report says `done`; where the planner has to answer, it says what the next step takes from the agent's
    last observation.

    Raises:
        ValueError: `no_agent` when no agent may take an action; `too_many_tasks` or `too_many_turns` beyond the limits.
    """
    goals = transcript.subgoals if options.answer_action is None else []
    texts: list[str] = []
    now, last, tasks, spent = ("", -1), None, 0, 0
    for segment, call in [(turn.node.segment, call) for turn in transcript.turns for call in turn.calls]:
        answer = content_of(options.answer_action, call.action)
        agent = ANSWER if answer is not None else _agent_for(options, call.action)
        if now != (agent, segment):
            if last is not None:
                found = DONE if options.answer_action is None else _found(transcript, last, call.action)
                # An agent whose turns are used up is not asked for a report.
                texts += [f"<{RESULT}>{found}</{RESULT}>"] if spent < options.agents[now[0]].turns else []
                texts += [found] if options.refine else []
            if answer is not None:
                return [*texts, f"<{ANSWER}>{answer}</{ANSWER}>"]
            now, tasks, spent = (agent, segment), tasks + 1, 0
            if tasks > options.max_tasks:
                raise ValueError("too_many_tasks")
            task = goals[min(segment, len(goals) - 1)] if goals else _asked(options.agents[agent], call.action)
            texts.append(f"<{agent}>{task}</{agent}>")
        last, spent = call, spent + 1
        if spent > options.agents[agent].turns:
            raise ValueError("too_many_turns")
        texts.append(call.action)
    return texts


def _agent_for(options: DelegationOptions, action: str) -> str:
    """The first agent that may take an action."""
    agent = next((name for name, one in options.agents.items() if may(one, action)), None)
    if agent is None:
        raise ValueError("no_agent")
    return agent


def _asked(agent: AgentOptions, action: str) -> str:
    """What an action asks for: its text without the beginning that is this agent's, and without tags."""
    start = max((start for start in agent.actions if action.startswith(start)), key=len, default="")
    return _MARKER.sub("", action[len(start) :]).strip() or action


def _found(transcript: Transcript, last: EnvironmentCall, following: str) -> str:
    """What the step that follows takes from the last observation: its words there, new ones if there are any."""
    seen, asked = _WORD.findall(last.step.text), _WORD.findall(last.action)
    taken = [word for word in _WORD.findall(following) if word in seen and word not in asked]
    known = _WORD.findall(transcript.instruction)
    return " ".join([word for word in taken if word not in known] or taken) or NOTHING


@hookimpl
def hier_workers() -> WorkerSpec:
    return WorkerSpec(
        name="delegation",
        factory=Delegation,
        options=DelegationOptions,
        summary="a planner delegates tasks to agents in contexts of their own, and may have their evidence refined",
        source="CoDA, arXiv 2512.12716; HierSearch, arXiv 2508.08088 (confidence A)",
        roles={"planner": 0, "executor": 1, "refiner": 1},
        active_roles=lambda options: ("planner", "executor", "refiner")[: 3 if options.refine else 2],
        transcribe=transcribe,
    )
