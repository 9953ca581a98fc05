"""One assistant message in which agents take turns as tags; the world answers in between, in `<observation>`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from verl_hier.environments.base import StepResult
from verl_hier.rollout import Context, EpisodeOver, EpisodeView, Turn, Worker
from verl_hier.rollout.prompts import fields, fill
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

    prompt: str = "task: {instruction} | {observation}"
    """First message of the context."""
    system: str | None = None
    """System message for chat models; it should explain the tags."""
    observation_prompt: str = "<observation>{observation}</observation>"
    """What is put into the sequence after a tool agent."""
    tools: Mapping[str, str] = field(default_factory=lambda: {"action": "{content}"})
    """Tags of the tool agents, and the world's action that each makes."""
    answer_action: str | None = None
    """The world's action that the answer makes, for worlds that want one; omitted: the answer just ends the episode."""
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
    violation_penalty: float = 0.0
    """Subtracted from the reward of a turn that violates the grammar."""
    longest_content: int = 20_000
    """Characters of one agent's part; a longer one is a violation and never reaches the world."""

    def __post_init__(self) -> None:
        if not self.tools and self.answer_action is None:
            raise ValueError("tools must name a tag, or answer_action must be set: nothing would ever reach the world")
        templates = {f"tools.{tag}": template for tag, template in self.tools.items()}
        if self.answer_action is not None:
            templates["answer_action"] = self.answer_action
        for name, template in templates.items():
            try:
                template.format(**{CONTENT: ""})
            except (KeyError, IndexError, ValueError) as error:
                raise ValueError(f"{name} may use {{content}} only, got {template!r} ({error})") from error
        if self.violation_penalty < 0 or self.longest_content < 1:
            raise ValueError("violation_penalty must not be negative and longest_content at least 1")
        self.language()

    def language(self) -> Language:
        """The grammar that these options mean."""
        return Language(
            self.tools,
            self.grammar,
            think_first=self.think == "required",
            accept_score=self.accept_score,
            replan_word=self.replan_word,
            longest_content=self.longest_content,
        )

    def action(self, segment: Segment) -> str | None:
        """What an agent does to the world; None for those that only write."""
        template = self.answer_action if segment.tag == ANSWER else self.tools.get(segment.tag)
        return None if template is None else template.format(**{CONTENT: segment.content})

    def vocabulary(self) -> Iterator[str]:
        """Every word that the worker and the sequences that are made for it bring: see `OffersVocabulary`."""
        for tag in (*self.language().agents, OBSERVATION):
            yield f"<{tag}> </{tag}>"
        yield f"{FAILED.format(observation='')} ;"
        yield SCORE.format(score=self.accepting_score)

    @property
    def accepting_score(self) -> int:
        """The score that a written double check gives to an answer."""
        return max(4, self.accept_score)


class ChainOfAgents(Worker):
    """See `plugins/chain_of_agents`."""

    def __init__(self, options: ChainOptions) -> None:
        self._options = options
        self._language = options.language()

    async def run(self, episode: EpisodeView) -> None:
        """See `Worker.run`."""
        options = self._options
        step = first = await episode.reset()
        context = episode.context(UNREADABLE, level=LEVELS[UNREADABLE])
        if options.system:
            context.observe(options.system, role="system")
        context.observe(fill(options.prompt, fields(episode, step, first), "prompt"))
        stop = self._language.stops(every_agent=options.turns == "agent")
        walk, rest, plan, number = Walk(self._language), "", None, 0
        while not (step.done or step.truncated):
            turn = await episode.generate(context, segment=max(number - 1, 0), plan=plan, stop=stop)
            reading = self._language.read(rest + turn.text)
            said, error = self._judge(walk, reading)
            ended = context.ended(turn.tokens) and not turn.text.endswith(stop)
            error = error or ("stopped" if ended else None)
            self._note(context, turn, reading, len(rest), error)
            if any(segment.tag == "plan" for segment in said):
                plan, number = turn, number + 1
            if error and (options.on_violation == "end" or reading.open or ended or not said):
                raise EpisodeOver(f"grammar: {error}")
            step, heard = await self._act(episode, said, step, first)
            if said and said[-1].tag == ANSWER:
                return
            context.extend(heard)
            # What a tool agent left over stands before the observation now, so the next agent does not begin with it.
            rest = "" if heard else reading.rest

    def _judge(self, walk: Walk, reading: Reading) -> tuple[list[Segment], str | None]:
        """The agents of a turn up to the answer, and the name of its first violation."""
        said: list[Segment] = []
        first: str | None = None
        broken = {place: name for name, place in reversed(reading.errors)}
        for place, segment in enumerate(reading.segments):
            talked_on = bool(said) and self._language.ends_turn(said[-1].tag)
            misplaced = walk.step(segment)
            first = first or broken.get(place) or ("talked_on" if talked_on else misplaced)
            if not said or said[-1].tag != ANSWER:
                said.append(segment)
        return said, first or broken.get(len(reading.segments))

    def _note(self, context: Context, turn: Turn, reading: Reading, before: int, error: str | None) -> None:
        """Say on the turn who spoke, which tokens are whose, and what was wrong."""
        masks: dict[str, list[list[int]]] = {role: [] for role in LEVELS if role != UNREADABLE}
        ends = context.tokens_until(turn.tokens, [segment.stop - before for segment in reading.segments])
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
            role = self._language.role(tag)
            turn.set_speaker(role, LEVELS.get(role, 1), agent=tag)
        if error:
            turn.mark(valid=False, failure=f"grammar_{error}")
            turn.reward(-self._options.violation_penalty)

    async def _act(
        self, episode: EpisodeView, said: Sequence[Segment], step: StepResult, first: StepResult
    ) -> tuple[StepResult, str]:
        """Let the agents act on the world; its last answer, and what the sequence is told of all answers."""
        heard: list[str] = []
        for segment in said:
            action = self._options.action(segment)
            if action is not None and not (step.done or step.truncated):
                step = await episode.act(action)
                known = fields(episode, step, first)
                heard.append(fill(self._options.observation_prompt, known, "observation_prompt"))
        return step, "".join(heard)
