"""Independent episodes, each then made again without the failures that it corrected; docs/methods/rollback.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import Episode, Rollout, Sampler
from verl_hier.rollout.branching import ForkPoint, advance_turn, at_least, fork_episodes, play_out, start_episodes
from verl_hier.rollout.transcript import EnvironmentCall, Transcript, TranscriptTurn


# Which turns of an episode were failed attempts that the next turn put right, and the other turns.
@dataclass(frozen=True)
class Again:
    """A recorded turn that the clean episode makes again.

    Attributes:
        agent: whose turn it was.
        tokens: the whole turn.
        calls: its actions and the environment's answers.
    """

    agent: str
    tokens: list[int]
    calls: tuple[EnvironmentCall, ...]

    def was_answered_by(self, calls: Sequence[EnvironmentCall]) -> bool:
        """Whether the environment has given the same answers now."""
        return [_outcome(call) for call in self.calls] == [_outcome(call) for call in calls]


@dataclass(frozen=True)
class Clean:
    """An episode without its corrected failures.

    Attributes:
        after: nodes before the first of them.
        left_out: numbers of the turns that were failures.
        turns: the turns from there on, corrected ones first.
    """

    after: int
    left_out: list[int]
    turns: list[Again]


def clean(episode: Episode, attempts: int | None) -> Clean | None:
    """An episode without its corrected failures; None when it has none."""
    turns = Transcript.of(episode).turns
    left_out = corrected(turns, attempts)
    if not left_out:
        return None
    first = left_out[0]
    kept = [turns[number] for number in range(first, len(turns)) if number not in left_out]
    graph = episode.rollout.graph
    again = [
        Again(turn.node.agent, [token for piece in graph.pieces(turn.node) for token in piece.action], turn.calls)
        for turn in kept
    ]
    return Clean(episode.boundaries[first], left_out, again)


def corrected(turns: Sequence[TranscriptTurn], attempts: int | None) -> list[int]:
    """Numbers of the failed turns that the same agent's next turn, directly after them, put right.

    Args:
        turns: of an episode.
        attempts: failures in a row, at most; a longer row is left as it is. None: any number.
    """
    found: list[int] = []
    row: list[int] = []
    for number, turn in enumerate(turns):
        if row and turn.node.agent != turns[row[-1]].node.agent:
            row = []
        if not turn.node.valid:
            row.append(number)
            continue
        if attempts is None or len(row) <= attempts:
            found += row
        row = []
    return found


def _outcome(call: EnvironmentCall) -> tuple[object, ...]:
    step = call.step
    return call.action, step.text, step.reward, step.done, step.truncated, step.valid


@dataclass(frozen=True)
class RollbackOptions:
    """Options of `rollback`. `actor_rollout_ref.rollout.n` is the number of episodes."""

    attempts: Count | None = None
    """Failed turns in a row that are left out, at most; a longer row stays as it was. Omitted: any number."""
    then: Literal["recorded", "sampled"] = "recorded"
    """What follows the first correction: the recorded turns for as long as the environment answers as recorded, or new
    ones."""


@dataclass
class _Rollback:
    """An episode, the clean one beside it, and the recorded turns that the latter still has to make."""

    original: Episode
    clean: Episode
    left_out: int
    turns: list[Again]


class Rollback(Sampler):
    """See the module."""

    def __init__(self, options: RollbackOptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        played = await play_out(rollout, start_episodes(rollout, rollout.n))
        rollbacks = await self._begin(rollout, played)
        going = rollbacks
        while going:
            going = await self._repeat(rollout, going)
        await play_out(rollout, [rollback.clean for rollback in rollbacks])
        for rollback in rollbacks:
            if rollback.clean.complete:
                rollback.original.discard("rolled_back")
                rollout.count("rolled_back")
                rollout.count("failures_left_out", rollback.left_out)
            else:
                rollout.count("rollbacks_lost")

    async def _begin(self, rollout: Rollout, played: list[Episode]) -> list[_Rollback]:
        """A fork before the first corrected failure of each episode that has one."""
        found: list[tuple[Episode, Clean]] = []
        for episode in played:
            without = clean(episode, self._options.attempts)
            if without is not None:
                found.append((episode, without))
        places = [ForkPoint(e, c.after, {"why": "rollback", "left_out": c.left_out}) for e, c in found]
        made = await fork_episodes(rollout, places)
        turns = None if self._options.then == "recorded" else 1
        return [
            _Rollback(episode, fork, len(without.left_out), without.turns[:turns])
            for (episode, without), fork in zip(found, made, strict=False)
        ]

    async def _repeat(self, rollout: Rollout, going: list[_Rollback]) -> list[_Rollback]:
        """One recorded turn in each clean episode; returns those that have more of them to make."""
        await rollout.gather(rollback.clean.ready() for rollback in going)
        ready = [rollback for rollback in going if self._force(rollout, rollback)]
        await advance_turn(rollout, [rollback.clean for rollback in ready])
        for rollback in ready:
            recorded = rollback.turns.pop(0)
            if rollback.clean.over:
                rollback.turns.clear()
            elif not recorded.was_answered_by(Transcript.of(rollback.clean).turns[-1].calls):
                self._differs(rollout, rollback)
        return [rollback for rollback in ready if rollback.turns]

    def _force(self, rollout: Rollout, rollback: _Rollback) -> bool:
        """Force the next recorded turn in the clean episode; False when another agent has the turn there."""
        turn_request = rollback.clean.turn_request
        if rollback.clean.over or turn_request is None:
            return False
        if turn_request.context.agent != rollback.turns[0].agent:
            self._differs(rollout, rollback)
            return False
        rollback.clean.force(rollback.turns[0].tokens)
        return True

    def _differs(self, rollout: Rollout, rollback: _Rollback) -> None:
        """From here on the clean episode is sampled."""
        rollback.turns.clear()
        rollout.count("rollbacks_resampled")


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "rollback",
        Rollback,
        RollbackOptions,
        summary="episodes without the failed attempts that they corrected themselves",
        source="CLEANER, arXiv 2601.15141 (mechanism: B; whole turns only)",
        episodes=at_least(1, "rollback sampler plays n episodes"),
        needs_fork=True,
        needs_scores=True,
        needs_tokens=True,
    )
