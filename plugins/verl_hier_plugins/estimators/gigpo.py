"""GiGPO, groups of equal states inside groups of a task (arXiv 2505.10978), docs/methods/gigpo.md."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

import numpy as np

from verl_hier.credit import (
    RETURN_COLUMNS,
    Floats,
    Ints,
    Scale,
    WeightBy,
    format_penalty,
    group_advantage,
    group_ids,
    return_advantage,
    rewards_to_go,
    term,
    trained_only,
)
from verl_hier.errors import CreditError
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative, ZeroToOne
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class GiGPOOptions:
    """Defaults are the released code's."""

    omega: NonNegative = 1.0
    """Weight of the step advantage; 0 is GRPO."""
    gamma: ZeroToOne = 0.95
    """Discount of the reward-to-go that the step advantage compares."""
    norm: Literal["mean_norm", "mean_std_norm"] = "mean_norm"
    """Whether both levels divide by the sample standard deviation."""
    weight_by: WeightBy = "turn"
    """Votes in the episode statistics: the released code counts rows, so long episodes weigh more; `episode` gives
    each one vote."""
    similarity: ZeroToOne | None = None
    """Least text similarity for two states to count as one; null compares exactly."""
    format_penalty: NonNegative = 0.0
    """Taken from the score of a turn whose format is wrong (`format` is 0, or not `valid` where no worker fills that
    column), on both levels; neither the return nor the reward-to-go of another turn changes."""
    eps: NonNegative = 1e-6
    """Added to the standard deviation."""


def advantage(table: TurnTable, options: GiGPOOptions) -> Floats:
    """(T,) episode advantage plus omega times the advantage among turns of the task with the same anchor state."""
    scale: Scale = "sample" if options.norm == "mean_std_norm" else "none"
    episode = return_advantage(table, options.format_penalty, weight_by=options.weight_by, scale=scale, eps=options.eps)
    term("episode among the episodes of the task", episode)
    step = term("turn among turns that start in the same state", steps(table, options), weight=options.omega)
    return trained_only(table, episode + options.omega * step)


def steps(table: TurnTable, options: GiGPOOptions) -> Floats:
    """(T,) the step advantage: reward-to-go among equal anchors, 0 for a state that only one turn has seen."""
    anchor = np.asarray(table["anchor"])
    if options.similarity is not None:
        anchor = similar_anchors(table["group"], anchor, table.anchors, options.similarity)
    returns = rewards_to_go(table, options.gamma) - format_penalty(table, options.format_penalty)
    return group_advantage(
        returns,
        group_ids(table["group"], anchor),
        where=np.asarray(table["trained"], bool) & (anchor >= 0),
        scale="sample" if options.norm == "mean_std_norm" else "none",
        eps=options.eps,
        singleton="zero",
    )


def similar_anchors(group: Ints, anchor: Ints, texts: tuple[str, ...], threshold: float) -> Ints:
    """Greedy first-fit clusters of anchor texts inside each group.

    Distinct texts are visited in the order of their first turn; a text joins the first cluster whose representative
    (its first text) is at least `threshold` similar, else it starts one. Equal texts share a cluster, so this loops
    over distinct texts and not over turns.

    Args:
        group: (T,) task of each turn.
        anchor: (T,) int64 anchor numbers; -1 stays -1.
        texts: text of each anchor number.
        threshold: least difflib ratio.

    Returns:
        (T,) int64 cluster numbers, unique within a group, -1 where the anchor is.

    Raises:
        CreditError: when the table carries no texts for its anchors.
    """
    if anchor.size and anchor.max() >= len(texts):
        raise CreditError(
            "anchor similarity needs the text of the states; this table has numbers only. "
            "Set `hier.estimator.similarity: null`, or use an environment whose anchors are texts."
        )
    keys = group_ids(group, anchor)
    first = np.full(int(keys.max()) + 1 if keys.size else 0, anchor.size, np.int64)
    np.minimum.at(first, keys, np.arange(anchor.size))
    cluster = np.full(first.size, -1, np.int64)
    representatives: dict[int, list[tuple[int, str]]] = {}
    for key in np.argsort(first):
        turn = int(first[key])
        if anchor[turn] < 0:
            continue
        text = texts[int(anchor[turn])]
        known = representatives.setdefault(int(group[turn]), [])
        match = next((c for c, other in known if SequenceMatcher(None, text, other).ratio() >= threshold), None)
        if match is None:
            match = int(key)
            known.append((match, text))
        cluster[key] = match
    return cluster[keys]


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "gigpo",
        advantage,
        GiGPOOptions,
        summary="episode advantage plus an advantage among turns that start in the same state",
        source="arXiv 2505.10978 §3; verl-agent gigpo/core_gigpo.py",
        requires=("group", "anchor", "reward", *RETURN_COLUMNS),
        confidence="A",
    )
