"""Some episodes begin at the start, the others at states that earlier ones reached; docs/methods/anchored.md."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

from verl_hier.errors import RecipeError
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import Episode, Rollout, Sampler
from verl_hier.rollout.branching import ForkPoint, fork_episodes, outcomes, play_out, start_episodes


@dataclass(frozen=True)
class AnchoredOptions:
    """Options of `anchored`. `actor_rollout_ref.rollout.n` is the number of all episodes."""

    starts: int | None = None
    """Episodes from the start of the task, fewer than n; omitted: half of n."""
    choose: Literal["uniform", "least_visited", "uncertain"] = "uniform"
    """From which states the other episodes continue: every state with equal probability, the states in which the fewest
    turns started, or those whose success rate is closest to one half."""
    rounds: int = 1
    """Number of rounds in which branches are made; each round uses the states and outcomes of the earlier ones."""
    max_depth: int | None = None
    """Most turns before a branch; omitted: no limit."""

    def __post_init__(self) -> None:
        for name in ("starts", "rounds", "max_depth"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")


def leaves_of(options: AnchoredOptions, n: int) -> int:
    """Leaves to train for one task.

    Raises:
        RecipeError: when no episode is left to go on from a state.
    """
    if n < 2 or (options.starts or 1) >= n:
        raise RecipeError(
            f"actor_rollout_ref.rollout.n: the anchored sampler starts {options.starts or 1} episode(s) and branches "
            f"the others from their states, so n must be at least {1 + (options.starts or 1)}; got {n}."
        )
    return n


@dataclass
class State:
    """One state of the environment, as the complete episodes of the task met it.

    Attributes:
        place: the shallowest turn boundary at which it was met after the first turn; None when it was met only there.
        depth: turns before `place`.
        turns: numbers of the turns that started in it, shared ones once.
        outcomes: outcome in [0, 1] of each episode that passed through it.
    """

    place: ForkPoint | None = None
    depth: int = 0
    turns: set[int] = field(default_factory=set)
    outcomes: list[float] = field(default_factory=list)

    @property
    def uncertainty(self) -> float:
        """p (1 - p) of the success rate p, where one success and one failure are added to the counts, so that a state
        with few outcomes is uncertain."""
        rate = (1 + sum(self.outcomes)) / (2 + len(self.outcomes))
        return rate * (1 - rate)


class Anchored(Sampler):
    """See the module."""

    def __init__(self, options: AnchoredOptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        options = self._options
        await play_out(rollout, start_episodes(rollout, options.starts or max(1, rollout.n // 2)))
        for number in range(options.rounds):
            complete = [episode for episode in rollout.episodes if episode.complete]
            left = options.rounds - number
            wanted = -((len(complete) - rollout.n) // left)  # an equal part of what is missing, rounded up
            if wanted < 1:
                return
            places = self._places(rollout, complete, wanted, number)
            if places:
                await play_out(rollout, await fork_episodes(rollout, places))
            else:
                rollout.count("fresh_starts", wanted)
                await play_out(rollout, start_episodes(rollout, wanted, round=number))

    def _places(self, rollout: Rollout, complete: list[Episode], wanted: int, number: int) -> list[ForkPoint]:
        """Where to branch; every state is used once before any is used again. Empty when no state is known."""
        deepest = self._options.max_depth
        known = [state for state in known_states(complete) if deepest is None or state.depth <= deepest]
        states = [(state, state.place) for state in known if state.place is not None]
        self._rank(states, rollout.rng("anchored", number))
        chosen = [states[branch % len(states)] for branch in range(wanted if states else 0)]
        return [
            place.with_decision(round=number, states=len(states), visits=len(state.turns)) for state, place in chosen
        ]

    def _rank(self, states: list[tuple[State, ForkPoint]], rng: random.Random) -> None:
        """Sort the states by preference; equal ones are in random order."""
        rng.shuffle(states)
        if self._options.choose == "least_visited":
            states.sort(key=lambda known: len(known[0].turns))
        elif self._options.choose == "uncertain":
            states.sort(key=lambda known: -known[0].uncertainty)


def known_states(complete: list[Episode]) -> list[State]:
    """The distinct states before the turns of complete episodes, in the order in which they were met."""
    states: dict[str, State] = {}
    for episode, outcome in zip(complete, outcomes(complete), strict=True):
        path = [episode.rollout.graph.nodes[number] for number in episode.path]
        met: dict[str, State] = {}
        for after in episode.boundaries:
            anchor = path[after].anchor if after < len(path) else None
            if anchor is None:
                continue
            state = met[anchor] = states.setdefault(anchor, State())
            state.turns.add(path[after].id)
            if after and (state.place is None or path[after].turn < state.depth):
                state.place, state.depth = ForkPoint(episode, after), path[after].turn
        for state in met.values():
            state.outcomes.append(outcome)
    return list(states.values())


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "anchored",
        Anchored,
        AnchoredOptions,
        summary="some episodes from the start, the others from states that those passed through",
        source="returning to states: Go-Explore, arXiv 2004.12919; anchors: GiGPO, arXiv 2505.10978 (confidence C)",
        episodes=leaves_of,
        roots=lambda options, n: options.starts or max(1, n // 2),
        needs_fork=True,
        sees_outcomes=lambda options: options.choose == "uncertain",
    )
