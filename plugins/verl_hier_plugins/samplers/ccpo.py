"""CCPO: every episode again without the roles that are to be credited (arXiv 2603.21563), docs/methods/ccpo.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import Episode, Rollout, Sampler
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
        solos = start_episodes(rollout, len(joint), trained=False, stand_ins=left_out)
        for solo in solos:
            solo.trained = False
        await play_out(rollout, solos)
        note_solos(rollout, joint, solos)


def note_solos(rollout: Rollout, joint: Sequence[Episode], solos: Sequence[Episode]) -> None:
    """Write the return of the solo episode on the turns of the joint episode of the same number.

    Where a solo episode is missing, its turns get the mean of the others, and their own return where there is none.
    """
    known = [solo.ret for solo in solos if solo.complete]
    rollout.count("solo_episodes", len(known))
    for number, episode in enumerate(joint):
        solo = solos[number] if number < len(solos) and solos[number].complete else None
        other = sum(known) / len(known) if known else episode.ret
        for node in episode.nodes:
            node.extra[SOLO] = float(other if solo is None else solo.ret)


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
