"""InfoPO, credit for the feedback that an action brings about (arXiv 2603.00656), docs/methods/infopo.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import Floats, Ints, episode_sum, group_ids, rewards_to_go, step_mean, trained_only
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative, Positive, ZeroToOne
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class InfoPOOptions:
    """Defaults are those of the released scripts and, where they say nothing, of the released code."""

    weight: NonNegative = 0.5
    """Of the intrinsic advantage, before the gate."""
    gate_temperature: Positive = 0.05
    """The gate of a task is sigmoid(-standard deviation of its scores / this): a half where all scores are equal."""
    norm_by_std: bool = True
    """Whether both advantages are divided by standard deviations."""
    normalise_gain: bool = True
    """Whether gains are compared within the task; else they are taken as they are."""
    only_gain: bool = False
    """Leaves the outcome out, and with it weight and gate."""
    turn_credit: Literal["equal", "reward_to_go", "exponential"] = "equal"
    """How the outcome is shared by the turns: equally, by the discounted reward from the turn on, or by
    0.5 + 0.5 (1 - e^(-2r)) / (1 - e^(-2)) of the turn's own reward r."""
    score: Literal["sum", "discounted"] = "sum"
    """Score of an episode: the sum of its rewards, or the discounted one."""
    gamma: ZeroToOne = 0.8
    """Discount from turn to turn, where one is asked for."""
    eps: NonNegative = 1e-6
    """Added to the standard deviations."""


def advantage(table: TurnTable, options: InfoPOOptions) -> Floats:
    """(T,) the outcome's advantage plus that of the information gained, which counts where the outcome says little."""
    gain = gain_advantage(table, options)
    outcome, gate = outcome_advantage(table, options)
    scaled = gain * magnitude_ratio(table, outcome, gain, options)
    if options.only_gain:
        return trained_only(table, scaled)
    return trained_only(table, outcome + options.weight * gate * scaled)


def magnitude_ratio(table: TurnTable, outcome: Floats, gain: Floats, options: InfoPOOptions) -> float:
    """What the gains (T,) are scaled down by, so that they spread no wider than the outcome's advantages (T,), or 1."""
    tokens = _tokens(table)
    widest = max(_deviation(outcome, tokens) + options.eps, 1.0)
    return min(1.0, widest / (_deviation(gain, tokens) + options.eps))


def gain_advantage(table: TurnTable, options: InfoPOOptions) -> Floats:
    """(T,) gain a token of each turn, normalised over the tokens of the task whose gain is not 0; 0 on the others."""
    tokens = _tokens(table)
    value = np.asarray(table["feedback_gain"], np.float64) / np.maximum(np.asarray(table["n_tokens"], np.int64), 1)
    if not options.normalise_gain:
        return np.where(tokens > 0, value, 0.0)
    votes = np.where(value != 0, tokens, 0.0)
    keys: Ints = group_ids(table["group"])
    count = np.bincount(keys, votes)
    mean = np.bincount(keys, votes * value) / np.maximum(count, 1.0)
    centred = np.where(votes > 0, value - mean[keys], 0.0)
    if not options.norm_by_std:
        return centred
    square = np.bincount(keys, votes * centred**2)
    spread = np.where(count > 1, np.sqrt(square / np.maximum(count - 1.0, 1.0)), 1.0)
    return centred / (spread[keys] + options.eps)


def outcome_advantage(table: TurnTable, options: InfoPOOptions) -> tuple[Floats, Floats]:
    """(T,) the normalised score of the episode, shared by its turns; (T,) the gate of the task."""
    keys: Ints = group_ids(table["episodes.group"])
    votes = np.asarray(table["episodes.trained"], np.float64)
    score = episode_scores(table, options)
    count = np.bincount(keys, votes)
    mean = np.where(count > 1, np.bincount(keys, votes * score) / np.maximum(count, 1.0), 0.0)
    square = np.bincount(keys, votes * (score - mean[keys]) ** 2)
    spread = np.where(count > 1, np.sqrt(square / np.maximum(count - 1.0, 1.0)), 1.0)
    normalised = score - mean[keys]
    if options.norm_by_std:
        normalised = normalised / (spread[keys] + options.eps)
    episode, turn = table.step_episode, table.step_turn
    credit, tokens = turn_credits(table, options)[turn], _tokens(table)[turn]
    # The tokens of an episode that carry credit have its normalised score for a mean.
    total = np.bincount(episode, credit * tokens, len(score))
    carrying = np.bincount(episode, tokens * (credit != 0), len(score))
    scale = np.divide(normalised * carrying, total, out=np.zeros(len(score)), where=total != 0)
    rewarded = votes[episode] > 0
    gate = 1.0 / (1.0 + np.exp(np.minimum(spread / options.gate_temperature, 700.0)))
    return step_mean(table, credit * scale[episode], rewarded), gate[keys][np.asarray(table["episode"], np.int64)]


def turn_credits(table: TurnTable, options: InfoPOOptions) -> Floats:
    """(T,) share of each turn in the outcome of its episode, before it is scaled."""
    if options.turn_credit == "equal":
        return np.ones(len(table))
    if options.turn_credit == "reward_to_go":
        return rewards_to_go(table, options.gamma)
    reward = np.asarray(table["reward"], np.float64)
    mapped = 0.5 + 0.5 * (1.0 - np.exp(-2.0 * reward)) / (1.0 - np.exp(-2.0))
    return np.round(mapped, 4)


def episode_scores(table: TurnTable, options: InfoPOOptions) -> Floats:
    """(E,) what the episodes of a task are compared by."""
    reward = np.asarray(table["reward"], np.float64)
    if options.score == "sum":
        return np.round(episode_sum(table, reward), 4)
    place = np.arange(len(table.step_episode)) - np.searchsorted(table.step_episode, table.step_episode)
    discounted = options.gamma**place * reward[table.step_turn]
    return np.bincount(table.step_episode, discounted, len(table.episodes["return"])).astype(np.float64)


def _tokens(table: TurnTable) -> Floats:
    """(T,) action tokens of trained turns; 0 on the others."""
    return np.asarray(table["n_tokens"], np.float64) * np.asarray(table["trained"], bool)


def _deviation(values: Floats, tokens: Floats) -> float:
    """Sample standard deviation over tokens; 0 for fewer than two."""
    count = tokens.sum()
    if count < 2:
        return 0.0
    mean = (tokens * values).sum() / count
    return float(np.sqrt((tokens * (values - mean) ** 2).sum() / (count - 1.0)))


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "infopo",
        advantage,
        InfoPOOptions,
        summary="outcome of the episode, plus what the feedback of a turn changes where outcomes say little",
        source="arXiv 2603.00656; kfq20/InfoPO verl/trainer/ppo/core_algos.py::compute_info_grpo_advantage",
        requires=(
            *("group", "episode", "reward", "feedback_gain", "trained", "n_tokens"),
            *("episodes.group", "episodes.return", "episodes.trained"),
        ),
        confidence="A",
    )
