"""The sample agents by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from verl_hier_plugins.environments.gateway import sample, sample_lead
from verl_hier_plugins.environments.gateway.options import GatewayOptions


@dataclass(frozen=True)
class Sample:
    """A sample agent.

    Attributes:
        agent: its function, as `hier.environment.agent` would name it.
        house: what is in the rooms of the house of a number, the thing that is looked for, and its room.
        words: texts with every word of its conversations.
        expert: of its tasks; see `verl_hier.environments.expert`.
    """

    agent: str
    house: Callable[[int], tuple[dict[str, Any], str, str]]
    words: Callable[[], Iterable[str]]
    expert: Callable[..., Any]


SAMPLES = {
    "seeker": Sample(f"{sample.__name__}:play", sample.house, sample.words, sample.SearchExpert),
    "lead": Sample(f"{sample_lead.__name__}:play", sample_lead.house, sample_lead.words, sample_lead.HelpedExpert),
}


def sample_of(options: GatewayOptions) -> Sample:
    """The sample agent that the options name."""
    return SAMPLES[options.sample]
