"""C3, messages against alternatives from the same transcript (arXiv 2603.06859), docs/methods/c3.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import Bools, Centre, Credit, Floats, Ints, group_advantage, group_ids, group_mean, trained_only
from verl_hier.credit.trees import depths, run_starts
from verl_hier.errors import CreditError
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative, ZeroToOne
from verl_hier.host.specs import EstimatorSpec

HEAD = "value_last"


@dataclass(frozen=True)
class C3Options:
    """Defaults are the released code's, but for the critic: `variant: value_assisted` needs one."""

    variant: Literal["reward_only", "value_only", "value_assisted"] = "reward_only"
    """What is compared: the mean return below a message, the critic's value of the transcript with it, or the first
    against a baseline of the second."""
    baseline: Literal["loo", "full_mean"] = "loo"
    """Mean of the other alternatives, or of all."""
    alpha: ZeroToOne = 1.0
    """Of `value_assisted`: share of the baseline that the critic has; the rest is the mean of returns."""
    replay: bool = True
    """Whether alternatives share their transcript; off (an ablation): all messages of a role are compared."""
    standardise: bool = True
    """Whether the credit of alternatives is centred and divided by its population standard deviation, as the released
    trainer does."""
    eps: NonNegative = 1e-8
    """Added to that variance."""


def advantage(table: TurnTable, options: C3Options) -> Credit:
    """Credit per turn: the message that it belongs to against the alternatives that were said in its place.

    Raises:
        CreditError: when the variant needs a critic and the table has no `value_last`.
    """
    start = run_starts(table["parent"], table["agent"], table["segment"])
    chosen = (start == np.arange(len(table))) & np.asarray(table["trained"], bool)
    keys = siblings(table, start, options.replay)
    returns = np.asarray(table["return"], np.float64)
    values = None if options.variant == "reward_only" else message_values(table, start)
    credit = compared(returns, values, keys, chosen, options)
    if options.standardise:
        credit = standardised(credit, keys, chosen, options.eps)
    result = Credit(trained_only(table, credit[start]))
    if HEAD in table:
        ends = last_turns(table, start)[start] == np.arange(len(table))
        result.targets = {"last": np.where(ends, returns, np.nan)}
    return result


def compared(returns: Floats, values: Floats | None, keys: Ints, where: Bools, options: C3Options) -> Floats:
    """(T,) advantage of each message of `where` among the alternatives of its group; 0 for the only one.

    Args:
        returns: (T,) mean return below.
        values: (T,) of the critic; None for `reward_only`.
        keys: (T,) groups of alternatives.
        where: (T,) the messages.
        options: variant, baseline and alpha.
    """

    def centred(scores: Floats) -> Floats:
        centre: Centre = "leave_one_out" if options.baseline == "loo" else "mean"
        return group_advantage(scores, keys, where=where, centre=centre, scale="none", singleton="zero")

    if values is None:
        return centred(returns)
    if options.variant == "value_only":
        return centred(values)
    others = np.bincount(keys, where)[keys] > 1
    against = np.where(others & where, returns - values, 0.0) + centred(values)
    return (1 - options.alpha) * centred(returns) + options.alpha * against


def standardised(credit: Floats, keys: Ints, where: Bools, eps: float) -> Floats:
    """(T,) centred in each group and divided by the root of its population variance plus eps."""
    centred = np.where(where, credit - group_mean(credit, keys, where)[keys], 0.0)
    spread: Floats = np.sqrt(group_mean(centred**2, keys, where)[keys] + eps)
    return centred / spread


def siblings(table: TurnTable, start: Ints, replay: bool) -> Ints:
    """(T,) number of the group of alternatives of each turn's message."""
    parent = np.asarray(table["parent"])[start]
    if not replay:
        parent = np.where(parent >= 0, 0, -1)
    return group_ids(table["group"], table["role"], parent)


def last_turns(table: TurnTable, start: Ints) -> Ints:
    """(T,) at the first turn of each message its last one, which ends what the critic reads."""
    order = np.lexsort((np.arange(len(start))[::-1], depths(table["parent"])))
    last = np.arange(len(start))
    last[start[order]] = order
    return last


def message_values(table: TurnTable, start: Ints) -> Floats:
    """(T,) at the first turn of each message the critic's value of the transcript with it."""
    if HEAD not in table:
        raise CreditError(
            "estimator 'c3' with hier.estimator.variant other than reward_only needs the critic at the end of each "
            "message (column 'value_last'); set critic.enable: true and hier.value_heads: {last: 1.0}."
        )
    return np.asarray(table[HEAD], np.float64)[last_turns(table, start)]


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "c3",
        advantage,
        C3Options,
        summary="mean return below a message against the alternatives said in its place",
        source="arXiv 2603.06859; EIT-EAST-Lab/C3 c3/credit/c3/provider.py::C3CreditProvider.compute",
        requires=("group", "role", "agent", "segment", "parent", "return", "trained"),
        reads=(HEAD,),
        needs_tree=True,
        confidence="A",
    )
