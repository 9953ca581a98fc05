"""Skills: an agent that is shown skills of a library where they fit, and that writes down new ones.

Source: ARISE, Skylanding/ARISE; EvolveR, arXiv 2510.16079, Edaizi/EvolveR. The library is the schedule's,
`skill_library` or `scored_skills`. Pages: docs/methods/arise.md, docs/methods/evolver.md.
"""

from __future__ import annotations

from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import WorkerSpec
from verl_hier.rollout import EpisodeView, Worker
from verl_hier.rollout.transcript import Transcript
from verl_hier_plugins.workers.react import parse_action
from verl_hier_plugins.workers.skills.options import SkillsOptions
from verl_hier_plugins.workers.skills.scene import Scene
from verl_hier_plugins.workers.skills.texts import tells


class Skills(Worker):
    """See the module. Evaluations conclude no skills."""

    def __init__(self, options: SkillsOptions) -> None:
        self._options = options

    async def run(self, episode: EpisodeView) -> None:
        """See `Worker.run`."""
        options, scene = self._options, Scene(self._options, episode, await episode.reset())
        await scene.solve()
        wanted = scene.right or (scene.acted and options.conclude_from == "each")
        if wanted and not episode.validates and episode.rng.random() < options.conclude:
            await scene.conclude()


def transcribe(options: SkillsOptions, transcript: Transcript) -> list[str]:
    """What a policy has to say in this worker to do what an episode did, behind a question to the library where it is
    asked; to write a skill down, the beginning of its solution; and to solve the task again with it, where that is
    verified.

    Raises:
        ValueError: in one word, for an episode that cannot be written so.
    """
    calls = [call.action for turn in transcript.turns for call in turn.calls]
    if not calls:
        raise ValueError("no_action")
    tag = options.action_tag
    said = [f"<{tag}>{call}</{tag}>" if tag else call for call in calls]
    words, skill = " ".join(calls).partition(f"<{options.answer_tag}>")[0].split(), ""
    answer = parse_action(said[-1], options.answer_tag) or calls[-1]
    for word in words:
        if tells(f"{skill} {word}", answer):
            continue
        if len(skill) + len(word) >= options.longest:
            break
        skill = f"{skill} {word}".strip()
    if not skill:
        raise ValueError("no_solution")
    asked = [f"<{options.search_tag}>{transcript.instruction}</{options.search_tag}>"] * (options.read == "asked")
    verified = said[-1:] * options.verify
    return [*asked, *said, f"<{options.skill_tag}>{skill}</{options.skill_tag}>", *verified]


@hookimpl
def hier_workers() -> WorkerSpec:
    return WorkerSpec(
        name="skills",
        factory=Skills,
        options=SkillsOptions,
        summary="an agent reads skills of a library, for a task, for each turn or when it asks; tasks leave new ones",
        source="Skylanding/ARISE verl/workers/arise/skill_manager.py; EvolveR, arXiv 2510.16079",
        active_roles=SkillsOptions.levels,
        provides=("format", "skill_used", "verified"),
        needs_scores=lambda options: options.select == "likelihood",
        transcribe=transcribe,
    )
