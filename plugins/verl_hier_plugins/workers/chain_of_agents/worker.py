"""One assistant message in which agents take turns as tags; the environment answers in between, in `<observation>`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from verl_hier.environments.base import StepResult
from verl_hier.host.constraints import Count, NonNegative, Prompt
from verl_hier.rollout import Context, EpisodeOver, EpisodeView, Turn, Worker
from verl_hier.rollout.off_loop import off_loop
from verl_hier.rollout.prompts import check_action_template, fields, fill, observe
from verl_hier_plugins.workers.chain_of_agents.grammar import (
    ANSWER,
    FAILED,
    LEVELS,
    OBSERVATION,
    SCORE,
    UNREADABLE,
    Language,
    Reading,
    Segment,
    Walk,
)

CONTENT = "content"


@dataclass(frozen=True)
class ChainOptions:
    """Options of `chain_of_agents`.

    Templates may use {instruction}, {observation}, {admissible} and whatever the environment puts into the `info` of
    its reset; templates of actions only {content}, the text between an agent's tags.
    """

    prompt: Prompt = "task: {instruction} | {observation}"
    """First message of the context."""
    system: str | None = None
    """System message for chat models; it should explain the tags."""
    observation_prompt: Prompt = "<observation>{observation}</observation>"
    """Text that is inserted into the sequence after a tool agent."""
    tools: Mapping[str, str] = field(default_factory=lambda: {"action": "{content}"})
    """Tags of the tool agents, and the action of the environment that each makes."""
    answer_action: str | None = None
    """The action that the answer makes, for environments that expect one; omitted: the answer ends the episode."""
    grammar: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What may follow an agent, where it differs from the paper's; `start`, `tool` and new agents may be named."""
    think: Literal["required", "optional"] = "required"
    """Whether a `think` must come before every other agent."""
    accept_score: int = 3
    """Score of a double check from which the answer must follow; below, it may not."""
    replan_word: str = "poor"
    """A reflection with this word must be followed by a plan; empty: never."""
    turns: Literal["agent", "call"] = "agent"
    """What one turn is: one agent's part, or everything up to a tool agent or the answer."""
    on_violation: Literal["end", "penalise"] = "end"
    """Whether a violation of the grammar ends the episode, or only costs the penalty where the text can go on."""
    violation_penalty: NonNegative = 0.0
    """Subtracted from the reward of a turn that violates the grammar."""
    longest_content: Count = 20_000
    """Characters of one agent's part; a longer one is a violation and never reaches the environment."""

    def __post_init__(self) -> None:
        if not self.tools and self.answer_action is None:
            raise ValueError("tools must name a tag, or answer_action must be set: no agent could act otherwise")
        for tag, template in self.tools.items():
            check_action_template(f"tools.{tag}", template)
        check_action_template("answer_action", self.answer_action)
        self.language()

    def language(self) -> Language:
        """The grammar of these options."""
        return Language(
            self.tools,
            self.grammar,
            think_first=self.think == "required",
            accept_score=self.accept_score,
            replan_word=self.replan_word,
            longest_content=self.longest_content,
        )

    def levels(self) -> dict[str, int]:
        """The roles of these options, with their levels; an agent that only the recipe's grammar names is level 1."""
        language = self.language()
        return {role: LEVELS.get(role, 1) for role in (*map(language.role, language.agents), UNREADABLE)}

    def action(self, segment: Segment) -> str | None:
        """The action that an agent makes in the environment; None for agents that only write."""
        template = self.answer_action if segment.tag == ANSWER else self.tools.get(segment.tag)
        return None if template is None else template.format(**{CONTENT: segment.content})

    def vocabulary(self) -> Iterator[str]:
        """Every word that the worker and transcribed sequences add to prompts and turns; see `OffersVocabulary`."""
        for tag in (*self.language().agents, OBSERVATION):
            yield f"<{tag}> </{tag}>"
        yield f"{FAILED.format(observation='')} ;"
        yield SCORE.format(score=self.accepting_score)

    @property
    def accepting_score(self) -> int:
        """The score that a written double check gives to an answer."""
        return max(4, self.accept_score)


