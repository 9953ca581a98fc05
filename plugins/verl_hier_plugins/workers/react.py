"""ReAct (arXiv 2210.03629), one agent that generates and acts; docs/methods/react.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from string import Formatter
from typing import Annotated, Literal

from verl_hier.environments.base import StepResult
from verl_hier.environments.tag_pairs import has_chinese
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import CountOrZero, NonNegative, Template
from verl_hier.host.specs import WorkerSpec
from verl_hier.rollout import EpisodeView, Turn, Worker
from verl_hier.rollout.prompts import fields, observe
from verl_hier.rollout.transcript import Transcript
from verl_hier_plugins.workers.delegation.transcribe import NOTHING, found_for

LONGEST_GUESS = 30
"""Characters at the end of a turn without an action that verl-agent's reader plays."""


@dataclass(frozen=True)
class ReactOptions:
    """Options of `react`.

    Templates may use {instruction}, {observation}, {admissible}, whatever the environment puts into the `info` of its
    reset and, in `window_prompt`, {history}, {action} (the last one) and {report}.
    """

    prompt: Annotated[str, Template("history", "action", "report")] = "task: {instruction} | {observation}"
    """First message of the context."""
    observation_prompt: Annotated[str, Template("history", "action", "report")] = "{observation}"
    """Every later message, when the whole history is the context."""
    system: str | None = None
    """System message for chat models."""
    history: CountOrZero = 0
    """0 keeps one growing context; k > 0 makes a new context each turn from the last k turns."""
    window_prompt: Annotated[str, Template("history", "action", "report")] = (
        "task: {instruction} | {history} | {observation}"
    )
    """The whole prompt of a turn when `history` > 0."""
    report_tag: str | None = None
    """When set, an agent with a window keeps a report: {report} is the text inside <tag>…</tag> of the last turn that
    had one. A turn without it has no right format."""
    action_tag: str | None = None
    """When set, the action is the text inside <tag>…</tag>, and a turn without it is invalid."""
    required_tags: tuple[str, ...] = ()
    """Further tags, such as `think`, that a turn has to have for its format to count as right; its action is taken in
    any case."""
    reading: Literal["last", "first"] = "last"
    """Which action of a turn is played: the `last` complete one, or, as verl-agent reads ALFWorld, the `first` one, in
    small letters and whatever the capitals of its tags. With `first`, a turn without an action plays its last 30
    characters, `required_tags` may stand anywhere, and a Chinese character makes the format wrong."""
    quoted: Literal["turn", "action"] = "turn"
    """What {history} quotes of an earlier turn: all of it, or its action alone."""
    format_penalty: NonNegative = 0.0
    """Taken from the reward, and so from the return, of a turn without its tags. Estimators have an option of this name
    that leaves the return as it is."""

    def __post_init__(self) -> None:
        if self.reading == "first" and not self.action_tag:
            raise ValueError("reading: first looks for the action in a tag; set action_tag too")
        read = "report" in {name for _, name, _, _ in Formatter().parse(self.window_prompt)}
        if self.report_tag is not None and not (self.history and read):
            raise ValueError(
                "report_tag: a report is read where the context begins anew; set history above 0, and use {report} in "
                "window_prompt"
            )
        if self.report_tag is not None and self.action_tag in (None, self.report_tag):
            raise ValueError("report_tag: a turn has a report and an action; set action_tag to another tag")

    def vocabulary(self) -> Iterator[str]:
        """Every word that the worker itself adds to prompts and turns."""
        yield " ".join(f"<{tag}> </{tag}>" for tag in (self.action_tag, self.report_tag) if tag)


def parse_action(text: str, tag: str | None) -> str | None:
    """The action inside a turn's text; None when the tag is wanted and missing.

    The last complete tag pair counts, so that a tag quoted while thinking does no harm.
    """
    if tag is None:
        return text.strip()
    # Linear in the text: a pattern would look for the end anew from each of a million beginnings.
    opening, closing = f"<{tag}>", f"</{tag}>"
    found, end = None, 0
    while (start := text.find(opening, end)) >= 0:
        stop = text.find(closing, start + len(opening))
        if stop < 0:
            break
        found, end = text[start + len(opening) : stop].strip(), stop + len(closing)
    return found


@dataclass(frozen=True)
class Said:
    """What a turn says.

    Attributes:
        action: what the environment is given; None when the action is missing and nothing stands for it.
        complete: whether the action is there.
        format: whether the format is right.
    """

    action: str | None
    complete: bool
    format: bool


