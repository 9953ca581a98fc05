"""AgentFlow (arXiv 2510.05592), four modules around a shared memory; docs/methods/agentflow.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from verl_hier.environments.base import StepResult
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count, Template
from verl_hier.host.specs import WorkerSpec
from verl_hier.rollout import EpisodeView, Turn, Worker
from verl_hier.rollout.prompts import check_action_template, content_of, fields, observe
from verl_hier.rollout.transcript import Transcript
from verl_hier_plugins.workers.react import parse_action

STOP, GO_ON = "stop", "go on"
_BETWEEN = " ; "


@dataclass(frozen=True)
class AgentFlowOptions:
    """Options of `agent_flow`.

    Templates may use {instruction}, {observation}, {admissible}, {memory} (actions and observations so far) and what
    the environment puts into the `info` of its reset; the executor's also {step}, the planner's choice.
    """

    planner_prompt: Annotated[str, Template("memory")] = "plan: {instruction} | {memory}"
    """What the planner sees; it answers with the next step."""
    planner_system: str | None = None
    """System message of the planner, for chat models."""
    executor: bool = True
    """Whether an executor turns each step into an action; off: the planner's text is the action, and a last line `stop`
    of it ends the steps."""
    executor_prompt: Annotated[str, Template("memory", "step")] = "do: {step} | {observation}"
    """What the executor sees; it answers with one action."""
    executor_system: str | None = None
    """System message of the executor, for chat models."""
    action_tag: str | None = None
    """When set, the action is the text inside <tag>…</tag>."""
    verifier: bool = True
    """Whether a verifier decides after each step if the memory suffices; else the environment or `steps` ends them."""
    verifier_prompt: Annotated[str, Template("memory")] = "enough: {instruction} | {memory}"
    """What the verifier sees; an answer that contains `stop` ends the steps."""
    verifier_system: str | None = None
    """System message of the verifier, for chat models."""
    generator_prompt: Annotated[str, Template("memory")] = "answer: {instruction} | {memory}"
    """What the generator sees when the steps are over."""
    generator_system: str | None = None
    """System message of the generator, for chat models."""
    answer_action: str | None = None
    """The action of the environment with the generator's text as {content}; omitted: there is no generator."""
    steps: Count = 10
    """Limit of steps in one episode."""
    memory_characters: Count = 4000
    """The last so many characters of the memory are what modules see."""

    def __post_init__(self) -> None:
        check_action_template("answer_action", self.answer_action)


class AgentFlow(Worker):
    """See `plugins/agent_flow`."""

    def __init__(self, options: AgentFlowOptions) -> None:
        self._options = options

    async def run(self, episode: EpisodeView) -> None:
        """See `Worker.run`."""
        options = self._options
        flow = _Flow(options, episode, await episode.reset())
        for number in range(options.steps):
            if not await flow.step(number):
                break
            if flow.over:
                return
            if options.verifier and await flow.enough(number):
                break
        if options.answer_action is not None:
            await flow.answer()


@dataclass(frozen=True)
class _Done:
    """One entry of the memory: a turn, the action it chose, and the world's answer."""

    turn: Turn
    action: str
    answer: str

    @property
    def text(self) -> str:
        return f"{self.action} > {self.answer}"


