"""Credit as pure array maths: group and segment kernels, tree kernels, token assignment. Imports numpy alone."""

from verl_hier.credit.credit import Credit
from verl_hier.credit.groups import (
    group_advantage,
    group_ids,
    group_mean,
    group_median,
    group_sum,
    singletons,
)
from verl_hier.credit.paths import (
    code_mask,
    episode_votes,
    optional,
    rewards_to_go,
    share,
    step_links,
    step_mean,
    step_sum,
    trained_only,
    turn_keys,
    turn_votes,
)
from verl_hier.credit.relative import drop_weights, episode_advantage, turn_advantage
from verl_hier.credit.segments import (
    chain_links,
    discounted_sum,
    gae,
    linear_scan,
    segment_starts,
    segment_sums,
    shift_back,
    whiten,
)

__all__ = [
    "Credit",
    "chain_links",
    "code_mask",
    "discounted_sum",
    "drop_weights",
    "episode_advantage",
    "episode_votes",
    "gae",
    "group_advantage",
    "group_ids",
    "group_mean",
    "group_median",
    "group_sum",
    "linear_scan",
    "optional",
    "rewards_to_go",
    "segment_starts",
    "segment_sums",
    "share",
    "shift_back",
    "singletons",
    "step_links",
    "step_mean",
    "step_sum",
    "trained_only",
    "turn_advantage",
    "turn_keys",
    "turn_votes",
    "whiten",
]