def read_last(text: str, options: ReactOptions) -> Said:
    """The last action of a turn; see `parse_action`."""
    action = parse_action(text, options.action_tag)
    form = action is not None and all(parse_action(text, tag) is not None for tag in options.required_tags)
    return Said(action, action is not None, form)


def first_action(text: str, tag: str) -> str | None:
    """What stands between the first opening and the first closing of a tag, in small letters; empty where the closing
    comes first, None where one is missing."""
    low = text.lower()
    start, stop = low.find(f"<{tag}>"), low.find(f"</{tag}>")
    return None if start < 0 or stop < 0 else low[start + len(tag) + 2 : stop].strip()


def read_first(text: str, options: ReactOptions) -> Said:
    """The first action of a turn, as verl-agent's projection of ALFWorld reads it."""
    action = first_action(text, options.action_tag or "")
    if action is None:
        return Said(text.lower()[-LONGEST_GUESS:], False, False)
    tagged = all(f"<{tag}>" in text and f"</{tag}>" in text for tag in options.required_tags)
    return Said(action, True, tagged and not has_chinese(text))


class React(Worker):
    """See the module."""

    def __init__(self, options: ReactOptions) -> None:
        self._options = options

    async def run(self, episode: EpisodeView) -> None:
        """See `Worker.run`."""
        options = self._options
        step = first = await episode.reset()
        context = episode.context("agent", system=options.system)
        past: list[str] = []
        report, turns = "", dict[str, list[Turn]]()
        action, opening = "", True
        while not (step.done or step.truncated):
            if options.history and not opening:
                context = episode.context("agent", system=options.system)
            name = "prompt" if opening else "window_prompt" if options.history else "observation_prompt"
            more = {"history": " ; ".join(past[-options.history :]), "action": action, "report": report}
            observe(context, options, name, fields(episode, step, first, **more), turns)
            turn = await episode.generate(context)
            opening = False
            said = self._read(turn.text)
            if options.report_tag is not None:
                written = parse_action(turn.text, options.report_tag)
                said = said if written is not None else replace(said, format=False)
                report, turns["report"] = (report, turns.get("report", [])) if written is None else (written, [turn])
            action, turns["action"] = said.action or "", [turn]
            seen, step = step.text, await self._act(episode, turn, said, step)
            quoted = turn.text if options.quoted == "turn" else said.action or ""
            past.append(f"{seen} > {quoted[: episode.longest_quote]}")

    def _read(self, text: str) -> Said:
        return (read_first if self._options.reading == "first" else read_last)(text, self._options)

    async def _act(self, episode: EpisodeView, turn: Turn, said: Said, before: StepResult) -> StepResult:
        """Mark the turn and play its action in the state that `before` describes."""
        if not said.complete:
            turn.mark(valid=False)
        turn.mark(format=int(said.format))
        if self._options.format_penalty and not said.format:
            turn.reward(-self._options.format_penalty)
        return await episode.act(said.action or "")


def transcribe(options: ReactOptions, transcript: Transcript) -> list[str]:
    """The turns with which an agent that keeps a report would do what an episode did.

    Before each action the report has the subgoals that are done, and what each step so far took from what it saw.

    Raises:
        ValueError: `no_action` for an episode without one.
    """
    goals, texts, noted = transcript.subgoals, list[str](), dict[str, None]()
    last, now = None, 0
    for segment, call in [(turn.node.segment, call) for turn in transcript.turns for call in turn.calls]:
        taken = NOTHING if last is None else found_for(transcript, last, call.action)
        noted |= dict.fromkeys([] if taken == NOTHING else [taken])
        noted |= dict.fromkeys(goals[now:segment])
        report, action = " ; ".join(noted) or NOTHING, f"<{options.action_tag}>{call.action}</{options.action_tag}>"
        texts.append(f"<{options.report_tag}>{report}</{options.report_tag}>{action}")
        last, now = call, segment
    if not texts:
        raise ValueError("no_action")
    return texts


@hookimpl
def hier_workers() -> WorkerSpec:
    return WorkerSpec(
        "react",
        React,
        ReactOptions,
        summary="one agent acts turn by turn, on its whole history or on a window of it",
        source="ReAct, arXiv 2210.03629 §2; windowed prompts as verl-agent's memory",
        roles={"agent": 0},
        provides=("format",),
        transcribe=transcribe,
        # Elsewhere the expert plays the agent itself.
        transcribed=lambda options: options.report_tag is not None,
    )
