"""A finite Markov decision problem with a horizon, and what dynamic programming knows of it.

Shapes: S states, A actions, H turns at most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_PROBABILITY = 1e-9


@dataclass(frozen=True)
class World:
    """A world of the lab.

    Attributes:
        name: as the command line says it.
        difficulty: the one difficulty that it isolates, in a sentence.
        start: (S,) probability that an episode starts in a state.
        moves: (S, A, S) probability of the next state; rows of actions that are not legal are never read.
        reward: (S, A) reward of an action, which does not depend on where it leads.
        legal: (S, A) bool; states without a legal action end the episode.
        horizon: turns after which an episode is truncated.
        level: (S,) level of the agent that acts: 0 is a planner where there is one.
        role: (S,) number of the role that acts, in `roles`.
        roles: their names.
        goal: (S,) bool, states in which the task is solved.
        agent: (S,) number of the agent that acts, in `agents`: one of those who hold the role.
        agents: their names.
        context: (S,) number of the token sequence of an episode that the turn is written into.
        spawns: (S, A) bool, actions that begin a conversation of another agent.
    """

    name: str
    difficulty: str
    start: Array
    moves: Array
    reward: Array
    legal: Array
    horizon: int
    level: Array
    role: Array
    roles: tuple[str, ...]
    goal: Array
    agent: Array
    agents: tuple[str, ...]
    context: Array
    spawns: Array

    def __post_init__(self) -> None:
        sums = self.moves[self.legal].sum(axis=1)
        if abs(self.start.sum() - 1) > _PROBABILITY or (abs(sums - 1) > _PROBABILITY).any():
            raise ValueError(f"world {self.name!r}: probabilities do not sum to 1")

    @cached_property
    def over(self) -> Array:
        """(S,) bool, states that end an episode."""
        found: Array = np.logical_not(self.legal.any(axis=1))
        return found

    @cached_property
    def plans(self) -> Array:
        """(S,) bool, states in which a planner acts; none where there is one level only."""
        found: Array = (self.level == 0) & (self.level.max() > 0)
        return found

    @cached_property
    def begins(self) -> Array:
        """(S,) bool, states that begin a segment: a plan, or the first agent's turn in a joint step of several."""
        acting = ~self.over
        team = len(self.roles) > 1 and len(np.unique(self.level[acting])) == 1
        found: Array = acting & (self.role == 0) if team else self.plans
        return found

    def policy(self, logits: Array) -> Array:
        """(S, A) probabilities of a table of logits; 0 for actions that are not legal."""
        shifted = np.where(self.legal, logits, -np.inf)
        top = np.where(self.over[:, None], 0.0, shifted.max(axis=1, keepdims=True))
        weights = np.where(self.legal, np.exp(shifted - top), 0.0)
        return np.divide(weights, weights.sum(axis=1, keepdims=True), out=weights, where=~self.over[:, None])

    def values(self, policy: Array) -> tuple[Array, Array]:
        """(H + 1, S) values with the number of turns that were taken, and (H, S, A) values of actions."""
        values = np.zeros((self.horizon + 1, len(self.start)))
        actions = np.zeros((self.horizon, *self.legal.shape))
        for turn in reversed(range(self.horizon)):
            actions[turn] = np.where(self.legal, self.reward + self.moves @ values[turn + 1], 0.0)
            values[turn] = (policy * actions[turn]).sum(axis=1)
        return values, actions

    def occupancy(self, policy: Array) -> Array:
        """(H, S) probability that turn t is taken in a state."""
        found = np.zeros((self.horizon, len(self.start)))
        here = self.start
        for turn in range(self.horizon):
            found[turn] = np.where(self.over, 0.0, here)
            here = np.einsum("s,sa,sax->x", found[turn], policy, np.where(self.legal[:, :, None], self.moves, 0.0))
        return found

    def expected_return(self, policy: Array) -> float:
        """The mean return of a policy."""
        return float(self.start @ self.values(policy)[0][0])

    def solved(self, policy: Array) -> float:
        """The probability that an episode ends in a state in which the task is solved."""
        chance = np.tile(self.goal.astype(float), (self.horizon + 1, 1))
        for turn in reversed(range(self.horizon)):
            later = (policy * np.where(self.legal, self.moves @ chance[turn + 1], 0.0)).sum(axis=1)
            chance[turn] = np.where(self.over, self.goal, later)
        return float(self.start @ chance[0])

    @cached_property
    def counting(self) -> World:
        """The same world, where a spawn is all that is rewarded."""
        return replace(self, reward=self.spawns.astype(np.float64))

    def gradient(self, logits: Array) -> Array:
        """(S, A) gradient of the mean return by the logits, from the policy gradient theorem."""
        policy = self.policy(logits)
        values, actions = self.values(policy)
        advantages = actions - values[:-1, :, None]
        exact: Array = policy * np.einsum("ts,tsa->sa", self.occupancy(policy), advantages)
        return exact

    @cached_property
    def best(self) -> float:
        """The mean return of the best policy, which may choose by the number of turns that were taken."""
        values = np.zeros(len(self.start))
        for _ in range(self.horizon):
            actions = np.where(self.legal, self.reward + self.moves @ values, -np.inf)
            values = np.where(self.over, 0.0, actions.max(axis=1))
        return float(self.start @ values)

    @cached_property
    def uniform(self) -> float:
        """The mean return of a policy that chooses at random."""
        return self.expected_return(self.policy(np.zeros(self.legal.shape)))

    def regret(self, policy: Array) -> float:
        """How far a policy is from the best one: 0 for the best, 1 for one that chooses at random."""
        return (self.best - self.expected_return(policy)) / (self.best - self.uniform)
