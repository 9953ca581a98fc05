"""Episodes: workers take turns in them, samplers decide which exist, and the graph stores what happened."""

from verl_hier.rollout.context import Context
from verl_hier.rollout.end_reason import EndReason, EpisodeOver
from verl_hier.rollout.episode_view import EpisodeView
from verl_hier.rollout.policy import Generation, Policy, Renderer, Sampling, Scored
from verl_hier.rollout.rollout import Episode, Rollout
from verl_hier.rollout.sampler import Sampler
from verl_hier.rollout.task import Limits, Request
from verl_hier.rollout.turn_view import Turn
from verl_hier.rollout.worker import Worker

__all__ = [
    "Context",
    "EndReason",
    "Episode",
    "EpisodeOver",
    "EpisodeView",
    "Generation",
    "Limits",
    "Policy",
    "Renderer",
    "Request",
    "Rollout",
    "Sampler",
    "Sampling",
    "Scored",
    "Turn",
    "Worker",
]
