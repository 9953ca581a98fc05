"""CCPO: every episode again without the roles that are to be credited (arXiv 2603.21563), docs/methods/ccpo.md."""

from __future__ import annotations

from dataclasses import dataclass

from verl_hier.graph.nodes import RolloutGraph
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import Rollout, Sampler
from verl_hier.rollout.branching import at_least, play_out, start_episodes

SOLO = "solo_return"


@dataclass(frozen=True)
class CCPOSamplerOptions:
    """Options of `ccpo`. `actor_rollout_ref.rollout.n` is the number of joint episodes; each is followed by a solo one,
    which only measures."""

    without: tuple[str, ...] = ("thinker",)
    """Roles that take no turn in the solo episodes."""

    def __post_init__(self) -> None:
        if not self.without:
            raise ValueError("without must name at least one role")


class CCPOSampler(Sampler):
    """See the module."""

    def __init__(self, options: CCPOSamplerOptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        joint = await play_out(rollout, start_episodes(rollout, rollout.n))
        left_out = dict.fromkeys(self._options.without, "")
        solos = []
        for episode in joint:
            solos += start_episodes(rollout, 1, trained=False, stand_ins=left_out, solo_of=episode.id)
        for solo in solos:
            solo.trained = False
            solo.withhold()
        await play_out(rollout, solos)
        rollout.count("solo_episodes", sum(solo.complete for solo in solos))
        note_solos(rollout.graph)


def note_solos(graph: RolloutGraph) -> None:
    """Write the return of each solo episode on the turns of its joint episode.

    Where a solo episode is missing, its turns get the mean of the others, and their own return where there is none.
    """
    solos = {episode.decision["solo_of"]: episode.ret for episode in graph.complete() if "solo_of" in episode.decision}
    mean = sum(solos.values()) / len(solos) if solos else None
    for episode in graph.complete():
        alone = episode.ret
        if "solo_of" not in episode.decision:
            alone = solos.get(episode.id, episode.ret if mean is None else mean)
        for number in graph.path(episode.id):
            graph.nodes[number].extra[SOLO] = float(alone)


@hookimpl
def hier_graph_finished(graph: RolloutGraph, validate: bool) -> None:
    """The returns as they are once every reward is there."""
    if any("solo_of" in episode.decision for episode in graph.episodes):
        note_solos(graph)


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "ccpo",
        CCPOSampler,
        CCPOSamplerOptions,
        summary="n episodes of the team, and n without some of its roles, which only measure",
        source="arXiv 2603.21563; bhai114/ccpo two_model_trainer.py",
        episodes=at_least(2, "ccpo sampler compares n episodes"),
        leaves_out=lambda options: options.without,
        provides=(SOLO,),
    )
