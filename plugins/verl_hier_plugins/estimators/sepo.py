"""SEPO, a bonus for the part that agents grant each other (arXiv 2603.21563), docs/methods/sepo.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verl_hier.credit import Credit, Floats, Scale, turn_advantage
from verl_hier.credit.paths import code_mask
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative, ZeroToOne
from verl_hier.host.specs import EstimatorSpec
from verl_hier_plugins.estimators.ccpo import own_returns, task_mean, verdicts

UNREADABLE = 0.5


@dataclass(frozen=True)
class SEPOOptions:
    """Defaults are the released script's."""

    first: tuple[str, ...] = ("thinker",)
    """Roles whose part the ratings name; the other roles have the rest."""
    own: ZeroToOne = 0.3
    """Weight of what an agent says of itself (η); the rest is what the other one says of it."""
    credit: NonNegative = 0.2
    """Factor of the bonus where the episode is right."""
    blame: NonNegative = 0.2
    """Factor of the malus where it is wrong."""
    centre_by_task: bool = True
    """Whether parts are compared with the mean over the episodes of the task, or with one half."""
    right_above: float = 0.5
    """Return above which an episode counts as right (1), otherwise as wrong (-1)."""
    norm_by_std: bool = False
    """Whether advantages are divided by the sample standard deviation."""
    eps: NonNegative = 1e-6
    """Added to the standard deviation."""


def advantage(table: TurnTable, options: SEPOOptions) -> Credit:
    """Credit per turn: reward of its role among the episodes of the task. Turns that rate are left out of the loss."""
    scale: Scale = "sample" if options.norm_by_std else "none"
    rates = np.nan_to_num(np.asarray(table["rates"], np.float64)) > 0
    values = turn_advantage(
        table,
        rewards(table, options),
        ("group", "role"),
        weight_by="role",
        where=~rates,
        scale=scale,
        eps=options.eps,
    )
    return Credit(values, weight=(~rates).astype(np.float64))


def rewards(table: TurnTable, options: SEPOOptions) -> Floats:
    """(T,) verdict on the episode of each turn, with the bonus or malus of its role."""
    first = code_mask(table, "role", options.first)
    part = contribution(said(table, first), said(table, ~first), options.own)
    others = task_mean(table, part) if options.centre_by_task else 0.5
    bonus = np.where(first, 1.0, -1.0) * (part - others)
    verdict = verdicts(own_returns(table), options.right_above)
    return verdict + np.where(verdict > 0, options.credit, -options.blame) * bonus


def contribution(by_first: Floats, by_other: Floats, own: float) -> Floats:
    """(T,) part of the first agent, of what both say of it.

    Args:
        by_first: what the first agent says its part is.
        by_other: what the other one says the part of the first is.
        own: weight of what an agent says of itself.
    """
    mine = own * by_first + (1 - own) * by_other
    theirs = own * (1 - by_other) + (1 - own) * (1 - by_first)
    return mine / (mine + theirs)


def said(table: TurnTable, where: np.ndarray) -> Floats:
    """(T,) mean of what the rating turns of some roles say in the episode of each turn; one half without any."""
    share = np.asarray(table["share"], np.float64)
    counts = where & (np.nan_to_num(np.asarray(table["rates"], np.float64)) > 0)
    owner = np.asarray(table["episode"])
    size = int(owner.max(initial=-1)) + 1
    number = np.bincount(owner, counts, size)
    total = np.bincount(owner, np.where(counts, np.nan_to_num(share, nan=UNREADABLE), 0.0), size)
    mean = np.divide(total, number, out=np.full(size, UNREADABLE), where=number > 0)
    return mean[owner]


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "sepo",
        advantage,
        SEPOOptions,
        summary="verdict on the team, with a bonus for the part that the agents grant each other",
        source="arXiv 2603.21563; bhai114/ccpo SEPO two_model_trainer.py::_compute_peer_role_rewards",
        requires=(
            "group",
            "episode",
            "role",
            "trained",
            "rates",
            "share",
            "episodes.return",
            "episodes.trained",
        ),
        weighs=lambda options: "name: sepo",
        confidence="A",
    )
