"""HiPER, hierarchical advantage estimation (arXiv 2602.16165), docs/methods/hiper.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_hier.credit import (
    Bools,
    Credit,
    Floats,
    Ints,
    chain_links,
    discounted_sum,
    format_penalty,
    gae,
    optional,
    segment_starts,
    segment_sums,
    shift_back,
    step_mean,
    trained_only,
)
from verl_hier.credit.tokens import combine_levels, has_token, on_mask
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative, ZeroToOne
from verl_hier.host.specs import EstimatorSpec


@dataclass(frozen=True)
class HiPEROptions:
    """Defaults are the released code's; its ALFWorld script sets the keep and the consistency penalty to -0.3 and
    bootstraps."""

    gamma: ZeroToOne = 1.0
    """Discount a turn."""
    lam_turn: ZeroToOne = 1.0
    """GAE decay between the turns of a segment."""
    lam_seg: ZeroToOne = 0.95
    """GAE decay between segments."""
    norm_adv: bool = True
    """Whether each level is z-scored over the turns that carry it (on in all scripts)."""
    bootstrap_truncated: bool = False
    """Whether a path that ends without `done` bootstraps from its own last values."""
    keep_penalty: float = 0.0
    """Added to the reward of turns that keep their subgoal; negative ones discourage it."""
    keep_penalty_mode: Literal["normalized", "fixed"] = "normalized"
    """normalized divides the penalty by the turns of the episode, so that it counts the share of kept turns."""
    consistency_penalty: float = 0.0
    """Added when a turn keeps its subgoal but words it differently; needs the turn column `subgoal`."""
    consistency_needs_both: bool = True
    """Whether only subgoals that are written twice are compared; otherwise a missing one differs from any other."""
    format_penalty: NonNegative = 0.1
    """Taken from the reward of a turn whose format is wrong (`format` is 0, or not `valid` where no worker fills that
    column); set 0 when the worker or the environment does it."""
    high_to_subgoal: bool = True
    """Whether the subgoal tokens of a segment's first turn carry the high level."""
    high_to_switch: bool = False
    """Whether its switch tokens carry the high level; where they carry the termination level too, both are added."""
    term_to_switch: bool = True
    """Whether switch tokens carry the termination level, where the critic has a head for it."""
    only_credited: bool = True
    """Whether tokens without a level leave the loss, as in the released code: its KL and entropy terms too."""


def advantage(table: TurnTable, options: HiPEROptions) -> Credit:
    """Credit per token: action, subgoal and switch tokens each by their own level; the other tokens get none."""
    levels = hae(table, shaped_rewards(table, options), options)
    turn = np.asarray(table["tokens.turn"])
    low, high, term = masks = token_masks(table, levels, options)
    parts = [
        on_mask(level_values(table, values, turn, mask, options), turn, mask)
        for values, mask in ((levels.high, high), (levels.term, term), (levels.low, low))
    ]
    credited = np.logical_or.reduce(masks) if options.only_credited else None
    credit = Credit(combine_levels(parts, "sum"), per="token", returns=levels.low_target[turn], tokens=credited)
    credit.targets = {"low": levels.low_target, "high": np.where(levels.starts, levels.high_target, np.nan)}
    if levels.term_target is not None:
        credit.targets |= {"term": levels.term_target}
    return credit


def token_masks(table: TurnTable, levels: Levels, options: HiPEROptions) -> tuple[Bools, Bools, Bools]:
    """(N,) tokens that carry the low, the high and the termination level; they may overlap."""
    turn = np.asarray(table["tokens.turn"])
    trained = np.asarray(table["trained"], bool)[turn]
    subgoal, switch = (np.asarray(table[f"tokens.{name}"], bool) & trained for name in ("subgoal", "switch"))
    high = (subgoal & options.high_to_subgoal) | (switch & options.high_to_switch)
    term = switch & (options.term_to_switch and levels.term is not None)
    return np.asarray(table["tokens.action"], bool) & trained, high & levels.starts[turn], term


def level_values(table: TurnTable, values: Floats | None, turn: Ints, mask: Bools, options: HiPEROptions) -> Floats:
    """(T,) one level, z-scored (population) over the trained turns with a token of its mask if asked for."""
    if values is None:
        return np.zeros(len(table))
    if not options.norm_adv:
        return trained_only(table, values)
    chosen = values[has_token(turn, mask, len(table))]
    if chosen.size == 0:
        return np.zeros(len(table))
    return (values - chosen.mean()) / (chosen.std() + 1e-8)


