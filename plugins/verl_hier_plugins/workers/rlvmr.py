"""RLVMR (arXiv 2507.22844), one agent that says what kind of step it takes; docs/methods/rlvmr.md."""

from __future__ import annotations

from dataclasses import dataclass

from verl_hier.environments.base import StepResult
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import WorkerSpec
from verl_hier.rollout import EpisodeView, Turn, Worker
from verl_hier.rollout.transcript import Transcript
from verl_hier_plugins.workers.react import React, ReactOptions, parse_action

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

    def __post_init__(self) -> None:
        super().__post_init__()
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
        await _Tagged(self._options).run(episode)


class _Tagged(React):
    """One episode."""

    _options: RLVMROptions

    def __init__(self, options: RLVMROptions) -> None:
        super().__init__(options)
        self._plans: list[Turn] = []
        self._taken: set[str] = set()
        self._refused: str | None = None
        """Action of the turn before, where it was refused."""

    async def _act(self, episode: EpisodeView, turn: Turn) -> StepResult:
        options = self._options
        tag, action = kind_of(turn.text, options.tags), parse_action(turn.text, options.action_tag)
        step = await super()._act(episode, turn)
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
