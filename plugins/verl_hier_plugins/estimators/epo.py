"""EPO, two methods of this name: entropy smoothing, and explicit policy optimisation; docs/methods/epo.md.

Entropy-regularised: arXiv 2509.22576. Explicit: arXiv 2502.12486.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import (
    RETURN_COLUMNS,
    Credit,
    Floats,
    Scale,
    WeightBy,
    return_advantage,
    rewards_to_go,
    trained_only,
)
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class EPOOptions:
    """GRPO, with a term that pushes the entropy of a token back into the range of earlier steps.

    The released code adds a constant to the loss instead, which has no gradient; `strength: 0` trains what it trains.
    """

    strength: float = 1e-3
    """Weight of the push (λ); 0 is GRPO."""
    penalty: float = 0.1
    """Size of the penalty for an entropy outside of the range (κ)."""
    least: float = 0.8
    """Lower end of the range, as a multiple of the mean entropy of such turns in earlier steps."""
    most: float = 1.2
    """Upper end of the range."""
    scale: Scale = "sample"
    """What returns are divided by, as in `grpo`."""
    weight_by: WeightBy = "episode"
    """What has one vote in the statistics of the task; the released code counts rows (`turn`)."""
    format_penalty: float = 0.0
    """Taken from the score of turns whose format is wrong, and of no other turn, as in `grpo`."""
    eps: float = 1e-6
    """Added to the scale."""


def advantage(table: TurnTable, options: EPOOptions) -> Credit:
    """Credit per token: the z-score of the episode, plus the push of tokens whose entropy is out of range."""
    turn = np.asarray(table["tokens.turn"])
    credit = return_advantage(
        table, options.format_penalty, weight_by=options.weight_by, scale=options.scale, eps=options.eps
    )[turn]
    weight = trained_only(table, np.asarray(table["smoothing"], np.float64))[turn]
    return Credit(credit + options.strength * options.penalty * weight * push(table, options), per="token")


def push(table: TurnTable, options: EPOOptions) -> Floats:
    """(N,) -log p - H for tokens below the range, H + log p for those above it, 0 inside.

    Its product with the gradient of log p has the gradient of H, or of -H, as its mean over what could be sampled.
    """
    turn = np.asarray(table["tokens.turn"])
    entropy = np.asarray(table["tokens.entropy"], np.float64)
    mean = np.asarray(table["entropy_mean"], np.float64)[turn]
    surprise = -np.nan_to_num(np.asarray(table["tokens.logprob"], np.float64))
    return (surprise - entropy) * -outside(entropy, mean, options.least, options.most)


def outside(entropy: Floats, mean: Floats, least: float, most: float) -> Floats:
    """-1 where an entropy is at most `least` times the mean, 1 where it is at least `most` times it, else 0."""
    return (entropy >= most * mean).astype(np.float64) - (entropy <= least * mean)


@dataclass(frozen=True)
class ExplicitOptions:
    """A reward for each turn, no baseline, no group."""

    gamma: float | None = None
    """Null: the score of a turn is its own reward; a number: its reward-to-go, discounted a turn."""


def explicit(table: TurnTable, options: ExplicitOptions) -> Floats:
    """(T,) score of each turn, for a loss of log-likelihoods that weighs all turns alike."""
    rewards = np.asarray(table["reward"], np.float64)
    return trained_only(table, rewards if options.gamma is None else rewards_to_go(table, options.gamma))


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    return [
        EstimatorSpec(
            "epo",
            advantage,
            EPOOptions,
            summary="z-score of the episode, and a push of token entropies into the range of earlier steps",
            source="arXiv 2509.22576; WujiangXu/EPO dp_actor.py (its penalty has no gradient; the push is ours)",
            requires=(
                "smoothing",
                "entropy_mean",
                "tokens.turn",
                "tokens.logprob",
                "tokens.entropy",
                *RETURN_COLUMNS,
            ),
            granularity="token",
            confidence="C",
        ),
        EstimatorSpec(
            "epo_explicit",
            explicit,
            ExplicitOptions,
            summary="the reward of each turn, or its reward-to-go, without a baseline",
            source="arXiv 2502.12486; lxqpku/EPO sft/trainer.py",
            requires=("reward", "trained"),
            needs_groups=False,
            confidence="A",
        ),
    ]
