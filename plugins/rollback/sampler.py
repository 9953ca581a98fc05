"""Independent episodes, each then made again without the failures that it corrected; docs/samplers/rollback.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verl_hier_plugins.rollback.failures import Again, Clean, clean

from verl_hier.errors import RecipeError
from verl_hier.rollout import Sampler
from verl_hier.rollout.branching import Place, forks, play, starts, whole_turn
from verl_hier.rollout.episode import Episode
from verl_hier.rollout.rollout import Rollout
from verl_hier.rollout.transcript import Transcript


@dataclass(frozen=True)
class RollbackOptions:
    """Options of `rollback`. `actor_rollout_ref.rollout.n` is the number of episodes."""

    attempts: int | None = None
    """Failed turns in a row that are left out, at most; a longer row stays as it was. Omitted: any number."""
    then: Literal["recorded", "sampled"] = "recorded"
    """What follows the first correction: the recorded turns for as long as the world answers them as recorded, or new
    ones."""

    def __post_init__(self) -> None:
        if self.attempts is not None and self.attempts < 1:
            raise ValueError(f"attempts must be at least 1, got {self.attempts}; omit it for any number")


def leaves_of(options: RollbackOptions, n: int) -> int:
    """Leaves to train for one task.

    Raises:
        RecipeError: for fewer than one.
    """
    if n < 1:
        raise RecipeError(f"actor_rollout_ref.rollout.n: the rollback sampler makes n episodes, n >= 1; got {n}.")
    return n


@dataclass
class _Rollback:
    """An episode, the clean one beside it, and the recorded turns that the latter still has to make."""

    original: Episode
    clean: Episode
    left_out: int
    turns: list[Again]


class Rollback(Sampler):
    """See `plugins/rollback`."""

    def __init__(self, options: RollbackOptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        played = await play(rollout, starts(rollout, rollout.n))
        rollbacks = await self._begin(rollout, played)
        going = rollbacks
        while going:
            going = await self._repeat(rollout, going)
        await play(rollout, [rollback.clean for rollback in rollbacks])
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
        places = [Place(e, c.after, {"why": "rollback", "left_out": c.left_out}) for e, c in found]
        made = await forks(rollout, places)
        turns = None if self._options.then == "recorded" else 1
        return [
            _Rollback(episode, fork, len(without.left_out), without.turns[:turns])
            for (episode, without), fork in zip(found, made, strict=False)
        ]

    async def _repeat(self, rollout: Rollout, going: list[_Rollback]) -> list[_Rollback]:
        """One recorded turn in each clean episode; returns those that have more of them to make."""
        await rollout.gather(rollback.clean.ready() for rollback in going)
        ready = [rollback for rollback in going if self._force(rollout, rollback)]
        await whole_turn(rollout, [rollback.clean for rollback in ready])
        for rollback in ready:
            recorded = rollback.turns.pop(0)
            if rollback.clean.over:
                rollback.turns.clear()
            elif not recorded.was_answered_by(Transcript.of(rollback.clean).turns[-1].calls):
                self._differs(rollout, rollback)
        return [rollback for rollback in ready if rollback.turns]

    def _force(self, rollout: Rollout, rollback: _Rollback) -> bool:
        """Give the next recorded turn to the clean episode; False when there it is not its agent's turn."""
        wish = rollback.clean.wish
        if rollback.clean.over or wish is None:
            return False
        if wish.context.agent != rollback.turns[0].agent:
            self._differs(rollout, rollback)
            return False
        rollback.clean.force(rollback.turns[0].tokens)
        return True

    def _differs(self, rollout: Rollout, rollback: _Rollback) -> None:
        """From here on the clean episode has to find its own way."""
        rollback.turns.clear()
        rollout.count("rollbacks_resampled")
