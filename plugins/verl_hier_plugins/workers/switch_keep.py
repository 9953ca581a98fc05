"""HiPER (arXiv 2602.16165), one agent that writes three tags in each turn; docs/methods/hiper.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from verl_hier.environments.base import StepResult
from verl_hier.environments.tag_pairs import has_chinese, pairs
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count, CountOrZero, NonNegative, Template
from verl_hier.host.specs import WorkerSpec
from verl_hier.rollout import Context, EpisodeView, Turn, Worker
from verl_hier.rollout.off_loop import off_loop
from verl_hier.rollout.prompts import fields, observe
from verl_hier.rollout.transcript import Transcript
from verl_hier_plugins.workers.react import LONGEST_GUESS, first_action

TAGS = ("switch", "subgoal", "action")
SWITCH, KEEP = "SWITCH", "KEEP"
_SPAN = {tag: re.compile(rf"<{tag}>([^<]*)</{tag}>") for tag in TAGS}


@dataclass(frozen=True)
class SwitchKeepOptions:
    """Options of `switch_keep`.

    Templates may use {instruction}, {observation}, {admissible}, {subgoal} (the one that is followed, empty at first)
    and whatever the environment puts into the `info` of its reset; `window_prompt` also {history}.
    """

    prompt: Annotated[str, Template("history", "subgoal")] = "task: {instruction} | {observation}"
    """First message of the context."""
    observation_prompt: Annotated[str, Template("history", "subgoal")] = "{observation}"
    """Every later message, when the whole history is the context."""
    system: str | None = None
    """System message for chat models; it should explain the tags."""
    history: CountOrZero = 0
    """0 keeps one growing context; k > 0 makes a new context each turn from the last k turns."""
    window_prompt: Annotated[str, Template("history", "subgoal")] = (
        "task: {instruction} | goal: {subgoal} | {history} | {observation}"
    )
    """The whole prompt of a later turn when `history` > 0."""
    longest_subgoal: Count = 500
    """Characters of a subgoal that are kept for later prompts."""
    reading: Literal["last", "first"] = "last"
    """Which tags of a turn count: the `last` complete ones, which hold no `<`, or, as the released code reads them, the
    `first` ones. `first` plays the action in small letters and whatever the capitals of its tags, or else the last 30
    characters of the turn, and a Chinese character makes the format wrong."""
    quoted: Literal["turn", "action"] = "turn"
    """What {history} quotes of an earlier turn: all of it, or its action alone."""
    shown_subgoal: Literal["segment", "turn"] = "segment"
    """Which subgoal {subgoal} is: the one with which the segment began, or the last one that a turn wrote."""
    format_penalty: NonNegative = 0.0
    """Taken from the reward, and so from the return, of a turn that lacks one of the tags or whose switch says neither
    SWITCH nor KEEP. Estimators have an option of this name that leaves the return as it is."""

    def vocabulary(self) -> Iterator[str]:
        """Every word that the worker itself adds to prompts and turns."""
        yield " ".join(f"<{tag}> </{tag}>" for tag in TAGS) + f" {SWITCH} {KEEP}"


@dataclass(frozen=True)
class Reading:
    """The tags of a turn.

    Attributes:
        content: text inside each closed tag; of several tags of a kind inside the last one, or the first one.
        ends: [start, stop) of each tag in characters.
        action: what the environment is given.
        complete: whether all three tags are there and the first one says SWITCH or KEEP, so that the format is right.
    """

    content: dict[str, str]
    ends: dict[str, tuple[int, int]]
    action: str
    complete: bool

    @property
    def switches(self) -> bool:
        """Whether it leaves the subgoal: a `<switch>` with any text but KEEP; a missing or empty one counts as KEEP."""
        text = self.content.get("switch", "").strip()
        return bool(text) and text.upper() != KEEP


def read(text: str) -> Reading:
    """Find the last tags of a turn, in linear time for any text."""
    found = {tag: list(pattern.finditer(text)) for tag, pattern in _SPAN.items()}
    last = {tag: matches[-1] for tag, matches in found.items() if matches}
    content = {tag: match[1].strip() for tag, match in last.items()}
    ends = {tag: match.span() for tag, match in last.items()}
    return Reading(content, ends, content.get("action", ""), _complete(content, content.get("action")))


def read_first(text: str) -> Reading:
    """Find the first tags of a turn as the released code does, in linear time for any text."""
    ends = {tag: found[0] for tag in TAGS if (found := pairs(text, tag))}
    content = {tag: text[start + len(tag) + 2 : stop - len(tag) - 3].strip() for tag, (start, stop) in ends.items()}
    action = first_action(text, "action")
    form = _complete(content, action) and not has_chinese(text)
    return Reading(content, ends, text.lower()[-LONGEST_GUESS:] if action is None else action, form)


def _complete(content: dict[str, str], action: str | None) -> bool:
    return action is not None and "subgoal" in content and content.get("switch", "").upper() in (SWITCH, KEEP)


class SwitchKeep(Worker):
    """See the module."""

    def __init__(self, options: SwitchKeepOptions) -> None:
        self._options = options

    async def run(self, episode: EpisodeView) -> None:
        """See `Worker.run`."""
        options = self._options
        step = first = await episode.reset()
        context = episode.context("agent", system=options.system)
        past: list[str] = []
        known_subgoals: dict[str, int] = {}
        subgoal, segment = "", -1
        reader = read_first if options.reading == "first" else read
        while not (step.done or step.truncated):
            opening = segment < 0
            if options.history and not opening:
                context = episode.context("agent", system=options.system)
            name = "prompt" if opening else "window_prompt" if options.history else "observation_prompt"
            history = " ; ".join(past[-options.history :]) if options.history else ""
            filled = fields(episode, step, first, history=history, subgoal=subgoal)
            observe(context, options, name, filled)
            # Only the text of the turn shows whether it begins a segment.
            turn = await episode.generate(context, segment=max(segment, 0))
            reading = await off_loop(len(turn.text), reader, turn.text)
            switches = opening or reading.switches
            if switches:
                segment += 1
                turn.set_segment(segment)
            if switches or options.shown_subgoal == "turn":
                subgoal = reading.content.get("subgoal", subgoal)[: options.longest_subgoal]
            written = reading.content.get("subgoal", "")
            number = known_subgoals.setdefault(written, len(known_subgoals)) if written else -1
            said, form = int(reading.switches), int(reading.complete)
            masks = await off_loop(len(turn.text), masks_of, context, turn.text, turn.tokens, reading)
            turn.mark(masks=masks, switch=said, subgoal=number, format=form)
            if options.format_penalty and not form:
                turn.reward(-options.format_penalty)
            seen, step = step.text, await self._act(episode, turn, reading)
            quoted = turn.text if options.quoted == "turn" else reading.action
            past.append(f"{seen} > {quoted[: episode.longest_quote]}")

    async def _act(self, episode: EpisodeView, turn: Turn, reading: Reading) -> StepResult:
        if "action" not in reading.content:
            turn.mark(valid=False, failure="no_action_tag")
        return await episode.act(reading.action)


def masks_of(context: Context, text: str, tokens: list[int], reading: Reading) -> dict[str, list[list[int]]]:
    """Token spans of the tags, markers included; a missing tag has none, but a turn without an action is all action."""
    # Space before a tag may be part of its first token or of the one before.
    starts = {tag: len(text[: span[0]].rstrip()) for tag, span in reading.ends.items()}
    places = sorted({*starts.values(), *(span[1] for span in reading.ends.values())})
    counts = dict(zip(places, context.tokens_until(tokens, places), strict=True)) | {0: 0}
    found = {tag: [[counts[starts[tag]], counts[reading.ends[tag][1]]]] if tag in starts else [] for tag in TAGS}
    return found | {"action": found["action"] or [[0, len(tokens)]]}


def transcribe(options: SwitchKeepOptions, transcript: Transcript) -> list[str]:
    """The turns with which the policy would do here what a planner and an executor did.

    Raises:
        ValueError: `no_subgoals` for an episode without a plan above its actions.
    """
    goals = transcript.subgoals
    texts: list[str] = []
    before = -1
    for turn in transcript.turns:
        if not turn.calls:
            continue
        if turn.node.level == 0 or turn.node.segment >= len(goals):
            raise ValueError("no_subgoals")
        for call in turn.calls:
            word = SWITCH if turn.node.segment != before else KEEP
            before = turn.node.segment
            goal = goals[turn.node.segment]
            texts.append(f"<switch>{word}</switch><subgoal>{goal}</subgoal><action>{call.action}</action>")
    return texts


@hookimpl
def hier_workers() -> WorkerSpec:
    return WorkerSpec(
        "switch_keep",
        SwitchKeep,
        SwitchKeepOptions,
        summary="one agent that says at every turn whether it keeps its subgoal, which it is, and what to do",
        source="HiPER, arXiv 2602.16165; JonP07/HiPER-agent hier_mask.py (confidence A)",
        roles={"agent": 0},
        provides=("format", "switch", "subgoal", "tokens.switch", "tokens.subgoal", "tokens.action"),
        transcribe=transcribe,
    )
