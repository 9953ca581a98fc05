"""The library as one episode reads it: what it was told, what of it is found, and what it has read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from verl_hier.environments.question_rows import answers_of
from verl_hier.rollout import Context, EpisodeView
from verl_hier_plugins.workers.proposer_solver_judge.guards import READ
from verl_hier_plugins.workers.skills.choice import by_bm25, by_share, by_words, shares_of
from verl_hier_plugins.workers.skills.options import SkillsOptions
from verl_hier_plugins.workers.skills.texts import tells


class Library:
    """What a schedule has told an episode, without what tells an answer that its task states.

    Args:
        options: of the worker.
        episode: that reads.
    """

    def __init__(self, options: SkillsOptions, episode: EpisodeView) -> None:
        self._options = options
        self._episode = episode
        known = episode.told.get("skills")
        skills = [str(each) for each in known] if isinstance(known, list) else []
        self.answers = answers_of(episode.task) if skills or options.conclude else []
        self._skills = [skill for skill in skills if not any(tells(skill, answer) for answer in self.answers)]

    async def find(self, query: str, context: Context, read: Sequence[str] = ()) -> list[str]:
        """The skills that are shown for a query, best first, as many as fit.

        Args:
            query: what is looked up.
            context: where they will stand, with what stands before them.
            read: those that stand there already, which are not shown again.
        """
        options, rng = self._options, self._episode.rng
        skills = [skill for skill in self._skills if skill not in read]
        if not skills:
            return []
        if options.select == "bm25":
            numbers = by_bm25(query, skills)
        elif options.select == "words":
            numbers = by_words(query, skills, options.gate)
        elif options.select == "embeddings":
            numbers = by_share(await self._likenesses(query[:READ], skills), options.gate)
        else:
            likely = await self._episode.likelihoods(context, skills)
            numbers = by_share(shares_of(likely, options.temperature), options.gate)
        if numbers and not self._episode.validates and rng.random() < options.explore:
            numbers = rng.sample(range(len(skills)), len(skills))
        found = [skills[number] for number in numbers[: options.most]]
        while found and await self._episode.tokens_of(context, "\n".join(found)) > options.most_tokens:
            found.pop()
        return found

    async def _likenesses(self, query: str, skills: Sequence[str]) -> list[float]:
        """How alike each skill is to a query by the embeddings of the endpoint."""
        options = self._options

        async def one(skill: str) -> float:
            # Needed in few recipes, and heavy: it brings a client of HTTP.
            from verl_hier.served.embedder import Embedder

            embedder = Embedder.of(options.endpoint, options.endpoint_model, "hier.worker.endpoint")
            return await embedder.likeness(query, skill)

        return list(
            await asyncio.gather(*(self._episode.once((query, skill), partial(one, skill)) for skill in skills))
        )
