"""RLVMR (arXiv 2507.22844), one agent that says what kind of step it takes; docs/methods/rlvmr.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verl_hier.environments.base import StepResult
from verl_hier.environments.tag_pairs import (
    contents_in_lines,
    has_chinese,
    outside_of_brackets,
    pairs,
    small,
)
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import WorkerSpec
from verl_hier.rollout import EpisodeView, Turn, Worker
from verl_hier.rollout.transcript import Transcript
from verl_hier_plugins.workers.react import React, ReactOptions, Said, parse_action

PLANNING, EXPLORING, REFLECTING, MONITORING = range(4)


@dataclass(frozen=True)
class RLVMROptions(ReactOptions):
    """Those of `react`, and the tags <name>…</name> by which a turn says what kind of step it is."""

    planning: str = "planning"
    """A turn that plans; rewarded when the episode is solved."""
    exploring: str = "explore"
    """A turn that tries something; rewarded for an action that no earlier turn took with success."""
    reflecting: str = "reflection"
    """A turn that corrects itself; rewarded right after a turn that was refused, for another action than that one's."""
    monitoring: str = "monitor"
    """A turn that follows its plan; never rewarded."""

    rules: Literal["accepted", "one_note"] = "accepted"
    """`accepted`: the lines above, for turns with an action and a tag.

    `one_note`: as the released code rules ALFWorld. The format is right for one action and one tag with a text, which
    comes first; only such turns have a kind, and one that monitors has none. A turn that tries is rewarded unless an
    earlier one of the right format wrote the same action; one that reflects unless the turn before had the right format
    and an admissible action, or wrote the same action. Of several actions none is played."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rules == "one_note" and not self.action_tag:
            raise ValueError("rules: one_note looks for the action in a tag; set action_tag too")
        if len(set(self.tags)) < len(self.tags) or not all(self.tags):
            raise ValueError(f"the four kinds of steps need four tags, got {', '.join(map(repr, self.tags))}")

    @property
    def tags(self) -> tuple[str, str, str, str]:
        """The tags in the order of their numbers in the column `tag`."""
        return self.planning, self.exploring, self.reflecting, self.monitoring


class RLVMR(Worker):
    """Marks `tag`, the kind of each turn (-1 without one), and `tag_reward`, 1 where its rule is kept, else 0."""

    def __init__(self, options: RLVMROptions) -> None:
        self._options = options

    async def run(self, episode: EpisodeView) -> None:
        """See `Worker.run`."""
        await (_Released if self._options.rules == "one_note" else _Tagged)(self._options).run(episode)


class _Tagged(React):
    """One episode."""

    _options: RLVMROptions

    def __init__(self, options: RLVMROptions) -> None:
        super().__init__(options)
        self._plans: list[Turn] = []
        self._taken: set[str] = set()
        self._refused: str | None = None
        """Action of the turn before, where it was refused."""

    async def _act(self, episode: EpisodeView, turn: Turn, said: Said, before: StepResult) -> StepResult:
        tag, action = kind_of(turn.text, self._options.tags), said.action if said.complete else None
        step = await super()._act(episode, turn, said, before)
        right = action is not None and tag >= 0
        new = right and action not in self._taken
        corrected = right and self._refused is not None and action != self._refused
        turn.mark(tag=tag, tag_reward=float((tag == EXPLORING and new) or (tag == REFLECTING and corrected)))
        if tag < 0:
            turn.mark(format=0)
        if right and tag == PLANNING:
            self._plans.append(turn)
        if step.valid and action is not None:
            self._taken.add(action)
        self._refused = None if step.valid and action is not None else action or ""
        if step.info.get("won"):
            for plan in self._plans:
                plan.mark(tag_reward=1.0)
        return step


@dataclass(frozen=True)
class _Past:
    """An earlier turn: the actions that it wrote, and whether its format was right and its action admissible."""

    actions: list[str]
    format: bool
    admissible: bool


class _Released(React):
    """One episode by the rules of the released code for ALFWorld."""

    _options: RLVMROptions

    def __init__(self, options: RLVMROptions) -> None:
        super().__init__(options)
        self._plans: list[Turn] = []
        self._past: list[_Past] = []

    def _read(self, text: str) -> Said:
        tag = self._options.action_tag or ""
        spans = pairs(small(text), small(tag))
        actions = [text[start + len(tag) + 2 : stop - len(tag) - 3] for start, stop in spans]
        action = actions[0].strip() if len(actions) == 1 else None
        return Said(action, action is not None, action is not None and self._formed(text))

    def _formed(self, text: str) -> bool:
        """Whether there is one note with a text, before the action, and no Chinese character."""
        options, low = self._options, small(text)
        notes = [span for tag in options.tags for span in pairs(low, small(tag))]
        if len(notes) != 1 or has_chinese(text):
            return False
        (start, stop) = notes[0]
        return start < low.find(f"<{small(options.action_tag or '')}>") and bool(
            outside_of_brackets(text[start:stop]).strip()
        )

    async def _act(self, episode: EpisodeView, turn: Turn, said: Said, before: StepResult) -> StepResult:
        actions = contents_in_lines(turn.text, self._options.action_tag or "")
        order = (PLANNING, EXPLORING, REFLECTING) if said.format else ()
        tag = next((kind for kind in order if f"<{self._options.tags[kind]}>" in turn.text), -1)
        rewarded = (tag == EXPLORING and self._new(actions)) or (tag == REFLECTING and self._corrects(actions))
        step = await super()._act(episode, turn, said, before)
        turn.mark(tag=tag, tag_reward=float(rewarded))
        known = said.action in before.admissible if before.admissible else step.valid
        self._past.append(_Past(actions, said.format, said.complete and known))
        if tag == PLANNING:
            self._plans.append(turn)
        if step.info.get("won"):
            for plan in self._plans:
                plan.mark(tag_reward=1.0)
        return step

    def _new(self, actions: list[str]) -> bool:
        return not any(past.format and past.actions == actions for past in self._past)

    def _corrects(self, actions: list[str]) -> bool:
        """Nothing comes before the first turn, so it may always reflect."""
        last = self._past[-1] if self._past else None
        return last is None or not ((last.format and last.admissible) or last.actions == actions)


def kind_of(text: str, tags: tuple[str, ...]) -> int:
    """The number of the tag that is opened first and closed; -1 without one."""
    found = {text.find(f"<{tag}>"): number for number, tag in enumerate(tags) if parse_action(text, tag) is not None}
    return found[min(found)] if found else -1


def transcribe(options: RLVMROptions, transcript: Transcript) -> list[str]:
    """The turns with which the policy would do here what another worker's roles did.

    The first turn plans, one after a refused action reflects, one that takes a new action explores, any other monitors.

    Raises:
        ValueError: `no_action_tag` where nothing would tell the action from its note.
    """
    if not options.action_tag:
        raise ValueError("no_action_tag")
    goals, texts = transcript.subgoals, list[str]()
    taken: set[str] = set()
    refused = False
    for turn in transcript.turns:
        goal = goals[turn.node.segment] if turn.node.segment < len(goals) else transcript.instruction
        for call in turn.calls:
            kind = REFLECTING if refused else MONITORING if call.action in taken else EXPLORING
            note = goal
            if not texts:
                kind, note = PLANNING, " ; ".join(goals) or transcript.instruction
            tag, refused = options.tags[kind], not call.step.valid
            texts.append(f"<{tag}>{note}</{tag}><{options.action_tag}>{call.action}</{options.action_tag}>")
            if call.step.valid:
                taken.add(call.action)
    return texts


@hookimpl
def hier_workers() -> WorkerSpec:
    return WorkerSpec(
        "rlvmr",
        RLVMR,
        RLVMROptions,
        summary="one agent that says what kind of step it takes, and is rewarded by rules",
        source="arXiv 2507.22844; RLVMR rlvmr/core_rlvmr.py and its environments' rules",
        roles={"agent": 0},
        provides=("format", "tag", "tag_reward"),
        transcribe=transcribe,
    )