@dataclass(frozen=True)
class Levels:
    """Advantages and critic targets of the three levels (None without a termination value), and which turns start a
    segment; (T,) each."""

    low: Floats
    low_target: Floats
    high: Floats
    high_target: Floats
    term: Floats | None
    term_target: Floats | None
    starts: Bools


def hae(table: TurnTable, rewards: Floats, options: HiPEROptions) -> Levels:
    """The three levels.

    Low: GAE inside segments. High: semi-Markov GAE over whole segments, given to their first turns. Termination: return
    of the rest of the segment minus the termination value.
    """
    turn, chain = table.step_turn, table.step_episode
    segment = np.asarray(table["segment"])[turn]
    inside, starts = chain_links(chain, segment), segment_starts(chain, segment)
    first = np.flatnonzero(starts)
    ends = np.append(first[1:], len(turn)) - 1 if len(first) else first
    reward = rewards[turn]
    value = np.asarray(table["value_low"], np.float64)
    low = value[turn]
    high = np.asarray(optional(table, "value_high", value), np.float64)[turn]
    alive = (~np.asarray(table["done"], bool)[turn]).astype(np.float64)
    follows = chain_links(chain)[ends]
    cut = 1.0 if options.bootstrap_truncated else 0.0
    high_next = np.append(high[first[1:]], 0.0) if len(first) else high
    after_low = np.zeros(len(turn))
    after_low[ends] = np.where(follows, high_next, cut * low[ends])
    gamma = options.gamma
    low_adv = gae(reward, low, alive * shift_back(low, inside, after_low), inside * alive, gamma, options.lam_turn)
    return_, length = segment_sums(reward, starts, gamma)
    boot = alive[ends] * np.where(follows, high_next, cut * high[first])
    high_adv = gae(return_, high[first], boot, follows * alive[ends], gamma**length, options.lam_seg)
    at_start, target = np.zeros(len(turn)), np.zeros(len(turn))
    at_start[first], target[first] = high_adv, high_adv + high[first]
    tail = np.zeros(len(turn))
    tail[ends] = boot
    term = optional(table, "value_term")
    rest = step_mean(table, discounted_sum(reward, inside, gamma, tail))
    low_turns = step_mean(table, low_adv)
    return Levels(
        low=low_turns,
        low_target=low_turns + value,
        high=step_mean(table, at_start),
        high_target=step_mean(table, target),
        term=None if term is None else rest - np.asarray(term, np.float64),
        term_target=None if term is None else rest,
        starts=step_mean(table, starts) > 0,
    )


def kept(table: TurnTable) -> Bools:
    """(T,) turns that keep their subgoal: by the column `switch`, or not the first turn of their segment."""
    switch = optional(table, "switch")
    if switch is not None:
        return ~np.asarray(switch, bool)
    parent, segment = np.asarray(table["parent"]), np.asarray(table["segment"])
    return (parent >= 0) & (segment == segment[np.maximum(parent, 0)])


def shaped_rewards(table: TurnTable, options: HiPEROptions) -> Floats:
    """(T,) rewards with the penalties for a kept subgoal, a wrong format and a reworded subgoal, in this order."""
    keep = kept(table)
    turns = np.asarray(table["episodes.turns"], np.float64)[np.asarray(table["episode"])]
    penalty = np.full(len(table), options.keep_penalty)
    if options.keep_penalty_mode == "normalized":
        penalty = np.where(turns > 1, penalty / np.maximum(turns, 1), 0.0)
    reward = np.asarray(table["reward"], np.float64) + np.where(keep, penalty, 0.0)
    reward = reward - format_penalty(table, options.format_penalty)
    subgoal = optional(table, "subgoal")
    if subgoal is None or options.consistency_penalty == 0:
        return reward
    text, parent = np.asarray(subgoal), np.asarray(table["parent"])
    before = np.where(parent >= 0, text[np.maximum(parent, 0)], -1)
    written = (text >= 0) & (before >= 0)
    differs = written & (text != before) if options.consistency_needs_both else ~written | (text != before)
    return reward + options.consistency_penalty * (keep & (parent >= 0) & differs)


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "hiper",
        advantage,
        HiPEROptions,
        summary="GAE inside subgoal segments, SMDP-GAE over them, termination values; each on its own tokens",
        source="arXiv 2602.16165 §4; JonP07/HiPER-agent hiper_hae/core_hae.py",
        requires=(
            "reward",
            "segment",
            "parent",
            "episode",
            "done",
            "valid",
            "trained",
            "value_low",
            "episodes.turns",
            "tokens.turn",
            "tokens.action",
            "tokens.subgoal",
            "tokens.switch",
        ),
        reads=("value_high", "value_term"),
        granularity="token",
        needs_groups=False,
        needs_critic=True,
        confidence="A",
    )
