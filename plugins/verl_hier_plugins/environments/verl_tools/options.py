"""The options of the environment with verl's tools."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VerlToolsOptions:
    """Options of the `verl_tools` environment. The tools, their parser and their limits are those of
    `actor_rollout_ref.rollout.multi_turn`."""

    stateful: tuple[str, ...] = ()
    """Tools that remember what an episode did, in `agent_data` or under its `request_id`. Their calls, and no others,
    are made again where an episode is forked or rebuilt."""
    reward_weight: float = 0.0
    """Factor with which the rewards of tools count as rewards of the turn. 0 hands them to verl's reward function
    alone, in `extra_info["tool_rewards"]`, as verl does."""
    invalid_penalty: float = 0.0
    """Subtracted from the reward of a turn whose calls all name no tool, have arguments that are no JSON, or are not
    read by the parser."""
