"""The three levels of HiPER's advantages (arXiv 2602.16165 §4), docs/estimators/hiper.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_hier.credit import chain_links, gae, optional, segment_starts, segment_sums, shift_back, step_mean
from verl_hier.credit.segments import discounted_sum
from verl_hier.trajectory.table import TurnTable

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Levels:
    """(T,) each: advantages and critic targets of the levels, and which turns start a segment."""

    low: Floats
    low_target: Floats
    high: Floats
    high_target: Floats
    term: Floats | None
    term_target: Floats | None
    starts: Bools


def hae(table: TurnTable, rewards: Floats, options: Any) -> Levels:
    """Low: GAE inside segments. High: SMDP-GAE over segments, on their first turns. Term: return of the rest of the
    segment minus the termination value."""
    turn, chain = table.step_turn, table.step_episode
    segment = np.asarray(table["segment"])[turn]
    inside, starts = chain_links(chain, segment), segment_starts(chain, segment)
    first = np.flatnonzero(starts)
    ends = np.append(first[1:], len(turn)) - 1 if len(first) else first
    reward = rewards[turn]
    low = np.asarray(table["value"], np.float64)[turn]
    high = np.asarray(optional(table, "value_high", table["value"]), np.float64)[turn]
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
        low_target=low_turns + np.asarray(table["value"], np.float64),
        high=step_mean(table, at_start),
        high_target=step_mean(table, target),
        term=None if term is None else rest - np.asarray(term, np.float64),
        term_target=None if term is None else rest,
        starts=step_mean(table, starts) > 0,
    )
