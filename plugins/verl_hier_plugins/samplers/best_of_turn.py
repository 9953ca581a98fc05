"""One state line, the best of n candidates at every turn (arXiv 2510.11062), docs/methods/at_grpo.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verl_hier.environments.base import StepResult
from verl_hier.errors import RecipeError
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import EndReason, Episode, Rollout, Sampler
from verl_hier.rollout.branching import (
    ForkPoint,
    advance_part,
    advance_turn,
    at_least,
    fork_episodes,
    start_episodes,
    within_segment,
)
from verl_hier.rollout.transcript import Transcript

REWARD = "candidate_reward"


@dataclass(frozen=True)
class BestOfTurnOptions:
    """Options of `best_of_turn`. `actor_rollout_ref.rollout.n` is the number of candidates at every turn."""

    candidates: Literal["turn", "slot"] = "turn"
    """What is sampled n times before the best one goes on. `turn`: the next turn, so that every agent is given the best
    one of the agent before it (the paper). `slot`: the turns of all agents in a step, each slot by itself (the released
    code)."""
    slot_by: Literal["first", "last"] = "first"
    """The agent of a step whose reward decides which slot goes on; in the released code the first one."""
    alpha: NonNegative = 1.0
    """Weight of the environment's reward (team) beside the worker's reward of the turn (local)."""
    progress: str | None = None
    """Number in the environment's `info` whose rise in the turn counts as its reward too, for environments that reward
    only the end."""
    greedy_choice: bool = True
    """Go on from the candidate with the highest reward, the first on ties; false: always from the first one."""


class BestOfTurn(Sampler):
    """See the module."""

    def __init__(self, options: BestOfTurnOptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        line = next(iter(start_episodes(rollout, 1)), None)
        turns = 0
        while line is not None and not line.over:
            shared = len(line.path)
            places = [ForkPoint(line, decision={"candidate": number}) for number in range(1, rollout.n)]
            candidates = [line, *await fork_episodes(rollout, places, beside=1)]
            await self._play(rollout, candidates)
            alive = [episode for episode in candidates if episode.complete or not episode.over]
            moved = [episode for episode in alive if len(episode.path) > shared]
            if moved:
                turns += 1
                rollout.expected = 1 + turns * (rollout.n - 1)
            line = self._choose(rollout, moved, shared)

    async def _play(self, rollout: Rollout, candidates: list[Episode]) -> None:
        """The turns that are compared."""
        if self._options.candidates == "turn":
            await advance_turn(rollout, candidates)
        else:
            await advance_part(rollout, candidates, within_segment)

    def _choose(self, rollout: Rollout, candidates: list[Episode], shared: int) -> Episode | None:
        """The candidate to go on from, None without any; the others end here and are trained."""
        rewards = [self._reward(rollout, candidate, shared) for candidate in candidates]
        best = rewards.index(max(rewards)) if rewards and self._options.greedy_choice else 0
        for candidate in [*candidates[:best], *candidates[best + 1 :]]:
            if not candidate.over:
                candidate.stop(EndReason.NOT_CHOSEN)
        return candidates[best] if candidates else None

    def _reward(self, rollout: Rollout, candidate: Episode, shared: int) -> float:
        """alpha * team + local of the turns after the first `shared` nodes, noted on each; returns the deciding one.

        The agents of a slot share what its actions earn, and keep what the worker gave each of them.
        """
        nodes, transcript = candidate.nodes[shared:], Transcript.of(candidate)
        first = nodes[0].turn
        played = [call.step for turn in transcript.turns[first:] for call in turn.calls]
        past = [call.step for turn in transcript.turns[:first] for call in turn.calls]
        before = past if transcript.opening is None else [transcript.opening, *past]
        team = sum(step.reward for step in played)
        shared_reward = self._options.alpha * (team + self._rise(before, played))
        earned = dict.fromkeys(range(first, nodes[-1].turn + 1), 0.0)
        for node in nodes:
            earned[node.turn] += node.reward
        for moved in rollout.earlier_rewards:
            # The environment's rewards as they were given, not where they were credited.
            for node, amount in ((moved.credited, -moved.amount), (moved.given, moved.amount)):
                if node in nodes:
                    earned[node.turn] += amount
        for node in nodes:
            own = earned[node.turn] - sum(call.step.reward for call in transcript.turns[node.turn].calls)
            node.extra[REWARD] = shared_reward + own
        return float(nodes[0 if self._options.slot_by == "first" else -1].extra[REWARD])

    def _rise(self, before: list[StepResult], calls: list[StepResult]) -> float:
        """How much the `progress` number rose by the calls of a turn; 0 without calls."""
        name = self._options.progress
        if name is None or not calls:
            return 0.0
        known = [step.info[name] for step in [*before, *calls] if name in step.info]
        if not known or not isinstance(known[-1], int | float):
            there = ", ".join(sorted(k for k, v in calls[-1].info.items() if isinstance(v, int | float))) or "none"
            raise RecipeError(
                f"hier.sampler.progress: the environment's `info` has no number {name!r}; it has {there}."
            )
        start = [step.info[name] for step in before if name in step.info]
        return float(known[-1]) - float(start[-1] if start else 0.0)


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "best_of_turn",
        BestOfTurn,
        BestOfTurnOptions,
        summary="n candidates at every turn of every agent; the best one's state goes on, all are trained",
        source="AT-GRPO, arXiv 2510.11062; PettingLLMs (confidence A)",
        episodes=at_least(2, "best_of_turn sampler compares n candidates at every turn"),
        needs_fork=True,
        provides=(REWARD,),
        sees_outcomes=lambda options: options.greedy_choice,
    )
