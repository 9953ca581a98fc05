"""An implicit process reward (arXiv 2509.19199): how much likelier a second model finds a turn than the policy did.

The second model learns from pairs of episodes of a task, one solved and one not. Its loss depends on the log-probs of a
turn through one number, the turn's reward, so that its gradient is a weight on each token of the turn: what is computed
here. The engine then needs neither the pairs nor whole episodes in a micro-batch.

Shapes: T turns, E episodes, N response tokens of all rows one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_hier.credit import Bools, Floats, Ints, episode_sum, group_ids
from verl_hier.graph import TurnTable
from verl_hier.training.ledger import Ledger
from verl_hier.training.options import ProcessRewardOptions

LOG_PROBS = "process_log_probs"
"""The field of a batch with the second model's log-probs, one for each response token."""
WEIGHTS = "process_weights"
"""The field of a batch with the derivative of the second model's loss by each of its log-probs."""
COLUMN = "step_reward"
"""The turn-table column."""


@dataclass(frozen=True)
class PairLoss:
    """The loss of the second model on one step, and how it is made smaller.

    Attributes:
        loss: mean over all pairs of -log sigmoid(reward of the solved - reward of the other one); 0 without a pair.
        gradient: (T,) its derivative by the reward of each turn.
        pairs: how many pairs there are.
        right: share of the pairs whose solved episode has the higher reward; nan without a pair.
    """

    loss: float
    gradient: Floats
    pairs: int
    right: float


def pair_loss(table: TurnTable, rewards: Floats, solved: Bools, where: Bools | None = None) -> PairLoss:
    """Compare every solved episode of a task with every other one, by the mean reward of their turns.

    Args:
        table: the turn table.
        rewards: (T,) reward of each turn.
        solved: (E,) whether an episode was solved.
        where: (T,) turns that count; all when None. An episode without one is in no pair.
    """
    counted = np.ones(len(table)) if where is None else np.asarray(where, np.float64)
    turns = episode_sum(table, counted)
    mean = np.divide(episode_sum(table, counted * rewards), turns, out=np.zeros(len(turns)), where=turns > 0)
    keys: Ints = group_ids(table["episodes.group"])
    better, worse = _pairs(keys, np.asarray(solved, bool), turns > 0)
    if not len(better):
        return PairLoss(0.0, np.zeros(len(table)), 0, float("nan"))
    difference = mean[better] - mean[worse]
    # d/dx of -log sigmoid(x) is -sigmoid(-x).
    slope = -np.exp(-np.logaddexp(0.0, difference)) / len(better)
    by_episode = np.bincount(better, slope, len(mean)) - np.bincount(worse, slope, len(mean))
    share = np.divide(by_episode, turns, out=np.zeros(len(turns)), where=turns > 0)
    gradient = np.bincount(table.step_turn, share[table.step_episode], len(table)) * counted
    loss = float(np.logaddexp(0.0, -difference).mean())
    return PairLoss(loss, gradient, len(better), float((difference > 0).mean()))


def _pairs(keys: Ints, solved: Bools, there: Bools) -> tuple[Ints, Ints]:
    """Rows of (solved, other) for every such pair of one group."""
    first, second = [], []
    for key in np.unique(keys):
        mine = (keys == key) & there
        yes, no = np.flatnonzero(mine & solved), np.flatnonzero(mine & ~solved)
        first.append(np.repeat(yes, len(no)))
        second.append(np.tile(no, len(yes)))
    return tuple(np.concatenate([np.zeros(0, np.int64), *part]) for part in (first, second))  # type: ignore[return-value]


def solved_episodes(table: TurnTable) -> Bools:
    """(E,) what the environment says, and where it does not say, whether the return is above 0."""
    success = np.asarray(table["episodes.success"], np.float64)
    won = np.asarray(table["episodes.return"], np.float64) > 0
    return np.where(np.isfinite(success), success > 0, won)


def add_step_rewards(
    ledger: Ledger, options: ProcessRewardOptions, flat: Mapping[str, NDArray[Any]], mask: NDArray[Any]
) -> None:
    """Add the column `step_reward`.

    Args:
        ledger: of the step.
        options: of the recipe.
        flat: `LOG_PROBS` and `old_log_probs`, (N,) each.
        mask: (N,) 1 on trained tokens.
    """
    ratio = np.subtract(flat[LOG_PROBS], flat["old_log_probs"], dtype=np.float64)
    tokens = np.asarray(ledger.table["n_tokens"], np.float64)
    ledger.table.turns[COLUMN] = options.beta * tokens * ledger.turn_means(ratio, mask)


def learned_weights(
    ledger: Ledger, options: ProcessRewardOptions, mask: NDArray[Any]
) -> tuple[dict[str, NDArray[Any]], dict[str, float]]:
    """What the second model learns from the step.

    Args:
        ledger: of the step, whose table has the step rewards.
        options: of the recipe.
        mask: (N,) 1 on trained tokens.

    Returns:
        the field `WEIGHTS`, (N,); the metrics `hier/process_reward/…`.
    """
    table = ledger.table
    trained = np.asarray(table["trained"], bool)
    rewards = np.asarray(table[COLUMN], np.float64)
    found = pair_loss(table, rewards, solved_episodes(table), trained)
    weights = ledger.spread(options.beta * found.gradient, "turn", "once") * (np.asarray(mask) > 0)
    metrics = {
        "hier/process_reward/pairs": float(found.pairs),
        "hier/process_reward/reward_mean": float(rewards[trained].mean()) if trained.any() else 0.0,
    }
    if found.pairs:
        metrics |= {"hier/process_reward/loss": found.loss, "hier/process_reward/accuracy": found.right}
    return {WEIGHTS: weights}, metrics