class ChainOfAgents(Worker):
    """See the module."""

    def __init__(self, options: ChainOptions) -> None:
        self._options = options
        self._language = options.language()

    async def run(self, episode: EpisodeView) -> None:
        """See `Worker.run`."""
        options = self._options
        step = first = await episode.reset()
        context = episode.context(UNREADABLE, system=options.system)
        observe(context, options, "prompt", fields(episode, step, first))
        stop = self._language.stops(every_agent=options.turns == "agent")
        walk, rest, plan, number = Walk(self._language), "", None, 0
        while not (step.done or step.truncated):
            turn = await episode.generate(context, segment=max(number - 1, 0), plan=plan, stop=stop)
            reading = await off_loop(len(turn.text), self._language.read, rest + turn.text)
            segments, error = self._judge(walk, reading)
            ended = context.ended(turn.tokens) and not turn.text.endswith(stop)
            error = error or ("stopped" if ended else None)
            await self._note(context, turn, reading, len(rest), error)
            if any(segment.tag == "plan" for segment in segments):
                plan, number = turn, number + 1
            if error and (options.on_violation == "end" or reading.open or ended or not segments):
                raise EpisodeOver(f"grammar: {error}")
            step, observations = await self._act(episode, segments, step, first)
            if segments and segments[-1].tag == ANSWER:
                return
            context.extend(observations)
            # After an observation the next agent begins anew: text after a tool agent is not its beginning.
            rest = "" if observations else reading.rest

    def _judge(self, walk: Walk, reading: Reading) -> tuple[list[Segment], str | None]:
        """The agents of a turn up to the answer, and the name of its first violation."""
        segments: list[Segment] = []
        first: str | None = None
        broken = {place: name for name, place in reversed(reading.errors)}
        for place, segment in enumerate(reading.segments):
            talked_on = bool(segments) and self._language.ends_turn(segments[-1].tag)
            misplaced = walk.step(segment)
            first = first or broken.get(place) or ("talked_on" if talked_on else misplaced)
            if not segments or segments[-1].tag != ANSWER:
                segments.append(segment)
        return segments, first or broken.get(len(reading.segments))

    async def _note(self, context: Context, turn: Turn, reading: Reading, before: int, error: str | None) -> None:
        """Note on the turn its agent, the tokens of each agent, and its violation."""
        masks: dict[str, list[list[int]]] = {role: [] for role in LEVELS if role != UNREADABLE}
        places = [segment.stop - before for segment in reading.segments]
        ends = await off_loop(len(turn.text), context.tokens_until, turn.tokens, places)
        if ends and not reading.errors:
            ends[-1] = len(turn.tokens)
        start = 0
        for segment, end in zip(reading.segments, ends, strict=True):
            if end > start:
                masks.setdefault(self._language.role(segment.tag), []).append([start, end])
            start = end
        turn.mark(masks=masks)
        if reading.segments:
            tag = reading.segments[-1].tag
            turn.set_speaker(self._language.role(tag), agent=tag)
        if error:
            turn.mark(valid=False, failure=f"grammar_{error}")
            turn.reward(-self._options.violation_penalty)

    async def _act(
        self, episode: EpisodeView, segments: Sequence[Segment], step: StepResult, first: StepResult
    ) -> tuple[StepResult, str]:
        """Let the agents act; the environment's last answer, and the text for the sequence of all answers."""
        observations: list[str] = []
        for segment in segments:
            action = self._options.action(segment)
            if action is not None and not (step.done or step.truncated):
                step = await episode.act(action)
                known = fields(episode, step, first)
                observations.append(fill(self._options.observation_prompt, known, "observation_prompt"))
        return step, "".join(observations)