class _Flow:
    """One episode: the environment's last answer, and the memory that the modules share."""

    def __init__(self, options: AgentFlowOptions, episode: EpisodeView, first: StepResult) -> None:
        self._options = options
        self._episode = episode
        self._first = self._last_result = first
        self._memory: list[_Done] = []
        self._plan: Turn | None = None
        self._number = 0

    @property
    def over(self) -> bool:
        """Whether the environment has ended the episode."""
        return self._last_result.done or self._last_result.truncated

    async def step(self, number: int) -> bool:
        """The planner chooses, the executor acts, the memory grows; False where a planner that acts itself stops."""
        self._number, self._plan = number, None
        self._plan = turn = await self._turn("planner")
        if self._options.executor:
            turn = await self._turn("executor", self._plan)
        elif turn.text.rstrip(" .!\n").rpartition("\n")[2].strip().lower() == STOP:
            return False
        action = parse_action(turn.text, self._options.action_tag)
        if action is None:
            turn.mark(valid=False, failure="no_action_tag")
        self._last_result = await self._episode.act(action or "")
        action = (action or "")[: self._options.memory_characters]
        self._memory.append(_Done(turn, action, self._last_result.text))
        return True

    async def enough(self, number: int) -> bool:
        """Whether the verifier ends the steps."""
        return STOP in (await self._turn("verifier")).text.lower()

    async def answer(self) -> None:
        """The generator's answer, as an action of the environment."""
        turn = await self._turn("generator")
        if not turn.text.strip():
            turn.mark(valid=False, failure="empty_answer")
        await self._episode.act(str(self._options.answer_action).format(content=turn.text.strip()))

    def _remembered(self) -> tuple[str, list[Turn]]:
        """The end of the memory, and the turns whose actions it still contains."""
        whole = _BETWEEN.join(done.text for done in self._memory)
        cut, place, turns = max(len(whole) - self._options.memory_characters, 0), 0, []
        for done in self._memory:
            if done.action and place + len(done.action) > cut:
                turns.append(done.turn)
            place += len(done.text) + len(_BETWEEN)
        return whole[cut:], turns

    async def _turn(self, role: str, chosen: Turn | None = None) -> Turn:
        """A module's turn; the executor's follows what the planner has `chosen`."""
        context = self._episode.context(role, system=getattr(self._options, f"{role}_system"))
        memory, turns = self._remembered()
        more = {} if chosen is None else {"step": chosen.text}
        known = fields(self._episode, self._last_result, self._first, memory=memory, **more)
        filling = {"memory": turns, "step": [] if chosen is None else [chosen]}
        observe(context, self._options, f"{role}_prompt", known, filling)
        return await self._episode.generate(context, segment=self._number, plan=self._plan)


def _active_roles(options: AgentFlowOptions) -> tuple[str, ...]:
    verifier = ("verifier",) * options.verifier
    generator = ("generator",) * (options.answer_action is not None)
    return ("planner", *("executor",) * options.executor, *verifier, *generator)


def transcribe(options: AgentFlowOptions, transcript: Transcript) -> list[str]:
    """The turns of the modules with which they would do here what another worker's episode did.

    The planner alone sees the memory, so its step is the action itself, which the executor repeats. The verifier says
    `go on` until only the generator's answer is left; without an executor the planner says `stop` then.

    Raises:
        ValueError: `no_steps` for an episode that only answers, `too_many_steps` beyond the limit.
    """
    texts: list[str] = []
    tag = options.action_tag
    for number, action in enumerate(call.action for turn in transcript.turns for call in turn.calls):
        answer = content_of(options.answer_action, action)
        if answer is not None:
            if number == 0:
                raise ValueError("no_steps")
            if options.verifier:
                texts[-1] = STOP
            elif not options.executor and number < options.steps:
                texts.append(STOP)
            return [*texts, answer]
        if number == options.steps:
            raise ValueError("too_many_steps")
        acts = f"<{tag}>{action}</{tag}>" if tag else action
        texts += [action, acts] if options.executor else [acts]
        if options.verifier:
            texts.append(GO_ON)
    return texts


@hookimpl
def hier_workers() -> WorkerSpec:
    return WorkerSpec(
        "agent_flow",
        AgentFlow,
        AgentFlowOptions,
        summary="a planner chooses the next step, others carry it out, verify and answer; memory is shared",
        source="AgentFlow, arXiv 2510.05592 (modules and memory: confidence A)",
        roles={"planner": 0, "executor": 1, "verifier": 1, "generator": 1},
        active_roles=_active_roles,
        transcribe=transcribe,
    )
