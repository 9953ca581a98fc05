"""MAGRPO: several joint actions of a team in one context (arXiv 2508.04652), docs/methods/magrpo.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from verl_hier.errors import RecipeError
from verl_hier.graph.nodes import Node
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import EndReason, Episode, Rollout, Sampler
from verl_hier.rollout.branching import (
    ForkPoint,
    advance_part,
    advance_turn,
    fork_episodes,
    play_out,
    start_episodes,
    within_message,
    within_segment,
)

COMPLETION = "completion"


@dataclass(frozen=True)
class MAGRPOSamplerOptions:
    """Options of `magrpo`. `actor_rollout_ref.rollout.n` is the number of completions that every agent draws in a joint
    context (K)."""

    joint: Literal["aligned", "cross"] = "aligned"
    """`aligned`: completion k of an agent acts with completion k of the others. `cross`: with each of theirs, which
    needs agents that do not read each other within a step."""
    agents: Count = 2
    """Agents that act in a step; `cross` draws the completions of each of them."""
    steps: Count = 2
    """Joint steps in which they draw several completions, each behind every joint action of the step before. What
    follows them is played once and not trained."""
    stop_above: float | None = None
    """A context whose joint actions have a mean reward above it ends there; omitted: none does."""


def leaves_of(options: MAGRPOSamplerOptions, n: int) -> int:
    """Joint actions of the last step, at most.

    Raises:
        RecipeError: for one completion.
    """
    if n < 2:
        raise RecipeError(
            f"actor_rollout_ref.rollout.n: the magrpo sampler compares n completions of each agent, so n >= 2; got {n}."
        )
    actions = n**options.agents if options.joint == "cross" else n
    return int(actions**options.steps)


class MAGRPOSampler(Sampler):
    """See the module."""

    def __init__(self, options: MAGRPOSamplerOptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        options, leaves = self._options, 0
        # The episodes of a context wait side by side for its step; at first there is one context.
        contexts = [start_episodes(rollout, rollout.n if options.joint == "aligned" else 1)]
        for step in range(options.steps):
            before = [len(context[0].path) if context else 0 for context in contexts]
            if step and options.joint == "aligned":
                contexts = [await self._several(rollout, context) for context in contexts]
            play = self._aligned if options.joint == "aligned" else self._crossed
            contexts = await play(rollout, contexts)
            actions = [(context, start) for context, start in zip(contexts, before, strict=True)]
            alive = [episode for context, start in actions for episode in self._continued(context, start)]
            contexts = [[episode] for episode in alive]
        leaves = sum(episode.record.trained for episode in rollout.episodes)
        rollout.expected = leaves
        for episode in (only for context in contexts for only in context):
            episode.trained = False
        await play_out(rollout, [episode for context in contexts for episode in context])

    async def _several(self, rollout: Rollout, context: Sequence[Episode]) -> list[Episode]:
        """The episode of a context and its forks, one for each completion."""
        places = [ForkPoint(episode) for episode in context for _ in range(1, rollout.n)]
        return [*context, *await fork_episodes(rollout, places, beside=len(context))]

    async def _aligned(self, rollout: Rollout, contexts: list[list[Episode]]) -> list[list[Episode]]:
        """One joint action of each episode."""
        shared = [[len(episode.path) for episode in context] for context in contexts]
        await advance_part(rollout, [episode for context in contexts for episode in context], within_segment)
        for context, starts in zip(contexts, shared, strict=True):
            for number, (episode, start) in enumerate(zip(context, starts, strict=True)):
                _number(episode.nodes[start:], number)
        return contexts

    async def _crossed(self, rollout: Rollout, contexts: list[list[Episode]]) -> list[list[Episode]]:
        """Every completion of an agent with every one of the others: the first episode of a context draws those of the
        next agent, the others repeat them."""
        for agent in range(self._options.agents):
            grown = []
            for context in contexts:
                waiting = [e for e in context if not e.over and (agent == 0 or within_segment(e))]
                ended = [episode for episode in context if episode not in waiting]
                grown.append([*ended, *await self._answers(rollout, waiting)])
            contexts = grown
        open_ = [e for context in contexts for e in context if not e.over and within_segment(e)]
        await advance_part(rollout, open_, within_segment)
        return contexts

    async def _answers(self, rollout: Rollout, context: list[Episode]) -> list[Episode]:
        """The completions of the next agent behind each episode of a context."""
        if not context:
            return []
        start = len(context[0].path)
        drawn = await self._several(rollout, context[:1])
        await advance_part(rollout, drawn, within_message)
        said = [episode.nodes[start:] for episode in drawn]
        for number, nodes in enumerate(said):
            _number(nodes, number)
        copies = []
        for episode in context[1:]:
            copies += await self._repeat(rollout, episode, said)
        return [*drawn, *copies]

    async def _repeat(self, rollout: Rollout, episode: Episode, said: list[list[Node]]) -> list[Episode]:
        """The same completions behind another episode; they are trained once, where they were drawn."""
        start = len(episode.path)
        alike = await self._several(rollout, [episode])
        repeated = [(copy, nodes) for copy, nodes in zip(alike, said, strict=False) if len(nodes) == 1]
        for copy in alike[len(repeated) :]:
            copy.prune(EndReason.NOT_CHOSEN)
        for copy, (node,) in repeated:
            known = len(node.logprobs) == len(node.action)
            copy.force(node.action, node.logprobs if known else None)
            copy.trained = False
        await advance_turn(rollout, [copy for copy, _ in repeated])
        for number, (copy, (node,)) in enumerate(repeated):
            copy.trained = True
            copy.force([])
            _number(copy.nodes[start:], number)
            if len(copy.path) > start and rollout.graph.prompt(copy.path[start]) != rollout.graph.prompt(node.id):
                raise RecipeError(
                    f"hier.sampler.joint: cross repeats what the role {node.role!r} said behind other messages, and it "
                    f"reads them; give it `sees: []` in hier.worker.roles.{node.role}, or set joint: aligned."
                )
        return [copy for copy, _ in repeated]

    def _continued(self, context: list[Episode], start: int) -> list[Episode]:
        """The episodes of a context whose joint actions others follow; the rest ends here where it has to."""
        alive = [episode for episode in context if not episode.over]
        rewards = [sum(node.reward for node in episode.nodes[start:]) for episode in context if episode.path]
        limit = self._options.stop_above
        if limit is None or not rewards or sum(rewards) / len(rewards) <= limit:
            return alive
        for episode in alive:
            episode.stop(EndReason.NOT_CHOSEN)
        return []


def _number(nodes: Sequence[Node], number: int) -> None:
    for node in nodes:
        node.extra[COMPLETION] = number


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "magrpo",
        MAGRPOSampler,
        MAGRPOSamplerOptions,
        summary="several joint actions of a team in each joint context, completion by completion or crossed",
        source="arXiv 2508.04652; OpenMLRL/CoMLRL comlrl/trainers/reinforce/magrpo.py",
        episodes=leaves_of,
        needs_fork=True,
        provides=(COMPLETION,),
        needs_logprobs=lambda options: options.joint == "cross",
        needs_tokens=lambda options: options.joint == "cross",
        sees_outcomes=lambda options: options.stop_above is not None,
    )
