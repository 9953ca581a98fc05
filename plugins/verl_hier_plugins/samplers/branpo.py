"""BranPO: the last turns of an episode again, until they end differently (arXiv 2602.03719), docs/methods/branpo.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import EndReason, Episode, Rollout, Sampler
from verl_hier.rollout.branching import ForkPoint, at_least, fork_episodes, play_out, start_episodes


@dataclass(frozen=True)
class BranPOSamplerOptions:
    """Options of `branpo`. `actor_rollout_ref.rollout.n` is the number of whole episodes; each may get a second
    ending, so up to 2 n leaves are trained."""

    good: float = 0.8
    """Least return of a good episode."""

    def __post_init__(self) -> None:
        if not self.good > 0:
            raise ValueError(f"good must be positive, got {self.good}")


@dataclass(frozen=True)
class Ending:
    """What the rules look at.

    Attributes:
        score: return of the episode.
        turns: turns of the episode; of an attempt, turns behind the place where it left its episode.
        unusable: whether it did not end by itself, so that it is no evidence.
    """

    score: float
    turns: int
    unusable: bool = False


@dataclass(frozen=True)
class Round:
    """Attempts at a new ending.

    Attributes:
        last: turns that are sampled again.
        tries: attempts at most; 0 only splits the episode.
    """

    last: int
    tries: int


def accuracy(endings: Sequence[Ending], options: BranPOSamplerOptions) -> float:
    """Share of good episodes."""
    return sum(ending.score >= options.good for ending in endings) / len(endings)


def rounds(ending: Ending, endings: Sequence[Ending], options: BranPOSamplerOptions) -> list[Round]:
    """The rounds of attempts at another ending of an episode, to be made in order until one is accepted.

    Args:
        ending: of the episode.
        endings: of all episodes of the task.
        options: of the sampler.
    """
    share = accuracy(endings, options)
    lengths = [other.turns for other in endings if other.score >= options.good]
    good = ending.score >= options.good
    plan: list[tuple[int, int]] = []
    if ending.unusable:
        plan = []
    elif 0.5 < share < 1 and good and ending.turns - sum(lengths) / len(lengths) >= 0.1:
        plan = [(2, 5)]
    elif share == 1:
        plan = [(1, 1)]
    elif share < 0.5 and not good:
        plan = [(1, 2), (2, 2), (3, 2)]
    elif share <= 0.75 or not good:
        plan = [(1, 2), (2, 2)]
    return [Round(min(last, ending.turns), tries) for last, tries in plan or [(2, 0)]]


def preference(ending: Ending, attempt: Ending, last: int, share: float, options: BranPOSamplerOptions) -> int:
    """1 when an attempt is better than the episode's own ending, -1 when it is worse, 0 when it tells nothing.

    Args:
        ending: of the episode.
        attempt: another ending.
        last: turns that it replaces.
        share: of good episodes in the task.
        options: of the sampler.
    """
    good, now = ending.score >= options.good, attempt.score >= options.good
    if attempt.unusable:
        return 0
    if good != now:
        return 1 if now else -1
    if good and 0.5 < share < 1 and attempt.score == ending.score:
        return (attempt.turns < last) - (attempt.turns > last)
    return 0


@dataclass
class _Trial:
    """An episode, the attempts at another ending that are left, and what came of them."""

    episode: Episode
    ending: Ending
    left: list[Round]
    last: int = 0
    tries: int = 0
    accepted: Episode | None = None
    preference: int = 0

    def next_place(self) -> ForkPoint | None:
        """Where the next attempt leaves the episode; None when there is none."""
        while self.accepted is None and self.left:
            self.last = self.left[0].last
            if self.tries < self.left[0].tries:
                self.tries += 1
                return ForkPoint(self.episode, self.split, {"last": self.last, "attempt": self.tries - 1})
            self.left.pop(0)
            self.tries = 0
        return None

    @property
    def split(self) -> int:
        """Nodes before the ending."""
        return self.episode.boundaries[self.ending.turns - self.last]

    def mark(self) -> None:
        """Note on the turns which of them are an ending, and which ending is preferred."""
        for chosen, sign in ((self.episode, -self.preference), (self.accepted, self.preference)):
            for place, node in enumerate(chosen.nodes if chosen is not None else ()):
                ends = place >= self.split
                node.extra |= {"suffix": int(ends), "preference": sign if ends else 0}


class BranPOSampler(Sampler):
    """See the module."""

    def __init__(self, options: BranPOSamplerOptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        complete = await play_out(rollout, start_episodes(rollout, rollout.n))
        endings = [_ending(episode, 0) for episode in complete]
        trials = [
            _Trial(episode, ending, rounds(ending, endings, self._options))
            for episode, ending in zip(complete, endings, strict=True)
        ]
        # One attempt of each episode at a time, side by side, so that the order does not depend on what is faster.
        while waiting := [(trial, place) for trial in trials if (place := trial.next_place()) is not None]:
            forks = await fork_episodes(rollout, [place for _, place in waiting])
            await play_out(rollout, forks)
            for (trial, _), fork in zip(waiting, forks, strict=False):
                self._judge(rollout, trial, fork, endings)
            if len(forks) < len(waiting):
                break
        for trial in trials:
            trial.mark()

    def _judge(self, rollout: Rollout, trial: _Trial, fork: Episode, endings: Sequence[Ending]) -> None:
        """Keep an attempt that is better or worse than the episode's own ending, give up every other one."""
        if not fork.complete:
            return
        options = self._options
        attempt = _ending(fork, trial.ending.turns - trial.last)
        trial.preference = preference(trial.ending, attempt, trial.last, accuracy(endings, options), options)
        if trial.preference:
            trial.accepted = fork
            rollout.count("second_endings")
            rollout.expected += 1
        else:
            fork.discard(EndReason.NOT_CHOSEN)


def _ending(episode: Episode, before: int) -> Ending:
    """The ending of a complete episode behind its first `before` turns."""
    record = episode.record
    cut = record.status == "truncated" and (before > 0 or record.error != EndReason.MAX_TURNS)
    return Ending(episode.ret, len(episode.boundaries) - 1 - before, cut)


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "branpo",
        BranPOSampler,
        BranPOSamplerOptions,
        summary="whole episodes, whose last turns are played again until they end better or worse",
        source="arXiv 2602.03719; YubaoZhao/BranPO agent_branch_engine.py",
        episodes=at_least(2, "branpo sampler compares n episodes"),
        needs_fork=True,
        provides=("suffix", "preference"),
        sees_outcomes=True,
    )
